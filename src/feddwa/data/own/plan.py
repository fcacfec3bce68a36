"""Who has which rows, and which of them test: decided from labels and owners alone, before any sample is decoded."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddwa.data import arrays, labels
from feddwa.data.dataset import Dataset, hold_out, hold_out_last
from feddwa.data.form import InputForm
from feddwa.data.labels import in_words
from feddwa.data.options import DataOptions
from feddwa.errors import InputError, counted

EVERYBODY = DataOptions()  # options where none are given


@dataclass(frozen=True)
class Plan:
    """The rows of a dataset and what is known of them, training rows first."""

    name: str
    rows: np.ndarray  # (m,) int64 numbers of rows in the files
    train_count: int
    y: np.ndarray  # (m, ...)
    classes: int
    class_names: tuple[str, ...]
    client: np.ndarray | None  # (m,)
    client_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def dataset(self, x: np.ndarray, form: InputForm, standardise: bool, notes: Sequence[str] = ()) -> Dataset:
        """The dataset with the samples x (m, ...) of these rows; standardise: set mean and spread of training rows."""
        mean, std = arrays.statistics(x[: self.train_count]) if standardise else (np.zeros(0), np.ones(0))
        if form.columns and standardise:  # words stay 0 and 1
            widths = [column.width for column in form.columns]
            words = np.repeat([column.kind == "category" for column in form.columns], widths)
            if len(words) == len(mean):
                mean, std = np.where(words, 0.0, mean), np.where(words, 1.0, std)
        return Dataset(
            self.name, x, self.y, self.train_count, self.classes, tuple(mean.tolist()), tuple(std.tolist()),
            self.class_names, self.client, self.client_names,
            dataclasses.replace(form, class_names=self.class_names), (*self.notes, *notes),
        )  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Labels and owners of the rows in the files, in their order."""

    name: str  # of the dataset, as errors call it
    y: np.ndarray  # (n, ...) as in the files
    client: np.ndarray | None = None  # (n,)
    is_test: np.ndarray | None = None  # (n,) bool; None: a fifth is held out
    when: np.ndarray | None = None  # (n,) time of each row
    class_order: tuple[str, ...] = ()  # all classes in their order, where the files say it


def make_plan(known: Known, options: DataOptions = EVERYBODY, keep: np.ndarray | None = None) -> Plan:
    """Number labels and owners, leave out small clients, hold out test rows. keep: (n,) bool, rows that may stay."""
    _check(known, options)
    kept = np.arange(len(known.y)) if keep is None else np.flatnonzero(keep)
    if not len(kept):
        raise InputError(f"{known.name}: no row is left")
    kept, notes = _without_small_clients(known, kept, options)
    targets, classes, class_names = labels.targets(known.name, known.y[kept], known.class_order)
    owners, client_names = np.zeros(len(kept), dtype=np.int64), tuple[str, ...]()
    if known.client is not None:
        owners, client_names = labels.numbered(known.name, "client", known.client[kept])
    order, train_count = _split(known, kept, owners, targets, options)
    notes += [*_doubts("label", class_names), *_doubts("client", client_names)]
    if known.is_test is not None:
        notes += _only_tested(targets[order], train_count, class_names)
    return Plan(
        known.name, kept[order], train_count, targets[order], classes, class_names,
        None if known.client is None else owners[order], client_names, tuple(notes),
    )  # fmt: skip


def _doubts(what: str, names: Sequence[str]) -> list[str]:
    """Notes on names that may be errors of typing, or stand for a missing value."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.casefold(), []).append(name)
    alike = [" and ".join(group) for group in cases.values() if len(group) > 1]
    gaps = [name for name in names if name in labels.MISSING]
    told = [f"{what}s that differ in upper and lower case alone: {in_words(alike)}"] if alike else []
    return told + [f"{what} {name!r} is a name; where a value is missing, leave the cell empty" for name in gaps]


def _only_tested(targets: np.ndarray, train_count: int, names: Sequence[str]) -> list[str]:
    """A note on labels without a training sample; targets: (m, ...), training rows first."""
    only = np.setdiff1d(targets[train_count:], targets[:train_count]) if names else np.zeros(0, dtype=np.int64)
    told = f"{counted(len(only), 'label')} that only test samples have: "
    return [told + in_words([names[number] for number in only.tolist()])] if len(only) else []


def _check(known: Known, options: DataOptions) -> None:
    columns = [known.y] if known.client is None else [known.y, known.client]
    if any(column.ndim == 0 or column.dtype.kind not in "fiubUS" for column in columns):
        raise InputError(f"{known.name}: x and y must be arrays with a sample axis, y and client of numbers or names")
    if known.client is not None and known.client.ndim != 1:
        raise InputError(f"{known.name}: client has shape {known.client.shape}, must be a list with one owner a sample")
    if options.min_samples is not None and known.client is None:
        raise InputError(f"--min-samples: {known.name} does not say whose rows they are; name a column with --client")
    if len(known.y) < 2:
        raise InputError(
            f"{known.name}: has {counted(len(known.y), 'row')}, must be at least 2: one to train, one to test"
        )
    if options.split is not None and known.is_test is not None:
        raise InputError(f"--split: {known.name} has a test part of its own; leave it out")


def _split(
    known: Known, kept: np.ndarray, owners: np.ndarray, targets: np.ndarray, options: DataOptions
) -> tuple[np.ndarray, int]:
    """An order of the kept rows with test rows last, and the number of training rows."""
    if known.is_test is not None:
        is_test = known.is_test[kept]
        return np.argsort(is_test, kind="stable"), int((~is_test).sum())
    if options.in_time:
        return hold_out_last(owners, None if known.when is None else known.when[kept])
    return hold_out(owners, targets if targets.ndim == 1 else np.zeros(len(kept)))


def _without_small_clients(known: Known, kept: np.ndarray, options: DataOptions) -> tuple[np.ndarray, list[str]]:
    """The rows of clients that have enough of them, and a note about the others."""
    if known.client is None:
        return kept, []
    owners, names = labels.numbered(known.name, "client", known.client[kept])
    sizes, least = np.bincount(owners), options.min_samples or 2
    small = sizes < least
    if options.min_samples is not None and known.is_test is not None:  # both parts are needed
        tests = np.bincount(owners[known.is_test[kept]], minlength=len(names))
        small = small | (tests == 0) | (tests == sizes)
    elif known.is_test is not None:
        small = sizes < 1  # whether both parts are there is checked where the data are divided
    if not small.any():
        return kept, []
    told = in_words([f"{names[i]} ({sizes[i]})" for i in np.flatnonzero(small)])
    if options.min_samples is None:
        first, others = names[int(small.argmax())], int(small.sum()) - 1
        more = f" (and {counted(others, 'other client')})" if others else ""
        hint = "what names the clients numbers the rows" if small.all() else "--min-samples 2 leaves such clients out"
        raise InputError(
            f"{known.name}: client {first}{more} has 1 sample, must be at least 2 (train and test); {hint}"
        )
    if options.small_clients == "refuse" or small.all():
        raise InputError(
            f"--min-samples {least}: {int(small.sum())} of {len(names)} clients of {known.name} have fewer samples, or "
            f"none to train or test: {told}"
        )
    return kept[~small[owners]], [f"{int(small.sum())} of {len(names)} clients have too few samples, left out: {told}"]


def assemble(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    client: np.ndarray | None = None,
    is_test: np.ndarray | None = None,
    tokens: bool = False,
    options: DataOptions = EVERYBODY,
) -> Dataset:
    """A dataset from arrays in any row order: labels and owners become numbers with names, test rows are put last.

    `tokens` says that x (n, length) are token ids: whole numbers alone do not tell them from other numbers.
    """
    if x.ndim == 0 or y.ndim == 0:
        raise InputError(f"{name}: x and y must be arrays with a sample axis, y and client of numbers or names")
    columns = [y] if client is None or client.ndim != 1 else [y, client]
    if len(x) == 0 or any(len(column) != len(x) for column in columns):
        found = ", ".join(
            counted(len(each), what) for each, what in zip((x, *columns), ("sample", "label", "client"), strict=False)
        )
        raise InputError(f"{name}: {found}; must be as many of each, and at least one")
    known = Known(name, y, client, is_test)
    _check(known, options)
    plan = make_plan(known, options)
    samples = arrays.samples(name, x, tokens)[plan.rows]
    if samples.ndim < 2:
        raise InputError(f"{name}: x has shape {x.shape}; one number for each sample must be a column, ({len(x)}, 1)")
    if options.standardise and tokens:
        raise InputError(f"--standardise: {name} has token ids; leave it out")
    return plan.dataset(samples, InputForm("arrays", samples.shape[1:], tokens), bool(options.standardise))
