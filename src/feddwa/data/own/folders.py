"""Folders of images: <class>/<image>, <client>/<class>/<image>, either of them under train/ and test/."""

from collections import Counter
from pathlib import PurePath

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.files import Folder
from feddwa.data.form import InputForm
from feddwa.data.images import Encoded, Tell
from feddwa.data.options import DataOptions
from feddwa.data.own.pictures import Scratch, read_pictures
from feddwa.data.own.plan import Known, make_plan
from feddwa.data.tables import TEST_SPLITS
from feddwa.errors import InputError, counted

USED = ("resize", "skip_broken", "min_samples", "small_clients", "standardise", "split")  # options of such folders


def from_images(
    name: str, folder: Folder, files: list[str], options: DataOptions, scratch: Scratch, tell: Tell
) -> Dataset:
    """The dataset of some image files of a folder, whose places say class and client."""
    options.refuse_unused(f"{folder.path}, a folder of images", USED)
    if options.in_time:
        raise InputError(f"--split time: {folder.path} is a folder of images, which have no order in time")
    parts = [file.split("/")[:-1] for file in files]
    is_test = None
    tops = {part[0] for part in parts if part}
    if "train" in tops and tops <= {"train", *TEST_SPLITS}:
        is_test = np.array([bool(part) and part[0] != "train" for part in parts])
        parts = [part[1:] for part in parts]
    depth = max(map(len, parts))
    other = next((i for i, part in enumerate(parts) if len(part) != depth or depth not in (1, 2)), None)
    if other is not None:
        raise InputError(
            f"{folder.where(files[other])}: images must all be in <class>/ or all in <client>/<class>/ folders of "
            f"--dataset {folder.path}"
        )
    client = np.array([part[0] for part in parts]) if depth == 2 else None
    known = Known(name, np.array([part[-1] for part in parts]), client, is_test)

    def images() -> Encoded:
        return ((folder.where(file), folder.read(file)) for file in files)

    found = read_pictures(images, len(files), lambda keep: make_plan(known, options, keep), options, scratch, tell)
    form = InputForm("images", found.x.shape[1:], resize=options.size is not None)
    return found.plan.dataset(found.x, form, bool(options.standardise), (*_passed_over(folder, files), *found.notes))


def _passed_over(folder: Folder, files: list[str]) -> list[str]:
    """A note on the files of the folder that are not used: photos in a format that is not read here, tables."""
    others = [*folder.others, *(set(folder.names) - set(files))]
    kinds = Counter(PurePath(name).suffix or "without a suffix" for name in sorted(others))
    told = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common())
    return [f"{counted(len(others), 'file')} of other kinds passed over: {told}"] if others else []
