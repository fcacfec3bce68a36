"""What the samples of a federation are. The operator's run config fixes it, so that no node can fix it for the others.

A node sends the same text of its own data (`text_of`) and is refused where the two differ; nothing in it is parsed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import get_args

from feddwa import scoring
from feddwa.data.catalogue import DATASETS
from feddwa.data.dataset import Dataset
from feddwa.data.inputs import Inputs, Kind, inputs_of
from feddwa.errors import InputError
from feddwa.flower import layout
from feddwa.flower.codec import Malformed
from feddwa.flower.settings import OWN, FlowerConfig

LABEL, NUMBER = '["<i8", []]', '["<f4", []]'  # layouts of a class and of a real number as the target
LONGEST = 10_000  # characters of a text
CLASSES = 2**20  # most classes of a run


@dataclass(frozen=True)
class Samples:
    """The form of all samples of a run."""

    inputs: Inputs  # of the network
    targets: str  # layout of a target
    classes: int  # number of classes; 0: targets are not classes
    names: str | None  # digest of the class names; None: all nodes read the same files

    def __str__(self) -> str:
        facts = {"inputs": self.inputs.as_json(), "targets": json.loads(self.targets), "classes": self.classes}
        return json.dumps(facts, sort_keys=True)


def text_of(dataset: Dataset) -> str:
    """The samples of a dataset as text."""
    return str(Samples(inputs_of(dataset), layout.of(dataset.y), dataset.classes, None))


def digest(names: Sequence[str]) -> str:
    """SHA-256 of class names in their order: equal where two nodes number the classes alike."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def samples_of(config: FlowerConfig) -> Samples | None:
    """The samples of a run: what `samples` says, else the catalogue's entry of its dataset; None where neither does."""
    names = digest(config.class_names) if config.dataset == OWN else None
    if config.samples is not None:
        return _read(config.samples, names)
    info = DATASETS.get(config.dataset)
    if info is None:
        return None
    targets, classes = (NUMBER, 0) if config.loss in scoring.NUMERIC else (LABEL, info.classes)
    return Samples(Inputs.of(info.shape, info.vocabulary), targets, classes, names)


def _read(text: str, names: str | None) -> Samples:
    """The reverse of `str`; raises InputError where the text describes nothing that a network can be built for."""
    try:
        facts = json.loads(text)
        inputs, targets, classes = Inputs.from_json(facts["inputs"]), json.dumps(facts["targets"]), facts["classes"]
        layout.blank(targets, 1)
        parts = [inputs, *inputs.parts.values()]
        numbers = [number for part in parts for number in (*part.shape, part.vocabulary + 1)]
        right = all(type(number) is int and number > 0 for number in numbers)
        right &= all(part.kind in get_args(Kind) and prod(part.shape) <= layout.LARGEST for part in parts)
        right &= type(classes) is int and 0 <= classes <= CLASSES and len(text) <= LONGEST
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Malformed):
        right = False
    if not right:
        raise InputError(f"run config samples: got {text[:200]!r}, must be what a run without it says that a node has")
    return Samples(inputs, targets, classes, names)
