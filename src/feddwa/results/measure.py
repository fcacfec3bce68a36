"""The number by which the models of a run are compared: accuracy, or the loss if targets are not classes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A measure of models: its name, its format, and its direction."""

    name: str
    unit: str  # suffix of a value
    plain: str  # format in sentences
    fine: str  # format in tables
    apart: str  # of a difference in tables
    sign: int  # 1: higher is better; -1: lower is better
    level: float  # largest difference of a client's two values that counts as level
    words: str  # explanation

    @property
    def better(self) -> str:
        """The better direction."""
        return "higher" if self.sign > 0 else "lower"

    def text(self, value: float) -> str:
        """A value in a sentence: "93.1 %", "loss 0.0123"."""
        return f"{value:{self.plain}}{self.unit}" if self.unit else f"{self.name} {value:{self.plain}}"

    def number(self, value: float) -> str:
        """A value in a table, whose heading has the unit."""
        return f"{value:{self.fine}}"

    def format_of(self, metric: str) -> str:
        """The format of a metric's values in tables: this measure on other samples ("validation accuracy") has its
        format.
        """
        return self.fine if metric.endswith(f" {self.name}") else ".4g"

    def gain(self, value: float) -> str:
        """An improvement, in a table; negative if worse."""
        return f"{value:+{self.apart}}"

    def over(self, value: float) -> str:
        """An improvement as a phrase before the baseline: "+1.2 points over", "0.02 lower than"."""
        if self.sign > 0:
            return f"{value:+{self.plain}} points over"
        return f"{abs(value):{self.plain}} {'lower' if value >= 0 else 'higher'} than"

    def amount(self, value: float) -> str:
        """A difference in a sentence: "1.2 points", "0.02 of loss"."""
        return f"{value:{self.plain}} {'points' if self.sign > 0 else 'of loss'}"

    @property
    def head(self) -> str:
        """The heading of a table's column of values."""
        return f"{self.name}, {self.unit.strip()}" if self.unit else self.name

    @property
    def gains(self) -> str:
        """The heading of a column of gains over Local."""
        return "over Local, points" if self.sign > 0 else "below Local's"


ACCURACY = Measure(
    "accuracy", " %", ".1f", ".2f", ".2f", 1, 0.05,
    "the share of its own test samples that a client's model answers correctly, in percent",
)  # fmt: skip
LOSS = Measure(
    "loss", "", ".4g", ".4g", ".2g", -1, 1e-6,
    "the mean loss of a client's model on its own test samples, which has no upper bound and is 0 at best",
)  # fmt: skip
