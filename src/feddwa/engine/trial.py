"""Check whether a model can be trained: two samples before training, and a one-line error if it cannot."""

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch
from feddwa.data.files import first_line
from feddwa.engine import keys
from feddwa.engine.engine import Engine
from feddwa.engine.network import FunctionalClient
from feddwa.engine.rows import repeat
from feddwa.engine.score import score
from feddwa.engine.sequential import PlainClient
from feddwa.engine.types import Model
from feddwa.errors import InputError, InputWarning

FAILURES = (RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError, AssertionError)
INSTEAD = "use --backend sequential, which trains one client after another, or auto"
CAUSES = {  # torch's message when it cannot map a model -> the model's behaviour
    "_pack_padded_sequence": "packs sequences of unequal length (PackedSequence)",
    "data-dependent control flow": "branches on the value of a tensor, or reads it",
    ".item()": "branches on the value of a tensor, or reads it",
    "dynamic shape": "makes a tensor whose shape depends on values",
}


class _Unmapped(Exception):
    """The one-line reason why clients cannot be trained as a stack."""


def try_training(engine: Engine, backend: str) -> bool:
    """One step of one client by the plain loop and, unless that is the backend, one of two clients as a stack.

    Returns whether clients are trained one after another: as `backend` says, or under "auto" if necessary, with a
    warning. Neither step changes the engine's module or torch's generators.
    """
    device = engine.data.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a layer's speed before it fails to map it
        try:
            _try_alone(engine, backend == "sequential")
            if backend != "sequential":
                _try_stack(engine)
            return backend == "sequential"
        except _Unmapped as error:
            why = str(error)
    if backend != "auto":
        raise InputError(f"model: {why}; {INSTEAD}")
    warnings.warn(f"model: {why}; clients are trained one after another, which is slower", InputWarning, stacklevel=2)
    return True


def _try_alone(engine: Engine, sequential: bool) -> None:
    """Two steps of one client: the first may set an attribute (a cache), which must not change afterwards."""
    module, (parameters, _) = copy.deepcopy(engine.module).train(), engine.initial()
    generators, seen = _generator_states(engine.data.device), []
    with _watched(module) as layers:
        layers.drawn = partial(_have_moved, generators, engine.data.device)
        for _ in range(2):
            _gradient_alone(engine, module, parameters)
            seen.append(_attributes(module))
    if layers.drawing or _have_moved(generators, engine.data.device):
        raise InputError(f"model: {layers.drawing or 'training'} draws its own random numbers; use nn.Dropout instead")
    changed = [name for name in seen[1] if name not in seen[0] or not _same(seen[0][name], seen[1][name])]
    if changed and not sequential:
        raise _Unmapped(f"forward changes the attribute {changed[0]}, which a stack of clients shares")


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

    with _watched(engine.module) as layers:
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
            who = f"{layers.path[-1]} " if layers.path else ""
            raise _Unmapped(f"{who}{_cause(error)}, so it cannot be mapped over clients") from error


class _Layers:
    """The layers that are running, tracked by hooks."""

    def __init__(self) -> None:
        self.path: list[str] = []  # running layers, outermost first
        self.drawn: Callable[[], bool] = lambda: False  # whether torch's generators were used
        self.drawing = ""  # innermost layer that used them

    def enter(self, name: str, *_: object) -> None:
        """A layer begins."""
        self._look()
        self.path.append(name)

    def leave(self, *_: object) -> None:
        """The innermost layer ends."""
        self._look()
        self.path.pop()

    def _look(self) -> None:
        if self.path and not self.drawing and self.drawn():
            self.drawing = self.path[-1]


@contextlib.contextmanager
def _watched(module: nn.Module) -> Iterator[_Layers]:
    """Names of the running layers: "encoder.rnn (LSTM)", or the class for the model itself."""
    layers, handles = _Layers(), []
    for name, part in module.named_modules():
        kind = type(part).__name__
        full = f"{name} ({kind})" if name else kind
        handles.append(part.register_forward_pre_hook(partial(layers.enter, full)))
        handles.append(part.register_forward_hook(layers.leave))
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()


def _samples(engine: Engine, *shape: int) -> Batch:
    """The first training sample, (*shape) times: BatchNorm needs more than one."""
    return engine.data.batch(engine.data.splits["train"].index[0, 0].expand(shape), engine.dtype)


def _generator_states(device: torch.device) -> list[Tensor]:
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _have_moved(old: list[Tensor], device: torch.device) -> bool:
    """Whether torch's generators have been used since they were in the old states."""
    return not all(torch.equal(was, now) for was, now in zip(old, _generator_states(device), strict=True))


def _attributes(module: nn.Module) -> dict[str, object]:
    """All attributes of all layers by name, except recurrent layers, which rebuild their list of weights."""
    parts = ((name, part) for name, part in module.named_modules() if not isinstance(part, nn.RNNBase))
    return {f"{name}.{key}".lstrip("."): value for name, part in parts for key, value in vars(part).items()}


def _same(old: object, new: object) -> bool:
    """Whether an attribute has kept its value; for a tensor or an object: its identity."""
    plain = isinstance(old, bool | int | float | str | tuple) and not isinstance(old, Tensor)
    return old is new or (plain and type(old) is type(new) and old == new)


def _cause(error: Exception) -> str:
    """A short reason why torch cannot map a model."""
    text = str(error)
    known = next((cause for sign, cause in CAUSES.items() if sign in text), None)
    operation = re.search(r"aten::(\w+)", text)
    if known is None and operation:
        return f"calls {operation[1]}, for which torch has no batching rule"
    return known or f"fails when mapped: {first_line(error)}"
