"""Checks of content: owners, classes, the size of the test part, and the scale of tables and series."""

from collections.abc import Iterator, Sequence

import numpy as np

from feddwa.data.catalogue import is_named
from feddwa.data.dataset import Dataset
from feddwa.data.inputs import Inputs
from feddwa.datacheck.rows import SHOWN, drawn, listed, seen
from feddwa.errors import counted
from feddwa.results.findings import Finding

RARE = 0.01  # share of samples below which a class hardly affects an accuracy
ONE_ANSWER = 0.9  # share of one class above which accuracy means little
FEW_TESTS = 100  # test samples below which an accuracy is uncertain by points
SCALE, RATIO = 10.0, 100.0  # magnitude of a feature, and ratio of two features' deviations, too large for one rate
FEW_FAR = 0.2  # largest share of such values that counts as exceptional
ENOUGH = 20  # rows above which unique values, or values that determine the class, are no coincidence
FAR = 100.0  # interquartile ranges from the median at which a value is probably an error


def overview(dataset: Dataset, inputs: Inputs) -> Iterator[Finding]:
    """Samples, their kind, and owners."""
    tests = len(dataset.y) - dataset.train_count
    classes = f"{dataset.classes} classes" if dataset.classes else "targets that are no classes"
    yield Finding("ok", f"{dataset.train_count:,} training and {tests:,} test samples: {inputs}, {classes}")
    if dataset.owners:
        names = [dataset.client_names[i] if dataset.client_names else str(i) for i in range(min(dataset.owners, SHOWN))]
        more = ", ..." if dataset.owners > SHOWN else ""
        yield Finding("ok", f"{dataset.owners} owners: {', '.join(names)}{more}")
    elif not is_named(dataset.name):
        yield Finding(
            "note",
            "the data name no owners, so clients are drawn at random and alike; a column or folder that says whose a "
            "sample is (--client) makes them different, --partition dirichlet does it artificially",
        )


def classes(dataset: Dataset) -> Iterator[Finding]:
    """Balance: classes with one sample, rare and dominant classes."""
    counts = np.bincount(dataset.y, minlength=dataset.classes)
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    single = [names[i] for i in np.flatnonzero(counts == 1)]
    if single:
        yield Finding(
            "warning",
            f"{listed(single, 'class', 'classes')} with one sample: it is trained or tested, never both; merge such "
            "classes, or leave them out",
        )
    share = counts / counts.sum()
    top = int(share.argmax())
    rare = [names[i] for i in np.flatnonzero((share < min(RARE, 0.1 / dataset.classes)) & (counts > 1))]
    if share[top] >= ONE_ANSWER:
        yield Finding(
            "warning",
            f"{100 * share[top]:.0f} % of the samples are of class {names[top]}: always giving that answer is as good; "
            "compare with it, and look at the other classes by themselves",
        )
    elif rare:
        yield Finding(
            "note",
            f"{listed(rare, 'class', 'classes')} with less than {100 * min(RARE, 0.1 / dataset.classes):.2g} % of the "
            "samples: accuracy hardly sees them; look at them by themselves",
        )
    elif not single:
        low, high = counts.min(), counts.max()
        yield Finding("ok", f"classes have {low:,} to {high:,} samples")


def targets(dataset: Dataset) -> Iterator[Finding]:
    """The scale of numeric targets."""
    mean, spread = float(dataset.y.mean()), float(dataset.y.std())
    if max(abs(mean), spread) > SCALE:
        yield Finding(
            "warning",
            f"targets with mean {mean:.4g} and spread {spread:.4g} are not scaled: a squared error of such numbers "
            "needs a tiny rate; store them less their mean over their spread, or search for a rate with --lr auto",
        )


def tests(dataset: Dataset) -> Iterator[Finding]:
    """Whether the test part is large enough to distinguish accuracies."""
    tests = len(dataset.y) - dataset.train_count
    if tests < FEW_TESTS:
        error = 100 * np.sqrt(0.25 / tests)
        yield Finding(
            "warning",
            f"the whole test part has {counted(tests, 'sample')}: the standard error of an accuracy is up to "
            f"{error:.0f} points; bring more samples, or compare means over several --seed",
        )


def features(dataset: Dataset, inputs: Inputs) -> Iterator[Finding]:
    """Columns of a table, or channels of a series: their scale as the network sees it, constants, outliers."""
    rows = drawn(np.arange(dataset.train_count), dataset)
    values = _columns(dataset, rows)  # (samples, k)
    names, coded = _column_names(dataset, values.shape[1], inputs)
    mean, spread = values.mean(0), values.std(0)
    constant = np.flatnonzero(spread <= 1e-12 * np.maximum(1, abs(mean)))
    if len(constant):
        yield Finding(
            "note",
            f"{listed([names[i] for i in constant], *_noun(inputs))} constant in the training part: nothing can be "
            "learnt from it; leave it out (--drop)",
        )
    rising = [names[i] for i in range(values.shape[1]) if (np.diff(values[:, i]) > 0).all()]
    if inputs.kind == "features" and rising:
        yield Finding(
            "warning",
            f"{listed(rising, 'column', 'columns')} rising from row to row, as numbers of rows and times do: in a file "
            "that is sorted they tell the class; leave them out (--drop, or --time-column)",
        )
    if len(dataset.shape) == 1 and len(rows) >= ENOUGH:
        raw = dataset.x[rows]  # (samples, k)
        yield from _numbering(raw, [name for name in names if name not in rising], names)
        if dataset.classes and dataset.y.ndim == 1:
            yield from _telling(raw, dataset.y[rows], names)
    kept = np.setdiff1d(np.flatnonzero(~coded), constant)
    large = kept[np.maximum(abs(mean[kept]), spread[kept]) > SCALE]
    unlike = len(kept) > 1 and spread[kept].max() > RATIO * spread[kept].min()
    if len(large) or unlike:
        worst = large if len(large) else kept[[spread[kept].argmax(), spread[kept].argmin()]]
        told = [f"{names[i]} (mean {mean[i]:.3g}, spread {spread[i]:.3g})" for i in worst]
        yield Finding(
            "warning",
            f"{listed(told, *_noun(inputs))} not scaled: one rate cannot suit all of them; --standardise scales "
            "them by the training rows",
        )
    elif len(kept):
        yield Finding(
            "ok", f"{_noun(inputs)[1]} have means up to {abs(mean).max():.2g}, spreads up to {spread.max():.2g}"
        )
    yield from _outliers(_columns(dataset, rows, as_read=True), kept, names)


def _numbering(raw: np.ndarray, among: Sequence[str], names: Sequence[str]) -> Iterator[Finding]:
    """Columns with another whole number in every row. raw: (samples, k)."""
    whole = [i for i in np.flatnonzero((raw == np.rint(raw)).all(0)).tolist() if names[i] in among]
    found = [names[i] for i in whole if len(np.unique(raw[:, i])) == len(raw)]
    yield from _of_columns(
        found,
        "with another whole number in every row, as numbers of patients and orders are: memorised, they are of no use "
        "for new samples; leave them out (--drop)",
    )


def _telling(raw: np.ndarray, y: np.ndarray, names: Sequence[str]) -> Iterator[Finding]:
    """Columns whose value alone determines the class. raw: (samples, k); y: (samples,) classes."""
    classes = len(np.unique(y))
    found = []
    for i in range(raw.shape[1] if classes > 1 else 0):
        order = np.lexsort((y, raw[:, i]))
        changes = np.diff(y[order]) != 0
        if changes.sum() == classes - 1 and (np.diff(raw[order, i])[changes] > 0).all():
            found.append(names[i])
    yield from _of_columns(
        found,
        "from whose value alone the class can be told: is it known before the answer is? If not, leave it out (--drop)",
    )


def _of_columns(found: Sequence[str], what: str) -> Iterator[Finding]:
    """A warning about columns, if there are any."""
    if found:
        yield Finding("warning", f"{listed(found, 'column', 'columns')} {what}")


def _outliers(values: np.ndarray, kept: np.ndarray, names: Sequence[str]) -> Iterator[Finding]:
    """Single values far from all others of their column. values: (samples, k) as read; kept: columns to check."""
    low, middle, high = np.percentile(values[:, kept], [25, 50, 75], axis=0) if len(kept) else (np.zeros(0),) * 3
    for place in np.flatnonzero(high > low):
        far = abs(values[:, kept[place]] - middle[place]) > FAR * (high - low)[place]
        if 0 < far.mean() < FEW_FAR:
            worst = values[far.nonzero()[0][0], kept[place]]
            yield Finding(
                "warning",
                f"column {names[kept[place]]}: {far.sum():,} of {len(values):,} values lie more than {FAR:.0f} "
                f"interquartile ranges from the median (e.g. {worst:.4g}): errors of typing or units, or marks of "
                "missing values? They rule the mean and the spread",
            )


def _columns(dataset: Dataset, rows: np.ndarray, as_read: bool = False) -> np.ndarray:
    """(samples, k): features as columns; of series, channels, with a sample for each time step.

    as_read: as they stand in the files; else standardised, as the network sees them.
    """
    x = dataset.x[rows].astype(np.float64) if as_read else seen(dataset, rows)
    if len(dataset.shape) == 2:
        return x.transpose(0, 2, 1).reshape(-1, x.shape[1])
    return x.reshape(len(x), -1)


def _column_names(dataset: Dataset, count: int, inputs: Inputs) -> tuple[list[str], np.ndarray]:
    """The names of the columns, and (k,) whether a column is a one-hot input of a word."""
    columns = [] if dataset.form is None else dataset.form.columns
    named = [(each.name, each.kind == "category") for each in columns for _ in range(each.width)]
    if len(named) != count or inputs.kind != "features":
        named = [(str(number), False) for number in range(count)]
    return [name for name, _ in named], np.array([coded for _, coded in named])


def _noun(inputs: Inputs) -> tuple[str, str]:
    return ("channel", "channels") if inputs.kind == "series" else ("column", "columns")
