"""The division of data: counts, heterogeneity, a table and a picture."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from feddwa.data.dataset import Dataset, NamedClients
from feddwa.data.labels import short
from feddwa.data.partition import Partition
from feddwa.errors import InputError

LONGEST_NAME = 30  # characters per line of a table; longer names are wrapped
UNCLASSED = ("any target",)  # replaces class names if targets are not classes
MOST_NAMES = 100  # client names along a picture's axis; with more clients only some are shown


@dataclass(frozen=True)
class Description(NamedClients):
    """Labels as seen by the clients (relabelled if the partition relabels)."""

    train_counts: np.ndarray  # (N, C) training rows of each class
    test_counts: np.ndarray  # (N, C)
    class_names: tuple[str, ...]
    groups: np.ndarray | None
    turns: np.ndarray | None
    relabel: np.ndarray | None
    client_names: tuple[str, ...] = ()  # of the N clients, where the data name them
    newcomers: tuple[str, ...] = ()  # names of held-out clients, not among the N

    @property
    def classed(self) -> bool:
        """Whether targets are classes."""
        return self.class_names != UNCLASSED

    @property
    def counts(self) -> np.ndarray:
        """(N, C) rows of each class, training and test together."""
        counts: np.ndarray = self.train_counts + self.test_counts
        return counts

    @property
    def train_sizes(self) -> np.ndarray:
        """(N,) training rows."""
        sizes: np.ndarray = self.train_counts.sum(axis=1)
        return sizes

    @property
    def test_sizes(self) -> np.ndarray:
        """(N,) test rows."""
        sizes: np.ndarray = self.test_counts.sum(axis=1)
        return sizes

    @property
    def shares(self) -> np.ndarray:
        """(N, C) label distribution of each client."""
        shares: np.ndarray = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def label_distance(self) -> float:
        """Mean total variation distance between two clients' label distributions: 0 = equal, 1 = no class in common."""
        shares, clients = self.shares, len(self.counts)
        if clients < 2:
            return 0.0
        total = sum(np.abs(shares[i] - shares[i + 1 :]).sum() for i in range(clients))
        return float(total / 2 / (clients * (clients - 1) / 2))

    @property
    def effective_classes(self) -> np.ndarray:
        """(N,) exp of the entropy of the label distribution: c for c equally frequent classes."""
        shares = self.shares
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        effective: np.ndarray = np.exp(-(shares * logs).sum(axis=1))
        return effective

    def summary(self) -> dict[str, float | int]:
        """The figures as a flat mapping, for printing and for JSON."""
        sizes = self.train_sizes + self.test_sizes
        told: dict[str, float | int] = {
            "clients": len(sizes),
            "samples_min": int(sizes.min()),
            "samples_median": float(np.median(sizes)),
            "samples_max": int(sizes.max()),
        }
        if not self.classed:
            return told
        return told | {
            "classes_mean": float((self.counts > 0).sum(axis=1).mean()),
            "effective_classes_mean": float(self.effective_classes.mean()),
            "label_distance_mean": self.label_distance,
        }


def describe(dataset: Dataset, partition: Partition) -> Description:
    """Count each client's rows by class; targets that are not classes count as one class."""
    if not dataset.classes or dataset.y.ndim != 1:
        dataset = dataclasses.replace(dataset, y=np.zeros(len(dataset.y), np.int64), classes=1, class_names=UNCLASSED)
    return Description(
        train_counts=_counts(dataset, partition.train, partition.relabel),
        test_counts=_counts(dataset, partition.test, partition.relabel),
        class_names=dataset.class_names or tuple(map(str, range(dataset.classes))),
        groups=partition.groups,
        turns=partition.turns,
        relabel=partition.relabel,
        client_names=partition.client_names,
        newcomers=() if partition.newcomers is None else partition.newcomers.client_names,
    )


def _counts(dataset: Dataset, rows: list[np.ndarray], relabel: np.ndarray | None) -> np.ndarray:
    """(N, C) number of each client's rows per label."""
    counts = np.zeros((len(rows), dataset.classes), dtype=np.int64)
    for i, own in enumerate(rows):
        labels = dataset.y[own]
        counts[i] = np.bincount(labels if relabel is None else relabel[i][labels], minlength=dataset.classes)
    return counts


def to_json(description: Description) -> dict[str, Any]:
    """The division, for partition.json in the run directory; `from_json` reads it."""
    values = {field.name: getattr(description, field.name) for field in dataclasses.fields(description)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def from_json(values: dict[str, Any]) -> Description:
    """The inverse of `to_json`."""
    fields: dict[str, Any] = {name: None if value is None else np.array(value) for name, value in values.items()}
    fields |= {name: tuple(values[name]) for name in ("class_names", "client_names", "newcomers") if name in values}
    return Description(**fields)


def table(description: Description, most: int = 20) -> Table:
    """One line per client (the first `most`): sizes, classes, effective classes, the largest classes."""
    left_out = max(0, len(description.counts) - most)
    out = Table(caption=f"and {left_out} more clients" if left_out else None)
    marks = {"group": description.groups, "quarter turns": description.turns}
    shown = {heading: column for heading, column in marks.items() if column is not None}
    out.add_column("client", justify="right", overflow="fold", max_width=LONGEST_NAME)
    for heading in (*shown, "train", "test", *("classes", "effective") * description.classed):
        out.add_column(heading, justify="right", no_wrap=True)
    if description.classed:
        out.add_column("largest classes")
    effective = description.effective_classes
    for i, counts in enumerate(description.counts[:most]):
        largest = [c for c in np.argsort(-counts, kind="stable")[:3] if counts[c] >= 0.005 * counts.sum()]
        told = ", ".join(f"{escape(description.class_names[c])} {counts[c] / counts.sum():.0%}" for c in largest)
        out.add_row(
            escape(description.client_name(i)),
            *(str(column[i]) for column in shown.values()),
            f"{description.train_sizes[i]:,}",
            f"{description.test_sizes[i]:,}",
            *(str(np.count_nonzero(counts)), f"{effective[i]:.1f}", told) * description.classed,
        )
    return out


def draw(description: Description, path: str | Path, title: str = "") -> None:
    """A picture of clients x classes (area = rows) with the sizes; the file's suffix sets the format."""
    from matplotlib.figure import Figure  # no pyplot: no display, no global state
    from matplotlib.ticker import MaxNLocator

    clients, classes = description.counts.shape
    figure = Figure(figsize=(min(4 + 0.22 * classes, 16), min(2 + 0.18 * clients, 24)), layout="constrained")
    grid, bars = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
    if classes <= 30:
        who, what = np.nonzero(description.counts)
        area = description.counts[who, what] / description.counts.max()
        colour = "tab:blue" if description.groups is None else description.groups[who]
        grid.scatter(what, who, s=120 * area, c=colour, cmap=None if description.groups is None else "tab10")
        grid.set_xticks(
            range(classes), description.class_names, rotation=60, ha="right", fontsize="small", parse_math=False
        )
    else:  # too many classes for dots
        grid.imshow(description.shares, aspect="auto", cmap="Blues", interpolation="nearest")
    grid.set(xlabel="class", ylabel="client", ylim=(clients - 0.5, -0.5))
    grid.set_title(title, parse_math=False)
    rows = np.arange(clients)
    bars.barh(rows, description.train_sizes, label="train")
    bars.barh(rows, description.test_sizes, left=description.train_sizes, label="test")
    bars.set(xlabel="samples")
    if description.client_names:
        shown = range(0, clients, -(-clients // MOST_NAMES))
        names = [short(description.client_name(i)) for i in shown]
        grid.set_yticks(shown, names, fontsize="small", parse_math=False)
    else:
        bars.yaxis.set_major_locator(MaxNLocator(integer=True))
    bars.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1))
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"--out {path}: cannot write the picture ({error})") from None
