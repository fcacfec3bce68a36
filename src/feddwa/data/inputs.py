"""The input of a network: the shape of a sample and the meaning of its numbers. Networks are built from this alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from feddwa.data.dataset import Dataset

Shape = tuple[int, ...]
Kind = Literal["image", "series", "features", "tokens", "several"]


@dataclass(frozen=True)
class Inputs:
    """The network's view of a dataset's samples."""

    shape: Shape  # of one sample: image (C, H, W), series (C, L), features (k,), tokens (L,), several ()
    kind: Kind = "features"
    vocabulary: int = 0  # of tokens: ids are 0 to vocabulary - 1
    parts: Mapping[str, "Inputs"] = field(default_factory=dict)  # several inputs, by name

    @classmethod
    def of(cls, shape: Shape, vocabulary: int = 0) -> "Inputs":
        """The inputs of a shape: the number of axes defines the kind; integers below `vocabulary` are ids."""
        kinds: dict[int, Kind] = {2: "series", 3: "image"}
        return cls(shape, "tokens", vocabulary) if vocabulary else cls(shape, kinds.get(len(shape), "features"))

    def __str__(self) -> str:
        if self.kind == "several":
            return "; ".join(f"{name}: {part}" for name, part in self.parts.items())
        noun = {"image": "images", "tokens": "token ids"}.get(self.kind, self.kind)
        return f"{noun} {self.shape}"

    def blank(self, rows: int) -> np.ndarray:
        """Samples (rows, *shape) of zeros with these inputs; for token ids, the last one is the largest."""
        if self.kind == "several":
            parts = {name: part.blank(rows) for name, part in self.parts.items()}
            x = np.zeros(rows, dtype=[(name, part.dtype, part.shape[1:]) for name, part in parts.items()])
            for name, part in parts.items():
                x[name] = part
            return x
        x = np.zeros((rows, *self.shape), dtype=np.int64 if self.kind == "tokens" else np.float32)
        if self.kind == "tokens":
            x[-1, -1] = self.vocabulary - 1
        return x

    def as_json(self) -> dict[str, Any]:
        """The inputs in JSON's types; `from_json` reads them."""
        found: dict[str, Any] = {"shape": list(self.shape), "kind": self.kind, "vocabulary": self.vocabulary}
        return found | ({"parts": {name: part.as_json() for name, part in self.parts.items()}} if self.parts else {})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Inputs":
        """The inverse of `as_json`."""
        parts = {name: cls.from_json(part) for name, part in values.get("parts", {}).items()}
        return cls(tuple(values["shape"]), values["kind"], values["vocabulary"], parts)


def inputs_of(dataset: Dataset) -> Inputs:
    """The inputs of a dataset, cached: the vocabulary is one more than the largest id of all samples."""
    if "inputs" not in dataset.kept:
        dataset.kept["inputs"] = _inputs_of(dataset.x)
    found: Inputs = dataset.kept["inputs"]
    return found


def _inputs_of(x: np.ndarray) -> Inputs:
    """x: (n, *shape), or a structured array with a field for each input."""
    if x.dtype.names is not None:
        return Inputs((), "several", parts={name: _inputs_of(x[name]) for name in x.dtype.names})
    is_tokens = np.issubdtype(x.dtype, np.signedinteger)
    return Inputs.of(x.shape[1:], int(x.max(initial=0)) + 1 if is_tokens else 0)
