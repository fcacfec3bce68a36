"""`feddwa leaderboard`: methods at equal cost, from finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from feddwa.errors import InputError, require
from feddwa.params import Option

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.results.compare import Place
    from feddwa.results.findings import Finding
    from feddwa.results.measure import Measure
    from feddwa.results.methods import Method
    from feddwa.results.record import Record


@dataclass(frozen=True)
class LeaderboardConfig:
    """Accuracy at equal traffic, equal compute and equal time, and who gains over training alone."""

    runs: Annotated[tuple[str, ...], Option(metavar="RUN ...", positional=True)]
    """Run directories, directories with runs inside, or JSONL files; finished runs count. One table per setting."""
    out: Annotated[str | None, Option(metavar="DIR", short="-o")] = None
    """Folder for figures as well: pareto.png, and gain.png where there is a run of Local; of one setting."""


def leaderboard_command(config: LeaderboardConfig) -> int:
    """`feddwa leaderboard`: failed methods are excluded; exit status 1 if all failed, else 0."""
    from feddwa.report.terminal import make_console
    from feddwa.results.methods import by_method, by_setting
    from feddwa.results.record import read

    require(len(config.runs) > 0, "RUN", "none", "one run directory or more")
    records = [record for record in read(config.runs) if record.finished]
    if not records:
        raise InputError(f"RUN {' '.join(config.runs)}: no run is finished; wait for one")
    settings = by_setting(records)
    if config.out is not None and len(settings) > 1:
        raise InputError(f"-o {config.out}: figures are of one setting, these runs have {len(settings)}")
    for own in settings.values():
        by_method(own)  # what cannot be compared is refused before the first table is shown
    console = make_console()
    shown = [_show(console, name, own) for name, own in settings.items()]
    if config.out is not None and all(shown):
        _draw(Path(config.out), [method for method in by_method(records) if method.sound])
    return 0 if any(shown) else 1


def _show(console: "Console", setting: str, records: "Sequence[Record]") -> bool:
    """The table of one setting; whether there is a method in it."""
    from rich import box
    from rich.table import Table

    from feddwa.report.terminal import show_finding
    from feddwa.results.compare import budgets, leaderboard, over_whom, reference, unequal_seeds
    from feddwa.results.methods import by_method
    from feddwa.results.units import human_bytes, human_flops, human_seconds

    every = by_method(records)
    for method in every:
        for finding, seeds in _failures(method).items():
            of = f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if len(method.runs) > 1 else ""
            show_finding(console, finding, method.name + of)
    methods = [method for method in every if method.sound]
    if not methods:
        return False
    units = {"bytes": human_bytes, "flops": human_flops, "seconds": human_seconds}
    measure = methods[0].measure
    several = any(len(method.runs) > 1 for method in methods)
    caption = f"{_caption(len(records), measure, several)} {unequal_seeds(methods)}".strip()
    table = Table(title=setting, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.collapse_padding = False, False, True  # as narrow as it can be
    heads = [f"in {units[cost](limit)}" for cost, limit in budgets(methods).items()]
    over = "over Local" if measure.sign > 0 else "below Local"
    leads = [f"{over_whom(reference(methods))} ± 95 % CI", "n"] if several else [over]
    rows = [_cells(each, measure, several) for each in leaderboard(methods)]
    for place, head in enumerate(["method", *heads, "all rounds", *leads, "worst tenth", "better off alone"]):
        # In a narrow terminal the names of methods are folded, numbers and words stay whole.
        whole = max(map(len, [*head.split(), *(row[place] for row in rows)])) if place else None
        table.add_column(head, justify="right" if place else "left", width=whole, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return True


def _failures(method: "Method") -> "dict[Finding, list[int]]":
    """What keeps runs of a method out of the table, with the seeds of the runs that have it in common."""
    found: dict[Finding, list[int]] = {}
    for run in method.runs:
        if not run.sound:
            found.setdefault(run.findings[0], []).append(run.seed)
    return found


def _caption(runs: int, measure: "Measure", several: bool) -> str:
    accuracy = measure.sign > 0
    what = "Accuracy in percent" if accuracy else "Loss, lower is better"
    gains = "Over Local: points" if accuracy else "Below Local: by how much the loss is lower"
    ends = ", ± half of the 95 % confidence interval of the mean over n seeds, paired" if several else ""
    spread = " ± standard deviation" if several else ""
    return (
        f"{what}, all clients, unweighted, mean{spread} over seeds ({runs} runs). "
        "In a budget: all clients together, that of the method that spends least. "
        f"{gains}, of the mean client{ends}, and of the tenth that gains least."
    )


def _cells(place: "Place", measure: "Measure", several: bool) -> list[str]:
    within = [measure.number(value) if value is not None else "-" for value in place.at.values()]
    gain = place.gain
    gains = ["-"] * 3
    if gain is not None:
        gains = [measure.gain(gain.mean), measure.gain(gain.worst_tenth), f"{gain.losers:.0f} %"]
    leads = [place.lead, place.seeds] if several else gains[:1]
    return [place.name, *within, f"{place.last:{measure.fine}}", *leads, *gains[1:]]


def _draw(folder: Path, methods: "Sequence[Method]") -> None:
    from feddwa.report.figures import gain, pareto
    from feddwa.results.compare import gain_over, local_runs

    try:
        folder.mkdir(parents=True, exist_ok=True)
        pareto(methods, folder / "pareto.png")
        written, local = ["pareto.png"], local_runs(methods)
        if any(gain_over(method.runs, local) for method in methods):
            gain(methods, folder / "gain.png")
            written.append("gain.png")
    except OSError as error:
        raise InputError(f"-o {folder}: cannot write there: {error.strerror}") from None
    print("wrote " + " and ".join(str(folder / name) for name in written))
