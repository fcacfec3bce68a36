"""How a run is evaluated: the options that a configuration has for it. Nothing is imported here that takes time."""

from dataclasses import dataclass

from feddwa.errors import InputError, require


@dataclass(frozen=True)
class EvaluationOptions:
    """What models are evaluated on besides the clients' test data, and what follows from it."""

    validation: float = 0.0
    """Share of each client's training data that nobody trains on, to validate models with: from 0 to below 1."""
    early_stop: int | None = None
    """End the run when this many evaluations in a row have not improved on the best one; needs --validation."""

    def check_evaluation(self) -> None:
        """Raise InputError unless the values are valid, by themselves and together."""
        require(0 <= self.validation < 1, "--validation", self.validation, "a share, from 0 to below 1")
        if self.early_stop is not None:
            require(self.early_stop >= 1, "--early-stop", self.early_stop, "at least 1 evaluation")
            if not self.validation:
                raise InputError("--early-stop: stops on validation data alone; give --validation a share, such as 0.1")
