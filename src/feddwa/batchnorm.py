"""BatchNorm policies: which BatchNorm tensors are exchanged between clients and server.

    local      running statistics stay with the client; scale and shift are ordinary parameters (the paper's code)
    mean       running statistics are exchanged too; every client receives their mean, weighted by data size
    all-local  scale and shift stay with the client as well (FedBN)

The policy edits messages between the client side and the server side, so one switch serves every algorithm. Under
"all-local" the server never sees scale and shift: they count neither in distances nor in bytes, and a client inserts
its own into every model that it receives. A method whose clients keep a second model or their own layers names the
policies that it supports (`Algorithm.policies`); the others are refused.
"""

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa.engine import Cohort, Memory, Message, Model, Parts, ServerState, Stack
from feddwa.engine.network import trainable
from feddwa.engine.rows import count, repeat
from feddwa.errors import InputError
from feddwa.mixing import average

KEPT, STATISTICS = "batchnorm", "batchnorm-statistics"  # parts of memory and messages


def batchnorm_parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of the trainable scales and shifts of BatchNorm layers, which are found by type."""
    return tuple(f"{name}.{key}" for name, layer in batchnorm_layers(module) for key in trainable(layer))


def batchnorm_layers(module: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """The BatchNorm layers of a network by name."""
    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


@dataclass(frozen=True)
class BatchNormPolicy:
    """The policy of one federation. Methods are the identity if policy and network require no change."""

    private: tuple[str, ...]  # scale and shift, under "all-local"
    shared: tuple[str, ...]  # running mean and variance, under "mean"
    parameters: tuple[str, ...]  # all trainable parameters of the network
    updates: tuple[str, ...]  # parts that are differences of models; no parameter is inserted into them

    @classmethod
    def of(cls, policy: str, module: nn.Module, updates: tuple[str, ...]) -> "BatchNormPolicy":
        """The policy named `policy` for a network; updates: `Algorithm.updates`."""
        layers, own = batchnorm_layers(module), batchnorm_parameters(module)
        moving = tuple(
            f"{name}.{key}"
            for name, layer in layers
            for key, value in layer.named_buffers()
            if value.is_floating_point()
        )
        names = tuple(trainable(module))
        if policy == "all-local" and set(names) <= set(own):
            raise InputError(
                "--batchnorm all-local: every trainable parameter is BatchNorm's, so nothing would be sent"
            )
        return cls(own if policy == "all-local" else (), moving if policy == "mean" else (), names, updates)

    def setup(
        self, server: ServerState, memory: Memory, initial: Model, buffers: Model, clients: int
    ) -> tuple[ServerState, Memory]:
        """Initial (server state, memory (N, ...)): private tensors move to the memory, shared ones to the server."""
        if self.private:
            kept = repeat({name: initial[name] for name in self.private}, clients)
            corrections = self._strip({part: stack for part, stack in memory.items() if part in self.updates})
            return self._strip(server), {**memory, **corrections, KEPT: kept}
        if self.shared:
            return {**server, STATISTICS: {name: buffers[name] for name in self.shared}}, memory
        return server, memory

    def send(self, server: ServerState, message: Message) -> Message:
        """The message (m, ...) to send: under "mean" with the server's statistics, repeated m times."""
        clients = next((count(stack) for stack in message.values()), 0)
        if self.shared and clients:  # Local's message is empty
            return {**message, STATISTICS: repeat(server[STATISTICS], clients)}
        return message

    def receive(self, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """(message, memory), both (m, ...), for the algorithm's client method.

        Under "all-local" every received model gets the client's own scale and shift; under "mean" the received
        statistics replace those in memory.
        """
        if self.private:
            message = {
                part: stack if part in self.updates else self.complete(stack, memory) for part, stack in message.items()
            }
        if STATISTICS in message:
            message = dict(message)
            memory = {**memory, "buffers": {**memory["buffers"], **message.pop(STATISTICS)}}
        return message, memory

    def reply(self, upload: Message, memory: Memory, trained: Stack) -> tuple[Message, Memory]:
        """(upload, memory), both (m, ...), that leave the client; trained: models after local training.

        Under "all-local" scale and shift move from the upload to the memory; under "mean" statistics are added to the
        upload.
        """
        if self.private:
            return self._strip(upload), {**memory, KEPT: {name: trained[name] for name in self.private}}
        if self.shared and upload:
            return {**upload, STATISTICS: {name: memory["buffers"][name] for name in self.shared}}, memory
        return upload, memory

    def collect(self, old: ServerState, new: ServerState, cohort: Cohort, upload: Message) -> ServerState:
        """The new server state; under "mean" with the mean of the uploaded statistics, weighted by data size.

        old, new: server state before and after the algorithm's server method; upload: (m, ...) of `cohort`.
        """
        if not self.shared:
            return new
        if STATISTICS not in upload:
            return {**new, STATISTICS: old[STATISTICS]}
        mean, _ = average(cohort.sizes, upload[STATISTICS])
        return {**new, STATISTICS: mean}

    def complete(self, model: Stack, memory: Memory) -> Stack:
        """`model` (m, *shape) with each client's private parameters, from its memory, inserted."""
        if not self.private or not any(name in self.parameters for name in model):  # scores or ids, not a model
            return model
        return {**model, **memory[KEPT]}

    def _strip(self, parts: Parts) -> Parts:
        return {
            part: {name: value for name, value in stack.items() if name not in self.private}
            for part, stack in parts.items()
        }
