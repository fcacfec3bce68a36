"""Datasets by name or path. The order of look-up: files that the user has, the cache, the hub."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from feddwa import plugins
from feddwa.data import cache, hub, own, tables
from feddwa.data.catalogue import SOURCES, Source
from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.files import Tree
from feddwa.data.images import decode
from feddwa.data.originals import Raw
from feddwa.errors import InputError, require
from feddwa.plugins import Unfit, accepted

DATASETS: dict[str, str] = {
    "digits": "1,797 handwritten digits, 8x8 grey, 10 classes; installed with scikit-learn",
    **{name: source.summary for name, source in SOURCES.items()},
}


def adopt(function: Any) -> Callable[[str | None], Dataset]:
    """A function from outside the package as a dataset; it is given `data_dir` if it names it."""
    if not callable(function) or isinstance(function, type):
        raise Unfit(f"is a {type(function).__name__}, must be a function that returns a feddwa.data.dataset.Dataset")
    names = accepted(function, ("data_dir",))
    return lambda data_dir: function(**dict.fromkeys(names, data_dir))


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """The dataset `name`, its files looked for in `data_dir` (default FEDDWA_DATA), or own data at the path `name`."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"--data-dir: no folder {data_dir}")
    if name == "digits":
        return digits()
    if name in SOURCES:
        return _named(SOURCES[name], data_dir or os.environ.get("FEDDWA_DATA"))
    if Path(name).exists():
        return own.load_own(name)
    plugins.check_dataset(name)
    return _foreign(name, data_dir)


def _foreign(name: str, data_dir: str | Path | None) -> Dataset:
    """What a function from outside the package returns."""
    made = plugins.DATASETS.find(name)(data_dir or os.environ.get("FEDDWA_DATA"))
    require(isinstance(made, Dataset), f"--dataset {name}", type(made).__name__, "a function that returns a Dataset")
    return made  # type: ignore[no-any-return]  # checked above


def digits() -> Dataset:
    """Scikit-learn's digits with a fixed stratified 80/20 split; no file, no network."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    order, train_count = hold_out(np.zeros(len(labels), dtype=np.int64), labels)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # 0..16 in the file; sixteenths are exact in float32
    return Dataset("digits", images[order], labels[order], train_count, 10, class_names=tuple("0123456789"))


def _named(source: Source, data_dir: str | Path | None) -> Dataset:
    tried = []
    if data_dir is None:
        tried.append("--data-dir and FEDDWA_DATA (not set)")
    else:
        places = _places(source, Path(data_dir))
        for place in places:
            if place.exists() and (dataset := _from_files(source, place)) is not None:
                return dataset
        tried.append(f"{data_dir} (nothing readable under {', '.join(place.name for place in places)})")
    if (dataset := cache.find(source.name)) is not None:
        return dataset
    tried.append(f"cache {cache.root()} (no entry)")
    try:
        return _from_hub(source)
    except InputError as error:
        tried.append(f"hub {source.hub.id} ({error})")
    raise InputError(
        f"--dataset {source.name}: not found; tried {'; '.join(tried)}. Put its Parquet or original files into "
        f"DIR/{source.name} and pass --data-dir DIR, or install 'feddwa[hub]' and connect to a network"
    )


def _places(source: Source, data_dir: Path) -> list[Path]:
    """Where the files may be: under a name of the dataset, or the folder itself where it bears one."""
    if not data_dir.is_dir():
        raise InputError(f"--data-dir: no folder {data_dir}")
    names = list(dict.fromkeys([source.name, source.name.replace("-", "_"), *source.places]))
    return [data_dir / name for name in names] + ([data_dir] if data_dir.name in names else [])


def _from_files(source: Source, place: Path) -> Dataset | None:
    """From the cache where these very files were decoded before, else decoded now; None where it holds other things."""
    tree = Tree(place)
    if (known := cache.find(source.name, tree.fingerprint)) is not None:
        return known
    raw = _read(source, tree)
    return None if raw is None else cache.store(source.name, tree.fingerprint, _dataset(source, raw, place))


def _from_hub(source: Source) -> Dataset:
    tree = Tree(hub.download(source.hub))
    raw = _read(source, tree)
    if raw is None:
        raise InputError("the files are not there")
    rows = raw.train_count, len(raw.y) - raw.train_count
    if rows != source.rows:
        raise InputError(f"got {rows} training and test rows, must be {source.rows}")
    if source.hub.transposed:
        raw = raw._replace(x=np.ascontiguousarray(raw.x.swapaxes(2, 3)))
    return cache.store(source.name, tree.fingerprint, _dataset(source, raw, tree.path))


def _read(source: Source, tree: Tree) -> Raw | None:
    shared = tree.path.name.lower() == "emnist" != source.name  # IDX files of all its parts; Parquet there is byclass
    if tree.path.is_dir() and not shared and (train := tables.split_files(tree.path, "train")):
        return _parquet(source, train, tables.held_out_files(tree.path))
    return source.original(tree, source.shape)


def _parquet(source: Source, train: list[Path], test: list[Path]) -> Raw:
    """The hub's layout: a column of encoded images and a column of labels, in one or more files per split."""
    if not test:
        raise InputError(f"{train[0].parent}: no test split; looked for {', '.join(tables.TEST_SPLITS)}")
    columns = []
    for file in (*train, *test):
        schema = tables.open_parquet(file).schema_arrow
        image = tables.pick(file, schema.names, tables.IMAGE_COLUMNS, "image")
        columns.append((file, image, tables.pick(file, schema.names, source.label, "label")))
    y = [tables.integer_labels(file, label) for file, _, label in columns]
    images = (named for file, image, _ in columns for named in tables.encoded_images(file, image))
    names = tables.class_names(train[0], columns[0][2])
    count = sum(map(len, y))
    x = decode(images, count, source.shape, source.reduce)
    return Raw(x, np.concatenate(y), sum(map(len, y[: len(train)])), names)


def _dataset(source: Source, raw: Raw, place: Path) -> Dataset:
    """The rows with the facts of the catalogue; the number of classes must agree."""
    names = raw.class_names or source.class_names
    found = max(len(names), int(raw.y.max()) + 1)
    if found > source.classes or raw.y.min() < 0 or (names and len(names) != source.classes):
        raise InputError(f"{place}: has {found} classes, {source.name} has {source.classes}")
    normalised = Dataset(source.name, raw.x, raw.y, raw.train_count, source.classes, class_names=names)
    return replace(normalised, mean=source.mean, std=source.std)
