"""Hugging Face datasets: a folder written by `save_to_disk`, or a repository of the hub, as tables."""

import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from feddwa.data import tables
from feddwa.data.files import TEST_SPLITS, first_line
from feddwa.data.tables import Part
from feddwa.errors import InputError
from feddwa.plugins import HUB

MARKS = ("dataset_dict.json", "state.json")  # files that `save_to_disk` writes


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / mark).is_file() for mark in MARKS)


def load_saved(folder: Path) -> Any:
    """The Dataset or DatasetDict in a folder."""
    load = _package(str(folder)).load_from_disk
    try:
        return load(str(folder))
    except Exception as error:  # foreign code, and files that may be damaged
        raise InputError(f"{folder}: not a readable dataset of `save_to_disk` ({first_line(error)})") from None


def load_remote(name: str) -> Any:
    """The splits of a repository of the hub; NAME@REVISION takes one commit of it."""
    repository, _, revision = name.removeprefix(HUB).partition("@")
    fetch, chatter = _package(f"--dataset {name}").load_dataset, logging.getLogger("huggingface_hub")
    level = chatter.level
    chatter.setLevel(logging.CRITICAL)  # it prints a line for each attempt
    try:
        return fetch(repository, revision=revision or None)
    except Exception as error:  # no network, no such repository, no such revision
        raise InputError(
            f"--dataset {name}: cannot be fetched ({type(error).__name__}: {first_line(error)}); fetch it elsewhere, "
            "save it with save_to_disk, and give the folder"
        ) from None
    finally:
        chatter.setLevel(level)


def _package(where: str) -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise InputError(f"{where}: package datasets is not installed: pip install 'feddwa[hub]'") from None


def parts_of(where: str, found: Any) -> tuple[list[Part], list[Part], list[str]]:
    """Training parts, test parts and notes of a Dataset, or of a DatasetDict with its splits."""
    if not isinstance(found, Mapping):
        return [_part(where, found)], [], []
    names = list(found)
    if len(names) == 1:
        return [_part(f"{where}: {names[0]}", found[names[0]])], [], []
    test = next((name for name in TEST_SPLITS if name in names), None)
    if "train" not in names or test is None:
        raise InputError(f"{where}: has the splits {', '.join(names)}; must have train, and test or validation")
    others = [name for name in names if name not in ("train", test)]
    notes = [f"splits {', '.join(others)} are not used"] if others else []
    return [_part(f"{where}: train", found["train"])], [_part(f"{where}: {test}", found[test])], notes


def fingerprint(found: Any) -> str:
    """A text that changes with the content, from the package itself."""
    splits = found if isinstance(found, Mapping) else {"": found}
    return " ".join(f"{name}={split._fingerprint}" for name, split in splits.items())


def _part(where: str, dataset: Any) -> Part:
    """The rows of a Dataset; its images stay on disk until they are decoded."""
    names = {name: tuple(feature.names) for name, feature in dataset.features.items() if hasattr(feature, "names")}
    schema = dataset.features.arrow_schema
    image = tables.image_column(schema)
    rest = [name for name in schema.names if name != image]
    table = dataset.select_columns(rest).with_format("arrow")[:]

    def images() -> Iterator[tuple[str, bytes]]:
        tables.check_images(where, image, schema.field(image).type)
        blocks = dataset.select_columns([image]).with_format("arrow").iter(batch_size=tables.BLOCK)
        return tables.images_of(where, (chunk for block in blocks for chunk in block[image].chunks))

    return Part(where, table, False, image, images, names)
