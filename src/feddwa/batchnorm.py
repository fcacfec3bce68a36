"""What becomes of BatchNorm in a federation: one switch at the border between clients and server, for every algorithm.

    local      running statistics never travel; scale and shift are parameters like all others (the paper's code)
    mean       running statistics travel too, and everybody gets their average by data size
    all-local  scale and shift stay with their client as well, like the statistics (FedBN)

The border changes messages on their way; no algorithm knows of it. Under "all-local" the server never sees scale and
shift, so they count neither in distances nor in bytes, and a client puts its own into whatever model it receives.
"""

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa.engine.rows import Cohort, Row, Rows, State, count, repeat
from feddwa.mixing import mix

POLICIES = ("local", "mean", "all-local")
KEPT, STATISTICS = "batchnorm", "batchnorm-statistics"  # parts of memory and messages


@dataclass(frozen=True)
class BatchNormPolicy:
    """The policy of one federation; each method is the identity where policy or network leave nothing to do."""

    private: tuple[str, ...]  # scale and shift, under "all-local"
    shared: tuple[str, ...]  # running mean and variance, under "mean"
    parameters: tuple[str, ...]  # all parameters of the network
    updates: tuple[str, ...]  # downloaded parts that carry differences of models: nothing of a model belongs there

    @classmethod
    def of(cls, policy: str, module: nn.Module, updates: tuple[str, ...]) -> "BatchNormPolicy":
        """The border of a network under a policy."""
        layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
        own = tuple(f"{name}.{key}" for name, layer in layers for key, _ in layer.named_parameters())
        moving = tuple(
            f"{name}.{key}"
            for name, layer in layers
            for key, value in layer.named_buffers()
            if value.is_floating_point()
        )
        names = tuple(name for name, _ in module.named_parameters())
        return cls(own if policy == "all-local" else (), moving if policy == "mean" else (), names, updates)

    def setup(self, server: State, memory: State, initial: Row, buffers: Row, clients: int) -> tuple[State, State]:
        """The first state: what is private leaves the server, what is shared comes to it."""
        if self.private:
            kept = repeat({name: initial[name] for name in self.private}, clients)
            return self._strip(server), {**memory, KEPT: kept}
        if self.shared:
            return {**server, STATISTICS: {name: buffers[name] for name in self.shared}}, memory
        return server, memory

    def send(self, server: State, message: State) -> State:
        """The message as it leaves the server: with the statistics."""
        clients = next((count(rows) for rows in message.values()), 0)
        if self.shared and clients:  # Local gets no message at all
            return {**message, STATISTICS: repeat(server[STATISTICS], clients)}
        return message

    def receive(self, message: State, memory: State) -> tuple[State, State]:
        """The message as the client side sees it, and the memory it meets: the own scale and shift, the statistics."""
        if self.private:
            message = {
                part: rows if part in self.updates else self.complete(rows, memory) for part, rows in message.items()
            }
        if STATISTICS in message:
            message = dict(message)
            memory = {**memory, "buffers": {**memory["buffers"], **message.pop(STATISTICS)}}
        return message, memory

    def reply(self, upload: State, memory: State, trained: Rows) -> tuple[State, State]:
        """The upload as it leaves the client, and the memory with what stays behind."""
        if self.private:
            return self._strip(upload), {**memory, KEPT: {name: trained[name] for name in self.private}}
        if self.shared and upload:
            return {**upload, STATISTICS: {name: memory["buffers"][name] for name in self.shared}}, memory
        return upload, memory

    def collect(self, old: State, new: State, cohort: Cohort, upload: State) -> State:
        """The server's new state: with the average of the statistics."""
        if not self.shared:
            return new
        if STATISTICS not in upload:
            return {**new, STATISTICS: old[STATISTICS]}
        weights = (cohort.sizes.double() / cohort.sizes.sum()).unsqueeze(0)
        return {**new, STATISTICS: {name: value[0] for name, value in mix(weights, upload[STATISTICS]).items()}}

    def complete(self, model: Rows, memory: State) -> Rows:
        """A model without the private parameters, with the client's own put back."""
        if not self.private or not any(name in self.parameters for name in model):  # scores, ids: not a model
            return model
        return {**model, **memory[KEPT]}

    def _strip(self, state: State) -> State:
        return {
            part: {name: value for name, value in rows.items() if name not in self.private}
            for part, rows in state.items()
        }
