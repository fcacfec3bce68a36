"""Results of finished runs in Python: one run, one per seed, or several methods on the same data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from feddwa.data.partition import Partition
from feddwa.engine import Stack
from feddwa.errors import InputError
from feddwa.results import display, frames
from feddwa.results.compare import merged
from feddwa.results.weights import Weights
from feddwa.trained.export import Deployed, deployed, predict
from feddwa.trained.store import LEFT_OUT, TrainedModels

if TYPE_CHECKING:
    import pandas as pd

    from feddwa.results.drawing import Drawing

Key = TypeVar("Key")
Value = TypeVar("Value", bound="Showing")


class Showing:
    """Display of results: text in the interpreter; a table, curves and a map in a notebook."""

    path: str | None

    def _methods(self) -> display.Methods:
        """Name -> seed -> run, of all displayed runs."""
        raise NotImplementedError

    def to_pandas(self, of: frames.Rows = "rounds") -> "pd.DataFrame":
        """A table with a row per round (of="rounds"), or a row per client (of="clients").

        Rounds have every number of metrics.jsonl: round r's row is about the models at the start of the round, the last
        row about the final models. Clients have samples, accuracy and loss of their final models.
        """
        raise NotImplementedError

    def plot(self, path: str | Path | None = None) -> "Drawing":
        """Curves over the rounds and the last round's weights, as a Matplotlib figure; saved if a path is given."""
        from feddwa.results.drawing import drawing

        return drawing(self._methods(), path)

    def __repr__(self) -> str:
        return display.text(self._methods(), self.path)

    def _repr_html_(self) -> str:
        return display.html(self._methods(), self.path)


@dataclass(frozen=True, repr=False)
class Result(Showing):
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl
    weights: Sequence[Weights]  # of every round; read from a run directory's files on access
    models: Stack  # (N, *shape) personalised parameters
    buffers: Stack  # (N, *shape) BatchNorm statistics
    partition: Partition
    path: str | None = None  # the run directory
    trained: TrainedModels | None = None  # None if a finished run has not stored its models
    newcomers: Mapping[str, Any] | None = None  # held-out clients, as in record.json; None: there are none

    def model(self, client: str | int) -> nn.Module:
        """A client's trained network, by the client's name or number: in evaluation mode, on the CPU.

        Its input is normalised samples. `deployed(client)` is the same for raw samples.
        """
        return self._trained().model(client)

    def deployed(self, client: str | int) -> Deployed:
        """A client's trained model, from raw samples to scores."""
        return deployed(self._trained(), client)

    def predict(self, client: str | int, x: Any) -> Tensor:
        """Scores (n, outputs) of raw samples x (n, *shape), an array or a tensor, by a client's model."""
        return predict(self._trained(), client, x)

    def to_pandas(self, of: frames.Rows = "rounds") -> "pd.DataFrame":
        """A table with a row per round or client; see `Showing.to_pandas`."""
        return frames.frame(self.metrics, None if self.trained is None else self.trained.card, of)

    def _trained(self) -> TrainedModels:
        if self.trained is None:
            raise InputError(f"{self.path}: has no models: {LEFT_OUT}")
        return self.trained

    def _methods(self) -> display.Methods:
        return {self.summary["algorithm"]: {self.summary["seed"]: self}}


@dataclass(frozen=True, eq=False, repr=False)
class Several(Showing, Mapping[Key, Value]):
    """Finished runs by key, in the given order."""

    runs: Mapping[Key, Value]
    path: str | None = None  # the directory with a directory for each
    _key = "key"

    def to_pandas(self, of: frames.Rows = "rounds") -> "pd.DataFrame":
        """The concatenated tables of all runs, with their key as the outermost index."""
        return frames.joined({key: run.to_pandas(of) for key, run in self.runs.items()}, self._key)

    def __getitem__(self, key: Key) -> Value:
        return self.runs[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


class Results(Several[int, Result]):
    """Finished runs that differ in their seed alone: seed -> its `Result`."""

    _key = "seed"

    @property
    def summary(self) -> dict[str, Any]:
        """The summaries as one, with a `Spread` in place of every number: its `mean`, `std` and `values` by seed.

        `f"{results.summary['accuracy']['last']:.2f}"` is "92.39 ± 0.81".
        """
        return {"seeds": list(self.runs), **merged({seed: result.summary for seed, result in self.runs.items()})}

    def _methods(self) -> display.Methods:
        return {next(iter(self.runs.values())).summary["algorithm"]: self.runs}


class Comparison(Several[str, Result | Results]):
    """Methods on the same data, from the same seeds: name -> its `Result`, or with several seeds its `Results`."""

    _key = "method"

    def _methods(self) -> display.Methods:
        return {
            name: found.runs if isinstance(found, Results) else {found.summary["seed"]: found}
            for name, found in self.runs.items()
        }
