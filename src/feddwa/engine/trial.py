"""Whether a model can be trained: tried on two samples before training, with one clear line where it cannot."""

import copy
import re
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch
from feddwa.data.files import first_line
from feddwa.engine import keys
from feddwa.engine.engine import Engine
from feddwa.engine.evaluate import score
from feddwa.engine.network import FunctionalClient
from feddwa.engine.rows import repeat
from feddwa.engine.sequential import PlainClient
from feddwa.engine.types import Model
from feddwa.errors import InputError

FAILURES = (RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError, AssertionError)
INSTEAD = 'use backend="sequential", which trains one client after another'
CAUSES = {  # what torch says when it cannot map a model -> what the model does
    "data-dependent control flow": "branches on the value of a tensor, or reads it",
    ".item()": "branches on the value of a tensor, or reads it",
    "dynamic shape": "makes a tensor whose shape depends on values",
}


def try_training(engine: Engine, sequential: bool) -> None:
    """One step of one client by the plain loop and, unless `sequential`, one of two clients as a stack.

    Neither leaves a trace: not in the engine's module, not in torch's generators.
    """
    device = engine.data.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells how fast a layer is before it tells that it cannot be mapped
        _try_alone(engine, sequential)
        if not sequential:
            _try_stack(engine)


def _try_alone(engine: Engine, sequential: bool) -> None:
    """Two steps of one client: an attribute may be set once (a cache), but must not change after that."""
    module, (parameters, _) = copy.deepcopy(engine.module).train(), engine.initial()
    generators, seen = _generator_states(engine.data.device), []
    for _ in range(2):
        _gradient_alone(engine, module, parameters)
        seen.append(_attributes(module))
    now = _generator_states(engine.data.device)
    if not all(torch.equal(old, new) for old, new in zip(generators, now, strict=True)):
        raise InputError(f"model: {_random_layer(module)} draws its own random numbers; use nn.Dropout instead")
    changed = [name for name in seen[1] if name not in seen[0] or not _same(seen[0][name], seen[1][name])]
    if changed and not sequential:
        raise InputError(
            f"model: forward changes the attribute {changed[0]}, which a stack of clients shares; {INSTEAD}"
        )


def _gradient_alone(engine: Engine, module: nn.Module, parameters: Model) -> None:
    try:
        PlainClient(module, engine.loss, keys.key(0, "trial")).gradient(parameters, _samples(engine, 2))
    except InputError:
        raise
    except FAILURES as error:
        raise InputError(f"model: cannot be trained: {first_line(error)}") from error


def _try_stack(engine: Engine) -> None:
    """A gradient and a forward pass of two clients, mapped by torch.func."""
    parameters, buffers = (repeat(model, 2) for model in engine.initial())
    batch, noise = _samples(engine, 2, 2), keys.key(0, "trial", torch.arange(2, device=engine.data.device))

    def gradient(parameters: Model, buffers: Model, batch: Batch, key: Tensor) -> Model:
        return FunctionalClient(engine.module, engine.mapped_loss, buffers, key).gradient(parameters, batch)

    try:
        engine.module.train()
        mapped: Callable[..., object] = torch.vmap(gradient)  # of stacks, where gradient has models
        mapped(parameters, buffers, batch, noise)
        engine.module.eval()
        with torch.no_grad():
            torch.vmap(partial(score, engine))(parameters, buffers, batch.x, batch.y)
    except InputError:
        raise
    except FAILURES as error:
        raise InputError(f"model: {_cause(error)}, so it cannot be mapped over clients; {INSTEAD}") from error


def _samples(engine: Engine, *shape: int) -> Batch:
    """The first training sample, (*shape) times: BatchNorm wants more than one."""
    return engine.data.batch(engine.data.splits["train"].index[0, 0].expand(shape), engine.dtype)


def _generator_states(device: torch.device) -> list[Tensor]:
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _random_layer(module: nn.Module) -> str:
    """What drew, as far as that can be told: recurrent layers have a dropout of their own."""
    drawing = [part for part in module.modules() if isinstance(part, nn.RNNBase) and part.dropout > 0]
    return f"the dropout inside nn.{type(drawing[0]).__name__}" if drawing else "forward"


def _attributes(module: nn.Module) -> dict[str, object]:
    """All attributes of all layers by name; the weights that recurrent layers keep in a list are found anew."""
    parts = ((name, part) for name, part in module.named_modules() if not isinstance(part, nn.RNNBase))
    return {f"{name}.{key}".lstrip("."): value for name, part in parts for key, value in vars(part).items()}


def _same(old: object, new: object) -> bool:
    """Whether an attribute has kept its value; of a tensor or an object: whether it is the same one."""
    plain = isinstance(old, bool | int | float | str | tuple) and not isinstance(old, Tensor)
    return old is new or (plain and type(old) is type(new) and old == new)


def _cause(error: Exception) -> str:
    """Why torch cannot map a model, in a few words."""
    text = str(error)
    layer = re.search(r"aten::(lstm|gru|rnn)", text)
    if layer:
        return f"nn.{layer[1].upper()} has no rule for many clients"
    known = next((cause for sign, cause in CAUSES.items() if sign in text), None)
    return known or f"torch.func says: {first_line(error)}"
