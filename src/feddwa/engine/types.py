"""The package's terms, as types.

    Model        parameter name -> (*shape)              one client's parameters, or its BatchNorm statistics
    Stack        parameter name -> (m, *shape)           the models of m clients: row i belongs to client i
    Parts        part -> name -> tensor                  containers of stacks; a part is "model", "guidance", ...
      Message      part -> name -> (m, ...)              what crosses the network: row i to or from client i
      Memory       part -> name -> (m, ...)              what clients keep between rounds; part "buffers": BatchNorm
      ServerState  part -> name -> tensor of any shape   what the server keeps: models, stacks, counters
    StepState    part -> Model                           what one client's training step reads and returns

A type checker rejects a stack in place of a model: `rows.row` and `network.descend` return models, other code writes
`Model({...})`. Message, Memory and ServerState have the same structure and differ in name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NewType

from torch import Tensor

Stack = Mapping[str, Tensor]
Model = NewType("Model", Mapping[str, Tensor])
Parts = Mapping[str, Stack]
Message = Parts
Memory = Parts
ServerState = Parts
StepState = Mapping[str, Model]


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, in ascending order."""

    ids: Tensor  # (m,) int64, on the CPU: the participants
    sizes: Tensor  # (m,) int64, on the CPU: training samples of each
    round: int  # 1 is the first
    clients: int  # N, of the whole federation

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, which: Tensor) -> "Cohort":
        """A part of these clients; `which`: positions (k,), or a mask (m,)."""
        return replace(self, ids=self.ids[which], sizes=self.sizes[which])
