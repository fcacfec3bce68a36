"""Commands that show what runs came to: `feddwa report`, `figure`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from feddwa.errors import InputError, require
from feddwa.params import Option

Kind = Literal["curves", "weights", "similarity", "partition", "gain", "pareto"]


@dataclass(frozen=True)
class ReportConfig:
    """One HTML file about the runs of a setting: curves, who helps whom, who gained, data, cost; no network needed."""

    runs: Annotated[tuple[str, ...], Option(metavar="RUN ...", positional=True)]
    """Run directories, directories with runs inside, or JSONL files; runs that differ by their seed become one line."""
    out: Annotated[str, Option(metavar="FILE", short="-o")] = "report.html"
    """File to write, replaced if it is there; with several settings their index, beside it a file for each."""


@dataclass(frozen=True)
class FigureConfig:
    """A figure for print: curves over rounds, weights, similarity of clients, partition, gain over Local, cost."""

    kind: Annotated[Kind, Option(positional=True)]
    """Which figure."""
    runs: Annotated[tuple[str, ...], Option(metavar="RUN ...", positional=True)]
    """Run directories, directories with runs inside, or JSONL files of published results."""
    out: Annotated[str | None, Option(metavar="FILE", short="-o")] = None
    """File to write (.png, .svg or .pdf) [the figure's name and .png]; several settings: one file each."""


def report_command(config: ReportConfig) -> int:
    """`feddwa report`."""
    from feddwa.report.index import index
    from feddwa.report.page import write_page, write_report
    from feddwa.results.methods import by_method, by_setting
    from feddwa.results.record import read
    from feddwa.results.units import human_bytes

    _check_runs(config.runs)
    settings = by_setting(read(config.runs))
    methods = {name: by_method(records) for name, records in settings.items()}  # what cannot be compared is refused
    links = {name: _file(Path(config.out), name).name for name in settings}
    if len(settings) > 1:
        size = write_page(index(methods, links), config.out)
        print(f"wrote {config.out} ({human_bytes(size)}, index of {len(settings)} settings); open it in a browser")
    for name, records in settings.items():
        out = _file(Path(config.out), name if len(settings) > 1 else "")
        size, runs = write_report(records, out), f"{len(records)} run{'s' * (len(records) > 1)}"
        print(f"wrote {out} ({human_bytes(size)}, {runs}); open it in a browser")
    return 0


def figure_command(config: FigureConfig) -> int:
    """`feddwa figure`."""
    from feddwa.report.figures import FIGURES, SUFFIXES
    from feddwa.results.methods import by_method, by_setting
    from feddwa.results.record import read

    out = Path(config.out or f"{config.kind}.png")
    require(out.suffix.lower() in SUFFIXES, "-o", str(out), f"a file name that ends in {', '.join(SUFFIXES)}")
    _check_runs(config.runs)
    settings = {name: by_method(records) for name, records in by_setting(read(config.runs)).items()}
    for name, methods in settings.items():
        own = _file(out, name if len(settings) > 1 else "")
        try:
            FIGURES[config.kind](methods, own)
        except OSError as error:
            raise InputError(f"-o {own}: cannot write there: {error.strerror}") from None
        print(f"wrote {own}")
    return 0


def _file(out: Path, setting: str) -> Path:
    """Where the page or figure of a setting goes: with several settings, the setting is in its name."""
    return out.with_name(f"{out.stem}-{re.sub('[^a-z0-9.]+', '-', setting.lower())}{out.suffix}") if setting else out


def _check_runs(runs: tuple[str, ...]) -> None:
    require(len(runs) > 0, "RUN", "none", "one run directory or more")
