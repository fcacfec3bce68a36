"""What a finished run gives in Python: one run, or one for each of several seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from feddwa.data.partition import Partition
from feddwa.engine import Stack
from feddwa.errors import InputError
from feddwa.results.compare import merged
from feddwa.results.weights import Weights
from feddwa.trained.export import Deployed, deployed, predict
from feddwa.trained.store import LEFT_OUT, TrainedModels


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl
    weights: Sequence[Weights]  # of every round; a run directory's are read from its files when they are asked for
    models: Stack  # (N, *shape) personalised parameters
    buffers: Stack  # (N, *shape) and BatchNorm statistics
    partition: Partition
    path: str | None = None  # the run directory
    trained: TrainedModels | None = None  # None where a finished run was made without storing its models
    newcomers: Mapping[str, Any] | None = None  # of held-out clients, each: what record.json has; None: there are none

    def model(self, client: str | int) -> nn.Module:
        """A client's trained network, by the client's name or number: in evaluation mode, on the CPU.

        It takes the network's input: normalised samples. `deployed(client)` is the same for raw samples.
        """
        return self._trained().model(client)

    def deployed(self, client: str | int) -> Deployed:
        """A client's trained model from raw samples, as the data have them, to scores."""
        return deployed(self._trained(), client)

    def predict(self, client: str | int, x: Any) -> Tensor:
        """Scores (n, outputs) of raw samples x (n, *shape), an array or a tensor, by a client's model."""
        return predict(self._trained(), client, x)

    def _trained(self) -> TrainedModels:
        if self.trained is None:
            raise InputError(f"{self.path}: has no models: {LEFT_OUT}")
        return self.trained


@dataclass(frozen=True, eq=False)
class Results(Mapping[int, Result]):
    """Finished runs that differ by their seed alone: seed -> its `Result`, in the order in which they were given."""

    runs: Mapping[int, Result]
    path: str | None = None  # the directory with a run directory for each seed

    @property
    def summary(self) -> dict[str, Any]:
        """The summaries as one, with a `Spread` in the place of every number: its `mean`, `std` and `values` by seed.

        `f"{results.summary['accuracy']['last']:.2f}"` is "92.39 ± 0.81".
        """
        return {"seeds": list(self.runs), **merged({seed: result.summary for seed, result in self.runs.items()})}

    def __getitem__(self, seed: int) -> Result:
        return self.runs[seed]

    def __iter__(self) -> Iterator[int]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)
