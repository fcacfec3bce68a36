"""The input of an algorithm's setup, and the split of a network into body and head."""

from dataclasses import dataclass, field

from torch import Tensor

from feddwa.engine import Model, Settings
from feddwa.errors import InputError, require

NO_LAST = "this network has no linear layer that is trained"


@dataclass(frozen=True)
class Problem:
    """What is known before the first round."""

    initial: Model  # the initial trainable parameters of all clients; algorithms never see frozen ones
    clients: int  # N
    sizes: Tensor  # (N,) training samples of each client
    label_counts: Tensor | None = None  # (N, C) samples per class, 0 where not disclosed; None: targets are no classes
    head: tuple[str, ...] = ()  # names of the trainable parameters of the last linear layer
    features: int = 0  # F, the size of that layer's input vectors; 0 if its outputs are not the network's
    seed: int = 0  # the run's, for draws of the server
    buffers: Model = field(default_factory=lambda: Model({}))  # the initial BatchNorm statistics of all clients
    batchnorm: tuple[str, ...] = ()  # names of the trainable parameters of BatchNorm: scales and shifts
    settings: Settings = field(
        default_factory=Settings
    )  # of local training, for methods that suit some optimisers alone

    def head_weight(self, algorithm: str) -> str:
        """The name of the head's weight (C, F), for methods that use features; raises InputError for a network without
        one.
        """
        weight = next((name for name in self.head if name.rpartition(".")[2] == "weight"), "")
        if not (self.features and weight):
            what = "needs a network whose outputs are those of its last linear layer, one that is not frozen, "
            what += "with one vector of features for a sample"
            raise InputError(f"algorithm {algorithm}: {what}")
        return weight

    def counts_for(self, algorithm: str) -> Tensor:
        """(N, C) label counts, for methods that use classes; raises InputError if targets are not classes."""
        if self.label_counts is None:
            raise InputError(f"algorithm {algorithm}: needs class labels")
        return self.label_counts

    def head_named(self, chosen: str) -> tuple[str, ...]:
        """The names of the parameters of a head, in the network's order; all other parameters are the body.

        chosen: "last", the last linear layer, or layers and parameters by name, separated by commas. BatchNorm
        statistics belong to neither part: the BatchNorm policy alone decides whether they are exchanged.
        """
        if chosen == "last":
            require(bool(self.head), "--param head", chosen, f"names of layers: {NO_LAST}")
            names = set(self.head)
        else:
            wanted = [name.strip() for name in chosen.split(",")]
            parts = {each: {name for name in self.initial if f"{name}.".startswith(f"{each}.")} for each in wanted}
            unknown = next((each for each, own in parts.items() if not own), None)
            known = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in self.initial))
            require(unknown is None, "--param head", unknown, f"last, or trainable layers of the network: {known}")
            names = set.union(*parts.values())
        whole = len(names) == len(self.initial)
        require(not whole, "--param head", chosen, "some of the network's trainable parameters; these are all of them")
        return tuple(name for name in self.initial if name in names)
