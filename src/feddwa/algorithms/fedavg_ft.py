"""FedAvg_FT: FedAvg, and every client fine-tunes its own copy of the result.

    train as FedAvg;   evaluate   w_i = SGD(w; own training data)   and throw w_i away

Crosses the network: as FedAvg, two model sizes. Fine-tuning costs one more epoch per evaluated client. Like the paper,
we count it as evaluation, not as cost of the round.

Where the paper, its code and others differ: the length of fine-tuning is not stated. Ours equals local training (same
epochs, rate, batch size and keys), so with full participation the accuracy before round t + 1 is FedAvg's after it. The
copy updates its BatchNorm statistics and is tested with them. The global model never changes by fine-tuning.
"""

from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Memory, Message, Stack, Trainer
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg with local fine-tuning."""

    title = "FedAvg_FT"
    summary = "FedAvg, each client's copy fine-tuned on its own data before use"
    kind, year = "personal", 2019
    order = 5
    global_model = False
    evaluation_passes = 1
    evaluated = "the global model, tuned on its data"

    tune_epochs: Annotated[Repeats | None, Tunable(1, 5)] = None
    """Epochs of fine-tuning; none = as many as local training."""

    def __post_init__(self) -> None:
        require(self.tune_epochs is None or self.tune_epochs >= 0, "--param tune_epochs", self.tune_epochs, "0 or more")

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """A copy of w after local training, with its own updated statistics."""
        return trainer.sgd(download["model"], memory, epochs=self.tune_epochs)
