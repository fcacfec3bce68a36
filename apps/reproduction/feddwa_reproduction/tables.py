"""Results as tables: the same rows for the terminal and for docs/reproduction.md."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from feddwa.results.compare import Spread, difference
from feddwa.results.store import Store
from feddwa_reproduction import costs, grids
from feddwa_reproduction.grid import Column, Experiment, Row, Scale
from feddwa_reproduction.run import KEPT_ROUNDS
from feddwa_reproduction.specs import methods, paper, paper_passes
from feddwa_reproduction.summary import Summary, cells_of, finding, leaders, partner_series, rounds_until, summarise
from feddwa_reproduction.table import MISSING, Table

FOUND = 0.95  # groups count as found from this share of partners inside the client's group


def tables_of(experiment: Experiment, store: Store, scale: Scale = "paper") -> list[Table]:
    """The tables of an experiment from the available results."""
    return _MAKERS[experiment.kind](experiment, store, scale)


def overviews(experiment: Experiment, store: Store, scale: Scale = "paper") -> list[Table]:
    """Overview, a table per setting: our number (the paper's metric) / the paper's."""
    settings: dict[str, list[Column]] = {}
    for column in experiment.columns:
        settings.setdefault(column.setting.split("-")[0], []).append(column)
    return [_overview(experiment, name, own, store, scale) for name, own in settings.items()]


def _overview(experiment: Experiment, name: str, columns: Sequence[Column], store: Store, scale: Scale) -> Table:
    cells = {column: cells_of(experiment, column, store, scale) for column in columns}
    first = {column: leaders(own) for column, own in cells.items()}
    lines = experiment.lines if experiment.others else experiment.rows
    header = ("method", *(column.name if own else f"{column.name}, {MISSING}" for column, own in cells.items()))
    rows = [
        (row.label, *(_glance(experiment, column, row, own, first[column]) for column, own in cells.items()))
        for row in lines
    ]
    note = f"{experiment.reported.capitalize()} round of {experiment.source}'s metric"
    note += ", mean ± standard deviation over seeds"
    note += f", / {experiment.source}'s number." if experiment.published else "."
    return Table(f"{experiment.name} at a glance, {name}", header, rows, note)


def findings(experiment: Experiment, store: Store, scale: Scale = "paper") -> list[str]:
    """The leading method of each column with results."""
    if experiment.kind != "table":
        return []
    found = {column.name: finding(cells_of(experiment, column, store, scale)) for column in experiment.columns}
    return [f"{name}: {text}" for name, text in found.items() if text is not None]


def _glance(experiment: Experiment, column: Column, row: Row, cells: dict[Row, Summary], first: set[str]) -> str:
    number = experiment.number(column, row)
    printed = "" if number is None else f" / {number:.2f}"
    if row not in cells:
        return f"{MISSING if cells and row in experiment.rows else ''}{printed}".strip()
    return f"{cells[row].measured:.2f}{printed}" + "*" * (row.name in first)


def _grids(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """The overview, and a full table for every column with results."""
    details = [_detail(experiment, column, store, scale) for column in experiment.columns]
    return [*overviews(experiment, store, scale), *(table for table in details if table is not None)]


def _protocols(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Columns with results or published numbers, without empty rows."""
    known = [
        column
        for column in experiment.columns
        if column.numbers or any(summarise(experiment, column, row, store, scale) for row in experiment.rows)
    ]
    shown = dataclasses.replace(experiment, columns=tuple(known))
    tables = _grids(shown, store, scale)
    return [dataclasses.replace(table, rows=[row for row in table.rows if any(row[1:])]) for table in tables]


def _sweeps(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """The table of a sweep, with the final weight of clients on themselves if results keep weights."""
    own = [_own_weight(experiment, column, store, scale) for column in experiment.columns]
    return [*_grids(experiment, store, scale), *(table for table in own if table is not None)]


def _own_weight(experiment: Experiment, column: Column, store: Store, scale: Scale) -> Table | None:
    """Mean of the diagonal of P."""
    rows, rounds = [], []
    for row, summary in cells_of(experiment, column, store, scale).items():
        kept = [record.weights for record in summary.records.values() if record.weights]
        if kept:
            rounds = [each.round for each in kept[0]]
            means = [fmean(np.concatenate([each.matrix.diagonal() for each in own])) for own in zip(*kept, strict=True)]
            rows.append((row.label, *(f"{mean:.2f}" for mean in means)))
    header = ("method", *(f"round {number}" for number in rounds))
    title = f"{column.name}, weight of a client's own model"
    return Table(title, header, rows, "Mean over clients and seeds.") if rows else None


def _detail(experiment: Experiment, column: Column, store: Store, scale: Scale) -> Table | None:
    cells = cells_of(experiment, column, store, scale)
    if not cells:
        return None
    first = leaders(cells)
    rows = []
    for row in experiment.rows:
        paper = experiment.number(column, row)
        name = (row.label, "" if paper is None else f"{paper:.2f}")
        rows.append((*name, *_numbers(cells[row], row.name in first)) if row in cells else (*name, MISSING, *[""] * 8))
    source = experiment.source.removeprefix("the ")
    header = (
        "method", source, f"{source}'s metric", "all clients, best", "all clients, last", "gain over Local",
        "worst decile", "losing clients", "MiB", "GFLOPs", "seconds",
    )  # fmt: skip
    return Table(column.name, header, rows, f"{column.text}. {_seeds(cells)}; {_machines(cells)}.")


def _seeds(cells: Mapping[Row, Summary]) -> str:
    """The seeds that were run, and the rows with other seeds."""
    rows_of: dict[tuple[int, ...], list[str]] = {}
    for row, summary in cells.items():
        rows_of.setdefault(tuple(sorted(summary.records)), []).append(row.label)
    (usual, _), *exceptions = sorted(rows_of.items(), key=lambda item: (-len(item[1]), -len(item[0])))
    told = [f"of {', '.join(rows)} {_listed(seeds)}" for seeds, rows in exceptions]
    return "; ".join([f"Seeds {_listed(usual)}", *told])


def _listed(seeds: Sequence[int]) -> str:
    """Seeds as text; consecutive ones as a range."""
    row = len(seeds) > 3 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if row else ", ".join(map(str, seeds))


def _machines(cells: Mapping[Row, Summary]) -> str:
    """The machines of the runs, and how many stacks shared the device with the timed ones."""
    machines = sorted({machine for summary in cells.values() for machine in summary.machines})
    jobs = sorted({summary.jobs for summary in cells.values()})
    shared = f"seconds with {' or '.join(map(str, jobs))} stacks of runs at once" if jobs != [1] else ""
    return "; ".join([*machines, shared] if shared else machines)


def _numbers(summary: Summary, first: bool) -> tuple[str, ...]:
    gain = summary.gain
    joined = ("", "", "") if gain is None else (f"{gain.mean:+.2f}", f"{gain.worst_tenth:+.2f}", f"{gain.losers:.0f} %")
    everybody = ["" if spread is None else f"{spread:.2f}" for spread in (summary.best, summary.last)]
    return (
        f"{summary.measured:.2f}" + "*" * first, *everybody, *joined,
        f"{summary.mib:.2f}", f"{summary.gflops:.1f}", f"{summary.seconds:.0f}",
    )  # fmt: skip


def _similarity(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Share of the top-5 partners inside the client's group, and the round from which groups are found."""
    return [_similarity_of(experiment, column, store, scale) for column in experiment.columns]


def _similarity_of(experiment: Experiment, column: Column, store: Store, scale: Scale) -> Table:
    cells, rows = cells_of(experiment, column, store, scale), []
    for row in experiment.rows:
        series = partner_series(cells[row].records.values(), row) if row in cells else []
        if not series:
            rows.append((row.label, MISSING, *[""] * (len(KEPT_ROUNDS) + 1)))
            continue
        mean = [sum(values) / len(values) for values in zip(*series, strict=True)]
        shown = [f"{mean[number - 1]:.2f}" if number <= len(mean) else "" for number in KEPT_ROUNDS]
        until = [rounds_until(values, FOUND) for values in series]
        text = ", ".join("never" if number is None else str(number) for number in until)
        rows.append((row.label, *shown, f"{mean[-1]:.2f}", text))
    header = ("method", *(f"round {number}" for number in KEPT_ROUNDS), "last round", f"from which round >= {FOUND}")
    return Table(column.name, header, rows, "Mean over seeds; the last column seed by seed.")


def _maps(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """In-group weight and partners in the first and the last round."""
    rows = []
    for column in experiment.columns:
        for row, summary in cells_of(experiment, column, store, scale).items():
            inside = next(iter(summary.records.values())).content["in_group"]
            ends = [f"{inside[key][place]:.2f}" for key in ("weight", "partners") for place in (0, -1)]
            rows.append((f"{column.name}, {row.label}", *ends))
    missing = [column.name for column in experiment.columns if not cells_of(experiment, column, store, scale)]
    rows += [(name, MISSING, "", "", "") for name in missing]
    header = ("data", "weight in group, round 1", "last", "partners in group, round 1", "last")
    return [Table("Weight and partners inside the client's group", header, rows)]


def _spread(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Mean and extremes over many seeds, the mean of three as in the paper, and of the difference to Local."""
    return [_spread_of(experiment, column, store, scale) for column in experiment.columns]


def _spread_of(experiment: Experiment, column: Column, store: Store, scale: Scale) -> Table:
    cells, rows = cells_of(experiment, column, store, scale), []
    measured = {row.label: summary.measured for row, summary in cells.items()}
    for label, spread in list(measured.items()):
        apart = difference(spread, measured["Local"]) if "Local" in measured and label != "Local" else None
        if apart is not None:
            measured[f"{label} less Local"] = apart
    printed = {row.label: _paper_number("table1", column, row) for row in experiment.rows}
    for label, spread in measured.items():
        values, three = spread.values.values(), Spread(dict(list(spread.values.items())[:3]))
        numbers = (f"{spread:.2f}", f"{three:.2f}", f"{min(values):.2f}", f"{max(values):.2f}", str(len(values)))
        rows.append((label, *numbers, printed.get(label, "")))
    rows += [(label, MISSING, "", "", "", "", paper) for label, paper in printed.items() if label not in measured]
    return Table(
        column.name,
        ("method", "mean", "of the first three", "lowest", "highest", "seeds", "paper"),
        rows,
        "Best round of the paper's metric.",
    )


def _paper_number(name: str, column: Column, row: Row) -> str:
    number = paper()[name].number(column, row)
    return "" if number is None else f"{number:.2f}"


def _communication(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    rows = []
    for method, title in methods().items():
        cells = []
        for column in experiment.columns:
            ours, paper = costs.communication(column.dataset, method), experiment.published.get((column.name, method))
            cells += [f"{ours.models:.2f}", f"{ours.mib:.2f}", "" if paper is None else f"{paper:.2f}"]
        rows.append((title, *cells))
    header = ["method"]
    for column in experiment.columns:
        header += [f"{column.name}: models", "MiB", "paper"]
    return [Table("Per participating client and round, up and down, 20 clients", tuple(header), rows)]


def _flops(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    rows = []
    for column in experiment.columns:
        for method, title in methods().items():
            ours, paper = costs.flops(column.dataset, method), experiment.published.get((column.name, method))
            counted = paper_passes().get(method, 0.0)
            theirs = ("", "", "") if paper is None else (
                f"{paper:.1e}", f"{counted:.1f}", f"{counted * ours.paper / ours.passes:.2e}"
            )  # fmt: skip
            server = f"{ours.server:.1e}" if ours.server else "0"
            rows.append((title, *theirs, f"{ours.passes:.1f}", f"{ours.paper:.2e}", server, f"{ours.client:.2e}"))
    ours_in = ("our passes", "same convention", "on the server", "one client, with backward")
    header = ("method", "paper", "its passes", "gives", *ours_in)
    return [Table("CIFAR-10, 20 clients, a round", header, rows)]


def _toy(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    example = costs.toy()
    rows = [(_vector(p), f"{value:.2f}") for p, value in example.candidates]
    rows.append((f"FedDWA's rule: {_vector(example.simplified)}", f"{example.value:.2f}"))
    return [Table("W = diag(0, 0, 1)", ("weights p", "p' W p"), rows)]


def _vector(p: object) -> str:
    return "(" + ", ".join(f"{value:g}" for value in p) + ")"  # type: ignore[attr-defined]


_MAKERS: dict[str, Callable[[Experiment, Store, Scale], list[Table]]] = {
    "table": _grids,
    "grid": _grids,
    "sweep": _sweeps,
    "curves": overviews,
    "protocol": _protocols,
    "similarity": _similarity,
    "spread": _spread,
    "heatmaps": _maps,
    "communication": _communication,
    "flops": _flops,
    "toy": _toy,
    **grids.MAKERS,
}
