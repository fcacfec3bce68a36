"""`feddwa leaderboard`: methods at equal cost, from finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from feddwa.errors import InputError, require
from feddwa.params import Option

if TYPE_CHECKING:
    from feddwa.report.leaderboard import Place
    from feddwa.report.reading import Method


@dataclass(frozen=True)
class LeaderboardConfig:
    """Accuracy at equal traffic, equal compute and equal time, and who gains over training alone."""

    runs: Annotated[tuple[str, ...], Option(metavar="RUN ...", positional=True)]
    """Run directories of one setting, or directories with runs inside; finished runs count."""
    out: Annotated[str | None, Option(metavar="DIR", short="-o")] = None
    """Folder for figures as well: pareto.png, and gain.png where there is a run of Local."""


def leaderboard_command(config: LeaderboardConfig) -> int:
    """`feddwa leaderboard`: methods that went wrong have no place in it; 1 where that is all of them, else 0."""
    from rich.table import Table

    from feddwa.report.leaderboard import budgets, leaderboard
    from feddwa.report.reading import by_method, read
    from feddwa.report.terminal import make_console, show_finding
    from feddwa.report.units import human_bytes, human_flops, human_seconds

    require(len(config.runs) > 0, "RUN", "none", "one run directory or more")
    records = [record for record in read(config.runs) if record.finished]
    if not records:
        raise InputError(f"RUN {' '.join(config.runs)}: no run is finished; wait for one")
    console, every = make_console(), by_method(records)
    broken = [(method.name, run.findings[0]) for method in every for run in method.runs if not run.sound]
    for name, finding in broken:
        show_finding(console, finding, name)
    methods = [method for method in every if method.sound]
    if not methods:
        return 1
    limits, places = budgets(methods), leaderboard(methods)
    units = {"bytes": human_bytes, "flops": human_flops, "seconds": human_seconds}
    table = Table(caption=_caption(len(records)), caption_justify="left")
    heads = [f"within {units[cost](limit)}" for cost, limit in limits.items()]
    for place, head in enumerate(["method", *heads, "all rounds", "over Local", "worst tenth", "better off alone"]):
        table.add_column(head, justify="right" if place else "left", no_wrap=place == 0)  # names are never cut
    for each in places:
        table.add_row(*_cells(each))
    console.print(table)
    if config.out is not None:
        _draw(Path(config.out), methods, places)
    return 0


def _caption(runs: int) -> str:
    return (
        f"Accuracy in percent, all clients, unweighted, mean over seeds ({runs} runs). "
        "Within a budget: all clients together, that of the method that spends least. "
        "Over Local: points, of the mean client and of the tenth that gains least."
    )


def _cells(place: "Place") -> list[str]:
    shown = [f"{value:.2f}" if value is not None else "-" for value in (*place.at.values(), place.last)]
    gains = [f"{value:+.2f}" if value is not None else "-" for value in (place.gain, place.worst)]
    return [place.name, *shown, *gains, f"{place.hurt:.0f} %" if place.hurt is not None else "-"]


def _draw(folder: Path, methods: list["Method"], places: list["Place"]) -> None:
    from feddwa.report.figures import gain, pareto

    try:
        folder.mkdir(parents=True, exist_ok=True)
        pareto(methods, folder / "pareto.png")
        written = ["pareto.png"]
        if any(place.gain is not None for place in places) and len(methods) > 1:
            gain(methods, folder / "gain.png")
            written.append("gain.png")
    except OSError as error:
        raise InputError(f"-o {folder}: cannot write there: {error.strerror}") from None
    print("wrote " + " and ".join(str(folder / name) for name in written))
