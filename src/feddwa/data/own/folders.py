"""Folders of images: <class>/<image>, <client>/<class>/<image>, either of them under train/ and test/."""

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.files import Folder, SplitFolders, split_folders
from feddwa.data.form import InputForm
from feddwa.data.images import Encoded, Tell
from feddwa.data.options import DataOptions
from feddwa.data.own.pictures import Scratch, read_pictures
from feddwa.data.own.plan import Known, make_plan
from feddwa.errors import InputError

USED = ("resize", "skip_broken", "min_samples", "small_clients", "standardise", "split")  # options of such folders


def from_images(folder: Folder, files: list[str], options: DataOptions, scratch: Scratch, tell: Tell) -> Dataset:
    """The dataset of some image files of a folder, whose places say class and client."""
    options.refuse_unused(f"{folder.path}, a folder of images", USED)
    if options.in_time:
        raise InputError(f"--split time: {folder.path} is a folder of images, which have no order in time")
    split = split_folders(folder.path, sorted({_top(file) for file in files} - {""}))
    files, notes = _without_unused(files, split)
    known = _known(folder, files, split)

    def images() -> Encoded:
        return ((folder.where(file), folder.read(file)) for file in files)

    read = read_pictures(images, len(files), lambda keep: make_plan(known, options, keep), options, scratch, tell)
    form = InputForm("images", read.x.shape[1:], resize=options.size is not None)
    return read.plan.dataset(read.x, form, bool(options.standardise), (*notes, *read.notes))


def _without_unused(files: list[str], split: SplitFolders | None) -> tuple[list[str], list[str]]:
    """The files without those of further test parts, and a note on these."""
    unused = sorted({_top(file) for file in files} - {*split, ""}) if split is not None else []
    notes = [f"{', '.join(unused)} not used, as {split.test} is the test part"] if split is not None and unused else []
    return [file for file in files if _top(file) not in unused], notes


def _known(folder: Folder, files: list[str], split: SplitFolders | None) -> Known:
    """Class, client and part of every file by the folders that it is in."""
    parts = [file.split("/")[split is not None : -1] for file in files]
    depths = [len(part) for part in parts]
    depth = max((1, 2), key=depths.count)  # that of most files: the others are those that are named
    if (other := next((i for i, own in enumerate(depths) if own != depth), None)) is not None:
        tops = {_top(file) for file in files}
        hint = f"; or give --dataset {folder.path}/{tops.pop()}" if len(tops) == 1 else ""
        raise InputError(
            f"{folder.where(files[other])}: images must all be in <class>/ or all in <client>/<class>/ folders of "
            f"--dataset {folder.path}{hint}"
        )
    tested = None if split is None or split.test is None else np.array([_top(file) == split.test for file in files])
    client = np.array([part[0] for part in parts]) if depth == 2 else None
    return Known(str(folder.path), np.array([part[-1] for part in parts]), client, tested)


def _top(file: str) -> str:
    """The first folder of a file, "" where it is in none."""
    return file.partition("/")[0] if "/" in file else ""
