"""One client's network as a function of its parameters, with keyed dropout and explicit buffers.

Everything here is written for ONE client; the vectorised engine maps it over rows, the sequential twin calls it once
per client. An *objective* is `objective(net, params, batch, **constants) -> loss`; a *step* is `step(client, state,
batch, **constants) -> state`, where `client.gradient(params, batch, objective)` differentiates. A *statistic* is
`statistic(net, params, batch, **constants) -> name -> (*shape)`, sums over the samples of a batch.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch, NetworkInput
from feddwa.engine import keys
from feddwa.engine.functions import KeyedFunctions, StackedFunctions, weights_as_given
from feddwa.engine.numbers import Number, times
from feddwa.engine.types import Model, StepState
from feddwa.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (B, ...), targets (B, ...)) -> mean over the batch
Objective = Callable[..., Tensor]
ObjectiveWithAux = Callable[..., tuple[Tensor, Model]]
Statistic = Callable[..., Model]
Step = Callable[..., StepState]
ADDED = "added_layers"  # part of the names of their parameters


@dataclass
class Net:
    """A network inside an objective: `net(params, x)` returns outputs and updates `net.buffers` (BatchNorm)."""

    module: nn.Module
    loss_function: Loss
    buffers: Model
    key: Tensor
    calls: int = 0
    functions: type[KeyedFunctions] = StackedFunctions

    def __call__(self, params: Model, x: NetworkInput) -> Tensor:
        """Outputs for a batch (B, *shape)."""
        state = {**params, **{name: value.clone() for name, value in self.buffers.items()}}
        key = keys.fold(self.key, self.calls)
        with self.functions(key, self.module.training), weights_as_given(self.module):
            outputs = call(self.module, state, x)
        self.calls += 1
        self.buffers = Model({name: state[name] for name in self.buffers})  # functional_call has stored the new values
        return outputs

    def loss(self, params: Model, batch: Batch) -> Tensor:
        """The task's loss, f_i in the papers."""
        return self.loss_function(self(params, batch.x), batch.y)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,): the loss of each sample's outputs (B, ...)."""
        return losses_of(self.loss_function, outputs, targets)

    def aside(self) -> "Net":
        """A copy for passes in training mode that do not change this net's BatchNorm statistics."""
        return replace(self)


def call(module: nn.Module, state: dict[str, Tensor], x: NetworkInput) -> Tensor:
    """Outputs (B, ...) of a module with the parameters and buffers of `state`, in which it stores new buffers.

    x: one input (B, *shape), or several by name: "0", "1", ... are positional arguments, other names keywords.
    """
    positional = [x] if isinstance(x, Tensor) else [x[str(n)] for n in range(len(x)) if str(n) in x]
    keywords = {} if isinstance(x, Tensor) else {name: value for name, value in x.items() if not name.isdecimal()}
    outputs = torch.func.functional_call(module, state, tuple(positional), keywords)
    outputs = getattr(outputs, "logits", outputs)  # transformers' models return an object with logits
    if not isinstance(outputs, Tensor):
        raise InputError(f"model: returns a {type(outputs).__name__}, must return a tensor or an object with logits")
    return outputs


def label_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy` without missing labels, whose handling takes most of its calls."""
    return -outputs.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


def losses_of(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,): the loss of each sample separately, for outputs and targets (B, ...)."""

    def alone(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    mapped: Callable[..., Tensor] = torch.vmap(alone)
    return mapped(outputs, targets)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters of a module: name -> (*shape). Only these are rows of clients.

    The others (requires_grad=False) are constants of the module, the same for all clients. They are never sent, mixed
    or updated.
    """
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """The values of the parameters that are not trained: name -> (*shape)."""
    return {name: value.detach() for name, value in module.named_parameters() if not value.requires_grad}


class Head(nn.Module):
    """A network's last linear layer with a module added by an algorithm."""

    def __init__(self, linear: nn.Linear, added: nn.Module) -> None:
        super().__init__()
        self.linear, self.added_layers = linear, added

    def forward(self, z: Tensor) -> Tensor:
        """Features (B, F) -> outputs (B, C)."""
        outputs: Tensor = self.added_layers.outputs(z, self.linear)  # type: ignore[operator]  # defined by the added layers
        return outputs


def with_added(module: nn.Module, algorithm: str, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A copy of a network with layers `make(linear)` at its last linear layer; algorithm: named in errors.

    The layers are a module with a method outputs(z, linear) that maps features z (B, F) to the network's outputs.
    """
    name, module = head_name(module), copy.deepcopy(module)
    if name is None:
        raise InputError(f"algorithm {algorithm}: needs a network whose last layer is an nn.Linear")
    layer = module.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    if not name:  # the network is one linear layer
        return Head(layer, make(layer))
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, Head(layer, make(layer)))
    return module


def added(model: Mapping[str, Tensor]) -> Model:
    """The parameters of added layers in a model or stack, by their names within these layers."""
    named = {name.rpartition(f"{ADDED}.")[2]: value for name, value in model.items() if f"{ADDED}." in name}
    return Model(named)


def call_added(net: Any, params: Model, *inputs: Tensor) -> Tensor:
    """The `forward` of the added layers of an objective's network."""
    outputs: Tensor = torch.func.functional_call(head_of(net.module).added_layers, dict(added(params)), inputs)
    return outputs


def head_of(module: nn.Module) -> Any:
    """The last linear layer, or the `Head` that contains it."""
    return module.get_submodule(head_name(module) or "")


def head_name(module: nn.Module) -> str | None:
    """The name of the last linear layer: the module's `head` if it has one, else the linear layer defined last.

    With added layers, the name of the `Head` that contains them.
    """
    parts = dict(module.named_modules())
    whole = [name for name, part in parts.items() if isinstance(part, Head)]
    names = whole or [name for name, part in parts.items() if isinstance(part, nn.Linear)]
    return "head" if "head" in names else names[-1] if names else None


def head_parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of the trainable parameters of the last linear layer; empty without one."""
    name = head_name(module)
    if name is None:
        return ()
    head = module.get_submodule(name)
    parts = [name, "linear"] if isinstance(head, Head) else [name]
    prefix = "".join(f"{part}." for part in parts if part)  # a network may be one linear layer
    return tuple(prefix + own for own in trainable(head.linear if isinstance(head, Head) else head))


def outputs_and_features(net: Any, params: Model, x: NetworkInput) -> tuple[Tensor, Tensor]:
    """One pass of an objective's network: outputs (B, C), and the features (B, F) that enter its head.

    Raises InputError unless the network ends with its last linear layer.
    """
    return outputs_of(net, head_of(net.module), params, x)


def outputs_of(net: Any, layer: nn.Module, params: Model, x: NetworkInput) -> tuple[Tensor, Tensor]:
    """One pass: the network's outputs, and the input of its last layer, `layer`."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        outputs = net(params, x)
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0][1] is not outputs:
        raise InputError("model: its outputs must be those of its last linear layer (call that layer `head`)")
    return outputs, seen[0][0]


def task_loss(net: Net, params: Model, batch: Batch) -> Tensor:
    """The plain objective: the task's loss alone."""
    return net.loss(params, batch)


@dataclass(frozen=True)
class Completed:
    """An objective of some of a network's parameters; the others are the constants `fixed`.

    Fixed parameters have neither gradient nor optimiser state, so neither momentum nor decay can move them.
    """

    objective: Objective

    def __call__(self, net: Net, params: Model, batch: Batch, fixed: Model, **constants: Model) -> Tensor:
        """The objective of all parameters together."""
        return self.objective(net, Model({**params, **fixed}), batch, **constants)


class Client(Protocol):
    """A step function's view of its client."""

    module: nn.Module

    def gradient(self, params: Model, batch: Batch, objective: Objective = task_loss, **constants: Model) -> Model:
        """The gradient of the objective on a batch; updates BatchNorm statistics as a forward pass does."""

    def gradient_and_aux(
        self, params: Model, batch: Batch, objective: ObjectiveWithAux, **constants: Model
    ) -> tuple[Model, Model]:
        """The same for an objective that returns (loss, aux); also returns aux."""

    def evaluate(self, params: Model, batch: Batch, statistic: Statistic, **constants: Model) -> Model:
        """A statistic of the network in evaluation mode, without updates or gradients.

        Buffers among the parameters replace the client's.
        """


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put every part of a module into evaluation mode, and restore its mode afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def without_aux(objective: Objective) -> ObjectiveWithAux:
    """An objective as one that returns (loss, nothing)."""
    return lambda *args, **constants: (objective(*args, **constants), Model({}))


@dataclass
class FunctionalClient:
    """A client under `torch.func`: pure, so that the engine can map it over rows."""

    module: nn.Module
    loss_function: Loss
    buffers: Model
    key: Tensor
    calls: int = 0
    functions: type[KeyedFunctions] = StackedFunctions  # another one if samples are mapped too

    def gradient(self, params: Model, batch: Batch, objective: Objective = task_loss, **constants: Model) -> Model:
        """See Client."""
        return self.gradient_and_aux(params, batch, without_aux(objective), **constants)[0]

    def gradient_and_aux(
        self, params: Model, batch: Batch, objective: ObjectiveWithAux, **constants: Model
    ) -> tuple[Model, Model]:
        """See Client."""

        def value(params: Model, buffers: Model) -> tuple[Tensor, tuple[Model, Model]]:
            key = keys.fold(self.key, self.calls)
            net = Net(self.module, self.loss_function, buffers, key, functions=self.functions)
            loss, aux = objective(net, params, batch, **constants)
            return loss, (net.buffers, aux)

        gradient, (self.buffers, aux) = torch.func.grad(value, has_aux=True)(params, self.buffers)
        self.calls += 1
        return gradient, aux

    def evaluate(self, params: Model, batch: Batch, statistic: Statistic, **constants: Model) -> Model:
        """See Client."""
        buffers = Model({name: params.get(name, value) for name, value in self.buffers.items()})
        net = Net(self.module, self.loss_function, buffers, self.key)
        with torch.no_grad(), evaluation_mode(self.module):
            return statistic(net, params, batch, **constants)


def descend(params: Model, gradient: Model, rate: Number) -> Model:
    """params - rate * gradient."""
    if isinstance(rate, Tensor):  # separate product and sum; a float is a factor inside the sum
        moved = {name: torch.add(value, times(-rate, gradient[name])) for name, value in params.items()}
        return Model({name: value.to(params[name].dtype) for name, value in moved.items()})
    return Model({name: torch.add(value, gradient[name], alpha=-rate) for name, value in params.items()})
