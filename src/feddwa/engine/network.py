"""One client's network as a function of its parameters, with keyed dropout and explicit buffers.

Everything here is written for ONE client; the vectorised engine maps it over rows, the sequential twin calls it once
per client. An *objective* is `objective(net, params, batch, **constants) -> loss`; a *step* is
`step(client, state, batch, **constants) -> state`, where `client.gradient(params, batch, objective)` differentiates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from feddwa.data.federated import Batch, Inputs
from feddwa.engine import keys
from feddwa.engine.fast.dispatch import view
from feddwa.engine.fast.stacked_conv import conv2d
from feddwa.engine.fast.stacked_norm import batch_norm, group_norm
from feddwa.engine.fast.stacked_pool import Relu, adaptive_avg_pool2d, max_pool2d
from feddwa.engine.types import Model, StepState
from feddwa.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (B, ...), targets (B, ...)) -> mean over the batch
Objective = Callable[..., Tensor]
Step = Callable[..., StepState]


STACKED: dict[Any, Callable[..., Any]] = {
    torch.conv2d: conv2d, F.batch_norm: batch_norm, F.adaptive_avg_pool2d: adaptive_avg_pool2d,
    F.group_norm: group_norm, torch.group_norm: group_norm, Tensor.view: view,
}  # fmt: skip


class KeyedDropout(TorchFunctionMode):
    """While active, dropout draws from a key instead of the global generator."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.draws = 0  # dropout layers passed so far: each has its own key

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return self._dropout(_DROPOUTS[func], *args, **kwargs)
        if func in _UNKEYED or (func is F.scaled_dot_product_attention and _argument(4, "dropout_p", args, kwargs)):
            raise InputError(f"model: {func.__name__} draws its own random numbers; use nn.Dropout instead")
        if func is F.multi_head_attention_forward and kwargs.get("training", True):
            _check_attention(_argument(10, "dropout_p", args, kwargs))
        return self._other(func)(*args, **kwargs)

    def _other(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    def _dropout(
        self, kept_dims: int | None, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return x
        shape = x.shape if kept_dims is None else x.shape[:kept_dims] + (1,) * (x.ndim - kept_dims)
        draw = keys.uniform(keys.fold(self.key.to(x.device), self.draws), shape)
        self.draws += 1
        return x * ((draw >= p).to(x.dtype) / (1 - p)) if p < 1 else x * 0


class StackedFunctions(KeyedDropout):
    """Besides, convolution, pooling and BatchNorm take the forms that stay fast when mapped over clients."""

    def __init__(self, key: Tensor) -> None:
        super().__init__(key)
        self.relu: Relu | None = None  # if it was the last call

    def _other(self, func: Callable[..., Any]) -> Callable[..., Any]:
        relu, self.relu = self.relu, None
        if func in (F.relu, torch.relu):
            return self._relu
        return partial(max_pool2d, relu=relu) if func is F.max_pool2d else STACKED.get(func) or func

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor:
        out = F.relu(input, inplace)
        self.relu = None if inplace else (out, input)
        return out


# Dropout function -> number of leading dimensions with draws of their own (None = all): channel dropout keeps (B, C).
_DROPOUTS: dict[Any, int | None] = {F.dropout: None, F.dropout1d: 2, F.dropout2d: 2, F.dropout3d: 2}
_UNKEYED = {F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, torch.rrelu, F.gumbel_softmax, F.fractional_max_pool2d}


def _check_attention(dropout: float) -> None:
    """Dropout inside the attention function of torch is out of reach of a key."""
    if dropout > 0:
        raise InputError(
            f"model: nn.MultiheadAttention with dropout {dropout} draws its own random numbers; set its attribute "
            "dropout to 0.0 (in nn.TransformerEncoderLayer: self_attn.dropout); layers of nn.Dropout may stay"
        )


def _argument(place: int, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """An argument that was given by its place or by its name; None where it was not."""
    return args[place] if len(args) > place else kwargs.get(name)


@dataclass
class Net:
    """A network inside an objective: `net(params, x)` gives outputs and moves `net.buffers` (BatchNorm) on."""

    module: nn.Module
    loss_function: Loss
    buffers: Model
    key: Tensor
    calls: int = 0

    def __call__(self, params: Model, x: Inputs) -> Tensor:
        """Outputs for a batch (B, *shape)."""
        state = {**params, **{name: value.clone() for name, value in self.buffers.items()}}
        with StackedFunctions(keys.fold(self.key, self.calls)):
            outputs = call(self.module, state, x)
        self.calls += 1
        self.buffers = Model({name: state[name] for name in self.buffers})  # functional_call wrote the new values back
        return outputs

    def loss(self, params: Model, batch: Batch) -> Tensor:
        """The task's loss, f_i in the papers."""
        return self.loss_function(self(params, batch.x), batch.y)


def call(module: nn.Module, state: dict[str, Tensor], x: Inputs) -> Tensor:
    """Outputs (B, ...) of a module with the parameters and buffers of `state`, of which it writes new buffers back.

    x: one input (B, *shape), or several by name: "0", "1", ... are positional arguments, other names keywords.
    """
    positional = [x] if isinstance(x, Tensor) else [x[str(n)] for n in range(len(x)) if str(n) in x]
    keywords = {} if isinstance(x, Tensor) else {name: value for name, value in x.items() if not name.isdecimal()}
    outputs = torch.func.functional_call(module, state, tuple(positional), keywords)
    outputs = getattr(outputs, "logits", outputs)  # models of transformers return an object that has them
    if not isinstance(outputs, Tensor):
        raise InputError(f"model: returns a {type(outputs).__name__}, must return a tensor or an object with logits")
    return outputs


def label_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy` where every label is there: what that does about missing ones is most of its calls."""
    return -outputs.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module that are trained, by name: name -> (*shape). Only these are rows of clients.

    The others (requires_grad=False) are constants of the module, the same for all clients: calls of the module find
    them there, so they are neither sent nor mixed, and have neither gradient nor update.
    """
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """The values of the parameters that are not trained, by name: name -> (*shape)."""
    return {name: value.detach() for name, value in module.named_parameters() if not value.requires_grad}


def head_name(module: nn.Module) -> str | None:
    """The name of the last linear layer: the module's `head` if it has one, else the linear layer defined last."""
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return "head" if "head" in names else names[-1] if names else None


def head_parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of the head's trainable parameters; none without a linear layer."""
    name = head_name(module)
    if name is None:
        return ()
    prefix = f"{name}." if name else ""  # a network may be one linear layer
    return tuple(prefix + own for own in trainable(module.get_submodule(name)))


def outputs_and_features(net: Any, params: Model, x: Inputs) -> tuple[Tensor, Tensor]:
    """One pass of an objective's network: outputs (B, C), and the features (B, F) that its head makes them of."""
    head = net.module.get_submodule(head_name(net.module))
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        outputs = net(params, x)
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0][1] is not outputs:
        raise InputError("model: its outputs must be those of its last linear layer (call that layer `head`)")
    return outputs, seen[0][0]


def task_loss(net: Net, params: Model, batch: Batch) -> Tensor:
    """The plain objective: the task's loss and nothing else."""
    return net.loss(params, batch)


class Client(Protocol):
    """What a step function sees of its client."""

    def gradient(self, params: Model, batch: Batch, objective: Objective = task_loss, **constants: Model) -> Model:
        """The gradient of the objective on a batch; BatchNorm statistics move on as a forward pass moves them."""


@dataclass
class FunctionalClient:
    """A client under `torch.func`: pure, so that the engine can map it over rows."""

    module: nn.Module
    loss_function: Loss
    buffers: Model
    key: Tensor
    calls: int = 0

    def gradient(self, params: Model, batch: Batch, objective: Objective = task_loss, **constants: Model) -> Model:
        """See Client."""

        def value(params: Model, buffers: Model) -> tuple[Tensor, Model]:
            net = Net(self.module, self.loss_function, buffers, keys.fold(self.key, self.calls))
            return objective(net, params, batch, **constants), net.buffers

        gradient, self.buffers = torch.func.grad(value, has_aux=True)(params, self.buffers)
        self.calls += 1
        return gradient  # type: ignore[no-any-return]  # torch.func.grad is untyped


def descend(params: Model, gradient: Model, rate: float) -> Model:
    """params - rate * gradient."""
    return Model({name: torch.add(value, gradient[name], alpha=-rate) for name, value in params.items()})


@dataclass(frozen=True)
class SGDStep:
    """One step of mini-batch gradient descent on an objective; the state has one part, "model"."""

    rate: float
    objective: Objective = task_loss

    def __call__(self, client: Client, state: StepState, batch: Batch, **constants: Model) -> StepState:
        """The state after the step."""
        gradient = client.gradient(state["model"], batch, self.objective, **constants)
        return {"model": descend(state["model"], gradient, self.rate)}
