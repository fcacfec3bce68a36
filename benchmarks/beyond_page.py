"""The tables and the figure of docs/beyond.md, from the results alone."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from beyond_cells import ABLATIONS, METHODS, config_of, settings_of

from feddwa.algorithms import ALGORITHMS
from feddwa.paper.figures import draw_series
from feddwa.paper.store import Record, Store
from feddwa.paper.summary import Spread, difference, gain_over, interval

PAGE = Path("docs/beyond.md")
FIGURE = Path("beyond/in-group-weight.svg")  # beside the page
OURS = "feddwa_plus"
GROUPED = {  # (dataset's title, label) -> dataset, setting, options: four equal groups of clients each
    ("digits", "groups"): ("digits", "groups", ""),
    ("digits", "rotations"): ("digits", "rotations", ""),
    ("digits", "permutation"): ("digits", "permutation", ""),
    ("CIFAR-10", "groups"): ("cifar10", "groups", ""),
    ("CIFAR-10", "rotations"): ("cifar10", "rotations", ""),
    ("CIFAR-10", "permutation"): ("cifar10", "permutation", ""),
    ("CIFAR-10", "groups, N = 100"): ("cifar10", "groups", " clients=100"),
    ("Tiny-ImageNet", "groups"): ("tiny-imagenet-32", "groups", ""),
}
EVEN = 0.25  # in-group weight of an even mean over four groups
SHOWN = (1, 2, 5, 10, 20, 40, 100)  # rounds

Cells = dict[str, dict[int, float]]  # setting -> seed -> accuracy


def write_page(store: Store, page: Path) -> None:
    """Put the tables into the page, each where it is announced: <!-- table: DATASET SEED ... -->, and the like."""
    kinds = {
        "table": _table, "paired": _paired, "ablation": _ablation, "bytes": _equal_bytes, "flops": _equal_flops,
        "inside": _inside, "against": _against,
    }  # fmt: skip

    def table(found: re.Match[str]) -> str:
        kind, name, *seeds = found.group(1).replace(":", "").split()
        made = kinds[kind](store, name, [int(seed) for seed in seeds])
        return f"<!-- {found.group(1)} -->\n\n{made}\n\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    new = re.sub(rf"<!-- ((?:{'|'.join(kinds)}): [\w -]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)
    temporary = page.with_suffix(".part")
    temporary.write_text(new, encoding="utf-8")
    os.replace(temporary, page)
    draw_inside(store, page.parent / FIGURE, [0, 1, 2])


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " --- |" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]).replace("|  |", "| |")


def _table(store: Store, dataset: str, seeds: list[int]) -> str:
    """Accuracy of every method in every setting, mean and standard deviation over seeds; gain over Local below it."""
    settings = settings_of(dataset)
    rows = _rows(
        settings, {ALGORITHMS[name].title: _results(store, dataset, settings, name, seeds) for name in METHODS}
    )
    gains = [_gain(store, dataset, setting, seeds) for setting in settings]
    if any(gain != "-" for gain in gains):
        rows.append(["FedDWA+ over Local: mean client / worst tenth", *gains])
    return _markdown(["", *settings], rows)


def _ablation(store: Store, name: str, seeds: list[int]) -> str:
    """The same with a part changed or left out, or under other circumstances."""
    chosen = ABLATIONS[name]
    found = {
        label: _results(store, chosen.dataset, chosen.settings, method, seeds) for label, method in chosen.rows.items()
    }
    return _markdown(["", *chosen.settings], _rows(chosen.settings, found))


def _rows(settings: Sequence[str], found: Mapping[str, Cells]) -> list[list[str]]:
    """A row per label that has a result in any of the settings."""
    return [
        [label, *(_cell(list(cells[name].values())) for name in settings)]
        for label, cells in found.items()
        if any(cells[name] for name in settings)
    ]


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f} (one seed)"


def _paired(store: Store, dataset: str, seeds: list[int]) -> str:
    """FedDWA+ less the best other method, FedDWA and Local, seed by seed, with 95 % confidence intervals."""
    settings, rows = settings_of(dataset), []
    found = {name: _results(store, dataset, settings, name, seeds) for name in METHODS}
    for setting in settings:
        ours = Spread(found[OURS][setting])
        pairs = {name: difference(ours, Spread(found[name][setting])) for name in METHODS[1:] if found[name][setting]}
        known = {name: apart for name, apart in pairs.items() if apart is not None}
        if known:
            best, lead = min(known.items(), key=lambda item: item[1].mean)
            place = 1 + sum(apart.mean < 0 for apart in known.values())
            others = [_apart(known.get(name)) for name in ("feddwa", "local")]
            ranked = f"{place} of {len(known) + 1}"
            rows.append([setting, ranked, ALGORITHMS[best].title, _apart(lead), *others, str(len(lead.values))])
    header = ["", "place", "best other method", "less that", "less FedDWA", "less Local", "n"]
    return _markdown(header, rows)


def _against(store: Store, name: str, seeds: list[int]) -> str:
    """Rows of an ablation less its first row, seed by seed, with 95 % confidence intervals."""
    chosen = ABLATIONS[name]
    reference, *others = (
        (label, _results(store, chosen.dataset, chosen.settings, method, seeds))
        for label, method in chosen.rows.items()
    )
    rows = [
        [label, *(_apart(difference(Spread(cells[name]), Spread(reference[1][name]))) for name in chosen.settings)]
        for label, cells in others
        if any(cells.values())
    ]
    return _markdown([f"less {reference[0]}", *chosen.settings], rows)


def _apart(apart: Spread | None) -> str:
    """+0.58 (-0.28 to +1.43): a difference with its interval; bold where the interval excludes 0."""
    if apart is None:
        return "-"
    ends = interval(apart)
    if ends is None:
        return f"{apart.mean:+.2f}"
    told = f"{apart.mean:+.2f} ({ends.low:+.2f} to {ends.high:+.2f})"
    return told if ends.low <= 0 <= ends.high else f"**{told}**"


def _equal_bytes(store: Store, dataset: str, seeds: list[int]) -> str:
    """Accuracy when a client has sent and received what it does in all rounds of FedAvg."""
    return _at_equal_cost(store, dataset, seeds, lambda record: record["bytes_up"] + record["bytes_down"])


def _equal_flops(store: Store, dataset: str, seeds: list[int]) -> str:
    """The same for what it has computed."""
    return _at_equal_cost(store, dataset, seeds, lambda record: record["flops"])


def _at_equal_cost(store: Store, dataset: str, seeds: list[int], cost: Callable[[Record], float]) -> str:
    """Mean over seeds, and how many rounds that is."""
    settings, rows = settings_of(dataset), []
    measure = {s: _records(store, dataset, s, "fedavg", seeds) for s in settings}
    for name in METHODS:
        found = {s: _records(store, dataset, s, name, seeds) for s in settings}
        cells = [
            _within(found[s], _cost(measure[s], cost) / _cost(found[s], cost)) if measure[s] and found[s] else "-"
            for s in settings
        ]
        rows.append([ALGORITHMS[name].title, *cells])
    return _markdown(["accuracy, rounds", *settings], rows)


def _cost(records: Mapping[int, Record], cost: Callable[[Record], float]) -> float:
    """Of a client and round, mean over seeds; next to nothing where it is nothing."""
    return max(float(np.mean([cost(record) for record in records.values()])), 1e-9)


def _within(records: Mapping[int, Record], share: float) -> str:
    """What has been reached after a share of the rounds; a thousandth too few does not count."""
    curves = np.array([record["series"]["all"] for record in records.values()])
    rounds = min(int((curves.shape[1] - 1) * share * 1.001), curves.shape[1] - 1)
    return f"{curves[:, rounds].mean():.1f}, {rounds}"


def _results(store: Store, dataset: str, settings: Sequence[str], method: str, seeds: list[int]) -> Cells:
    """Accuracy after the last round: all clients, unweighted."""
    return {
        setting: {
            seed: record["series"]["all"][-1]
            for seed, record in _records(store, dataset, setting, method, seeds).items()
        }
        for setting in settings
    }


def _records(store: Store, dataset: str, setting: str, method: str, seeds: list[int]) -> dict[int, Record]:
    """The result files of a cell by seed. A cell that was not run has none, whatever other files would say of it."""
    known = ((seed, store.find(config_of(dataset, setting, method), seed)) for seed in seeds)
    return {seed: record for seed, record in known if record is not None}


def _gain(store: Store, dataset: str, setting: str, seeds: list[int]) -> str:
    """Of FedDWA+ over Local, in points: mean over clients and seeds / mean of the worst tenth."""
    ours, alone = (_records(store, dataset, setting, method, seeds) for method in (OURS, "local"))
    gain = gain_over(ours, alone)
    return "-" if gain is None else f"{gain.mean:+.1f} / {gain.worst_decile:+.1f}"


def _inside(store: Store, method: str, seeds: list[int]) -> str:
    """In-group weight of a method by round: mean over clients and seeds."""
    rows = []
    for title, series in inside(store, method, seeds).items():
        for label, values in series.items():
            shown = [f"{values[number - 1]:.2f}" if number <= len(values) else "" for number in SHOWN]
            rows.append([f"{title}, {label}", *shown])
    return _markdown(["", *(f"round {number}" for number in SHOWN)], rows)


def inside(store: Store, method: str, seeds: list[int]) -> dict[str, dict[str, list[float]]]:
    """Title -> label -> a number per round: the share of a client's weight inside its group, itself included."""
    found: dict[str, dict[str, list[float]]] = {}
    for (title, label), (dataset, setting, options) in GROUPED.items():
        records = _records(store, dataset, setting, method + options, seeds)
        if records:
            series = np.mean([record["mass"] for record in records.values()], axis=0)
            found.setdefault(title, {})[label] = series.tolist()
    return found


def draw_inside(store: Store, path: Path, seeds: list[int]) -> None:
    """The same as a figure, a panel per dataset; nothing where there are no results."""
    found = inside(store, OURS, seeds)
    if found:
        draw_series(found, path, "weight inside own group", {"even": EVEN})
