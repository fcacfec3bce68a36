"""Tables of any origin as a dataset: which column is what, which rows stay, what becomes of the features."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from feddwa.data import arrays, columns, labels, tables
from feddwa.data.columns import Column, Rows
from feddwa.data.dataset import Dataset
from feddwa.data.files import TEST_SPLITS, TRAIN_SPLITS
from feddwa.data.form import InputForm
from feddwa.data.images import Tell
from feddwa.data.labels import in_words
from feddwa.data.options import CLIENT, LABEL, DataOptions
from feddwa.data.own.pictures import Scratch, in_memory, read_pictures
from feddwa.data.own.plan import Known, make_plan
from feddwa.data.tables import Part
from feddwa.errors import InputError

# Options of any table, of one with features, and of one with a column of images.
OF_ROWS = ("label", "client", "test_column", "time_column", "drop", "split", "min_samples", "small_clients")
OF_FEATURES = (*OF_ROWS, "impute", "standardise", "max_categories")
OF_IMAGES = (*OF_ROWS, "standardise", "resize", "skip_broken")
_CLIENT = re.compile(
    "client([ _-]?(id|name))?", re.IGNORECASE
)  # what `--client` must name, or `--drop`, but for "client"
_TRUE, _FALSE = ("1", "1.0", "true", "yes", *TEST_SPLITS), ("0", "0.0", "false", "no", *TRAIN_SPLITS)


def text_columns(options: DataOptions) -> tuple[str, ...]:
    """Columns of names, which stay text while CSV is read."""
    return tuple(filter(None, (options.label or LABEL, options.client or CLIENT, options.test_column)))


def from_parts(
    name: str,
    train: Sequence[Part],
    test: Sequence[Part],
    options: DataOptions,
    scratch: Scratch = in_memory,
    tell: Tell = lambda done, total: None,
) -> Dataset:
    """The dataset of some tables; where none of them is there to test, a share of the rows is held out."""
    parts = [*train, *test]
    empty = [part for part in parts if part.table.num_rows == 0]
    if empty:
        raise InputError(f"{empty[0].where}: no rows")
    images = bool(parts[0].image_column)
    what = "a table of images" if images else "a table without images"
    options.refuse_unused(f"{name}, {what}", OF_IMAGES if images else OF_FEATURES)
    table = _Table(name, Rows(parts), len(train), options)
    return table.pictures(scratch, tell) if images else table.features()


class _Table:
    """The columns of a table by what they are for."""

    def __init__(self, name: str, rows: Rows, train_parts: int, options: DataOptions) -> None:
        self.name, self.rows, self.options = name, rows, options
        self.notes: list[str] = []
        self.label = self._pick(options.label or LABEL, "label", "; name it with --label COLUMN")
        self.client = self._client()
        self.time = options.time_column and self._pick(options.time_column, "time")
        self.test = options.test_column and self._pick(options.test_column, "test")
        for name in options.dropped:
            self._pick(name, "dropped")
        special = [each for each in (self.label, self.client, self.time, self.test) if each]
        self._refuse_shared()
        self.unused = [*(each for each in special if each != self.label), *options.dropped]
        self.unused += [each for each in rows.names if each not in [*special, *self.unused] and self._is_idle(each)]
        self.inputs = [each for each in rows.names if each not in (self.label, *self.unused)]
        self.known = self._known(train_parts)

    def _refuse_shared(self) -> None:
        """Raise where one column has two uses."""
        uses = {"--label": self.label, "--client": self.client, "--time-column": self.time, "--test-column": self.test}
        image = self.rows.parts[0].image_column
        named = {image: "the images"} if image else {}
        for option, column in uses.items():
            if column and column in named:
                raise InputError(f"{option} {column}: is the column of {named[column]}, too; name another one")
            named |= {column: option} if column else {}
        for column in self.options.dropped:
            if column in named:
                raise InputError(f"--drop {column}: is the column of {named[column]}, which is needed")

    def _pick(self, name: str, what: str, hint: str = "") -> str:
        found = [*self.rows.names, *filter(None, [self.rows.parts[0].image_column])]
        return tables.pick(self.rows.parts[0].where, found, (name,), what, hint)

    def _client(self) -> str | None:
        """The column of owners; where there is none, or nobody named it and it is dropped, the files are the owners."""
        if self.options.client is not None:
            return self._pick(self.options.client, "client")
        others = [name for name in self.rows.names if name not in self.options.dropped]
        likely = next((name for name in others if _CLIENT.fullmatch(name)), None)
        if CLIENT not in others and likely is not None:
            raise InputError(
                f"{self.rows.parts[0].where}: column {likely!r} seems to say whose row it is; --client {likely} takes "
                f"it so, --drop {likely} leaves it out"
            )
        return CLIENT if CLIENT in others else None

    def _is_idle(self, name: str) -> bool:
        """Whether a column is left out, and told: it counts the rows, or has neither a name nor a value."""
        if columns.counts_rows(self.rows, name):
            self.notes.append(f"column {name!r} counts the rows, left out")
            return True
        if name == "" and bool(tables.missing(self.rows.column(name)).all()):
            self.notes.append("a column without a name is empty, left out")
            return True
        return False

    def _known(self, train_parts: int) -> Known:
        """Labels, owners, test marks and times of all rows."""
        orders = {part.class_names.get(self.label, ()): part.where for part in self.rows.parts}
        if len(orders) > 1:
            raise InputError(f"{list(orders.values())[1]}: names its classes otherwise than {self.rows.parts[0].where}")
        names = next(iter(orders))
        y = self._names(self.label, "label")
        client = None
        if self.client is not None:
            client = self._names(self.client, "client")
        elif self.rows.parts[0].owner:
            client = np.repeat([part.owner for part in self.rows.parts], np.diff(self.rows.starts))
            self.notes.append(f"clients are the files: {in_words(list(dict.fromkeys(client.tolist())))}")
        return Known(self.name, y, client, self._is_test(train_parts), self._when(), names)

    def _names(self, name: str, what: str) -> np.ndarray:
        """A column of labels or owners, none of them missing unless such rows are left out."""
        names = self.rows.parts[0].class_names.get(name, ()) if what == "label" else ()
        self._refuse_dates(name)
        values = tables.names_column(self.rows.parts[0].where, self.rows.column(name), name, names)
        values = tables.texts(values) if all(part.is_text for part in self.rows.parts) else values
        if what == "label" and values.dtype.kind == "U" and columns.are_dates(values.tolist()):
            raise self._dates(name)
        if self.options.impute != "drop":
            for part, (start, end) in zip(self.rows.parts, self._ends(), strict=True):
                labels.refuse_missing(part.where, what, values[start:end])
        return values

    def _refuse_dates(self, name: str) -> None:
        kind = self.rows.column(name).type
        if pa.types.is_temporal(kind):
            raise self._dates(name)

    def _dates(self, name: str) -> InputError:
        return InputError(f"{self.rows.parts[0].where}: column {name!r} holds dates; must be numbers or names")

    def _ends(self) -> Iterator[tuple[int, int]]:
        return zip(self.rows.starts[:-1].tolist(), self.rows.starts[1:].tolist(), strict=True)

    def _is_test(self, train_parts: int) -> np.ndarray | None:
        """(n,) which rows test, as the files or a column of them say; None where neither does."""
        if self.test is None or self.test == "":
            if train_parts == len(self.rows.parts):
                return None
            test: np.ndarray = np.arange(len(self.rows)) >= self.rows.starts[train_parts]
            return test
        if train_parts < len(self.rows.parts):
            raise InputError(f"--test-column: {self.name} has a test part of its own; leave it out")
        column = self.rows.column(self.test)
        marks = [str(value).strip().lower() for value in column.to_pylist()]
        strange = next((row for row, mark in enumerate(marks) if mark not in (*_TRUE, *_FALSE)), None)
        if strange is not None:
            raise InputError(
                f"{self.rows.where(strange)}: {marks[strange]!r} in column {self.test!r}; must be true or false, 1 or "
                "0, test or train"
            )
        splits = [mark for mark in TEST_SPLITS if mark in marks]
        if len(splits) > 1:
            raise InputError(
                f"{self.name}: column {self.test!r} marks rows as {splits[0]} and as {splits[1]}; only one of them can "
                "test: leave the rows of the other out"
            )
        is_test = np.isin(marks, _TRUE)
        if is_test.all() or not is_test.any():
            raise InputError(f"{self.name}: column {self.test!r} marks {'all' if is_test.all() else 'no'} rows as test")
        return is_test

    def _when(self) -> np.ndarray | None:
        """(n,) the place of each row in time."""
        if not self.time:
            return None
        column = tables.plain(self.rows.column(self.time))
        gaps = tables.missing(column)
        if gaps.any():
            raise InputError(f"{self.rows.where(int(gaps.argmax()))} has no time in column {self.time!r}")
        if tables.is_text(column.type):
            values = columns.words(column)
            strange = next((row for row, text in enumerate(values.tolist()) if not text[:4].isdigit()), None)
            if strange is not None:
                raise InputError(
                    f"{self.rows.where(strange)}: {str(values[strange])!r} in column {self.time!r} is no time; must be "
                    "numbers, or dates such as 2026-01-31"
                )
            return np.unique(values, return_inverse=True)[1]
        if not (tables.is_number(column.type) or pa.types.is_temporal(column.type)):
            raise InputError(f"{self.rows.parts[0].where}: column {self.time!r} holds {column.type}, which is no time")
        return np.unique(np.asarray(column.to_numpy()), return_inverse=True)[1]

    def features(self) -> Dataset:
        """The dataset of numbers, words, lists or token ids."""
        keep = self._complete()
        plan = make_plan(self.known, self.options, keep)
        fitted = columns.fit(self.rows, self.inputs, plan.rows[: plan.train_count], self.options)
        x = columns.inputs(self.rows, fitted, plan.rows)
        tokens = fitted[0].kind == "tokens"
        if tokens:
            x = arrays.samples(self.name, x, tokens=True)
            if self.options.standardise:
                raise InputError(f"--standardise: {self.name} has token ids, which are no numbers; leave it out")
        self.notes += columns.coding(fitted) + columns.changes(self.rows, fitted, plan.rows)
        form = InputForm("table", x.shape[1:], tokens, fitted, self.label, tuple(self.unused))
        standardise = not tokens and self.options.standardise is not False
        return plan.dataset(x, form, standardise, self.notes)

    def pictures(self, scratch: Scratch, tell: Tell) -> Dataset:
        """The dataset of a column of encoded images."""
        image = self.rows.parts[0].image_column
        if self.inputs:
            self.notes.append(f"the samples are the images in column {image!r}; not used: {in_words(self.inputs)}")
        found = read_pictures(
            lambda: (each for part in self.rows.parts for each in part.images()),
            len(self.rows), lambda keep: make_plan(self.known, self.options, keep), self.options, scratch, tell,
        )  # fmt: skip
        unused = (*self.unused, *self.inputs)
        own, resize = (Column(image, "image"),), self.options.size is not None
        form = InputForm("table", found.x.shape[1:], False, own, self.label, unused, resize)
        return found.plan.dataset(found.x, form, bool(self.options.standardise), (*self.notes, *found.notes))

    def _complete(self) -> np.ndarray | None:
        """(n,) which rows have every value, where others are left out."""
        if self.options.impute != "drop":
            return None
        needed = [*self.inputs, self.label, *filter(None, [self.client])]
        gaps = np.zeros(len(self.rows), dtype=bool)
        for name in needed:
            column = self.rows.column(name)
            gaps |= tables.missing(column)
        for values in (self.known.y, self.known.client):
            if values is not None and values.dtype.kind in "fU":
                gaps |= np.isnan(values) if values.dtype.kind == "f" else np.char.strip(values) == ""
        if gaps.any():
            self.notes.append(f"{int(gaps.sum()):,} of {len(gaps):,} rows have missing values, left out")
        return ~gaps
