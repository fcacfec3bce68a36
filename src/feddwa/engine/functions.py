"""Torch functions inside a network: random ones draw from keys, and others are replaced by functions that can be
mapped.

Modes intercept every torch function that a network calls, in any library. The sequential twin uses only
`KeyedFunctions`; `StackedFunctions` is for networks that are mapped over clients.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from feddwa.engine import keys
from feddwa.engine.fast import stacked_conv as conv
from feddwa.engine.fast.composed import attention, bilinear, embedding_bag, one_hot
from feddwa.engine.fast.dispatch import view
from feddwa.engine.fast.stacked_norm import batch_norm, group_norm
from feddwa.engine.fast.stacked_pool import Relu, adaptive_avg_pool1d, adaptive_avg_pool2d, max_pool2d
from feddwa.engine.fast.stacked_recurrent import CELLS, RECURRENT
from feddwa.errors import InputError

STACKED: dict[Any, Callable[..., Any]] = {
    torch.conv1d: conv.conv1d, torch.conv2d: conv.conv2d, torch.conv3d: conv.conv3d,
    torch.conv_transpose1d: conv.conv_transpose1d, torch.conv_transpose2d: conv.conv_transpose2d,
    torch.conv_transpose3d: conv.conv_transpose3d,
    F.batch_norm: batch_norm, F.group_norm: group_norm, torch.group_norm: group_norm,
    F.adaptive_avg_pool2d: adaptive_avg_pool2d, torch.adaptive_avg_pool1d: adaptive_avg_pool1d, Tensor.view: view,
    F.scaled_dot_product_attention: attention, F.one_hot: one_hot, F.bilinear: bilinear,
    F.embedding_bag: embedding_bag, **RECURRENT, **CELLS,
}  # fmt: skip

# Dropout function -> number of leading dimensions with separate draws (None = all): channel dropout keeps (B, C).
_DROPOUTS: dict[Any, int | None] = {
    F.dropout: None, F.dropout1d: 2, F.dropout2d: 2, F.dropout3d: 2, torch.dropout: None, torch.feature_dropout: 2,
}  # fmt: skip
_ALPHA_DROPOUTS: dict[Any, int | None] = {
    F.alpha_dropout: None, F.feature_alpha_dropout: 2, torch.alpha_dropout: None, torch.feature_alpha_dropout: 2,
}  # fmt: skip
_ALPHA = 1.7580993408473766  # SELU's: dropped values become -alpha, mean and variance stay
_UNKEYED = {F.rrelu, torch.rrelu, F.fractional_max_pool2d, F.fractional_max_pool3d}


class KeyedFunctions(TorchFunctionMode):
    """While active, all dropout and Gumbel noise is drawn from a key instead of the global generator."""

    def __init__(self, key: Tensor, training: bool = True) -> None:
        super().__init__()
        self.key = key
        self.training = training  # whether the network is in training mode
        self.draws = 0  # random layers so far: each has its own key

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return self._dropout(_DROPOUTS[func], *args, **kwargs)
        if func in _ALPHA_DROPOUTS:
            return self._alpha_dropout(_ALPHA_DROPOUTS[func], *args, **kwargs)
        if func is F.gumbel_softmax:
            return self._gumbel_softmax(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # intercept nested calls as well
                return _multi_head_attention_forward(*args, **kwargs)
        if func is F.scaled_dot_product_attention and (p := _argument(4, "dropout_p", args, kwargs)):
            return attention(*args, **{**kwargs, "dropout": partial(self._dropout, None, p=p)})
        if func in RECURRENT:
            return self._recurrent(func if _is_packed(args) else self._other(func), *args)
        if func in _UNKEYED:
            raise InputError(f"model: {func.__name__} draws its own random numbers; use nn.Dropout instead")
        return self._other(func)(*args, **kwargs)

    def _other(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of a function without random draws."""
        return func

    def _noise(self, kept_dims: int | None, x: Tensor, p: float) -> Tensor:
        """1 with probability 1 - p, else 0; broadcast over all but the first `kept_dims` dimensions of x."""
        shape = x.shape if kept_dims is None else x.shape[:kept_dims] + (1,) * (x.ndim - kept_dims)
        return (self._uniform(shape, x.device) >= p).to(x.dtype)

    def _uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Draws in [0, 1), float32, from the key of the next random layer."""
        draw = keys.uniform(keys.fold(self.key.to(device), self.draws), shape)
        self.draws += 1
        return draw

    def _dropout(
        self, kept_dims: int | None, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False,
        train: bool = True,
    ) -> Tensor:  # fmt: skip
        if not (training and train) or p == 0:
            return input
        return input * (self._noise(kept_dims, input, p) / (1 - p)) if p < 1 else input * 0

    def _gumbel_softmax(
        self, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
    ) -> Tensor:
        """torch's, with noise -log(-log u): u in (0, 1), half a step above the draw. torch ignores `eps`."""
        if not self.training:
            raise InputError(
                "model: gumbel_softmax draws noise in evaluation mode; call it where self.training is true"
            )
        u = self._uniform(logits.shape, logits.device).double() + 2.0**-25
        soft = ((logits - (-u.log()).log().to(logits.dtype)) / tau).softmax(dim)
        if not hard:
            return soft
        chosen = torch.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
        return chosen - soft.detach() + soft

    def _alpha_dropout(
        self, kept_dims: int | None, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False,
        train: bool = False,
    ) -> Tensor:  # fmt: skip
        if not (training or train) or p == 0:
            return input
        if p == 1:
            return input * 0
        scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
        noise = self._noise(kept_dims, input, p)
        return input * (noise * scale) + ((noise - 1) * (_ALPHA * scale) + _ALPHA * scale * p)

    def _recurrent(self, layer: Callable[..., Any], *args: Any) -> Any:
        """A recurrent network; with dropout between its layers, one layer after another with keyed draws."""
        packed = _is_packed(args)
        first, (hx, weights, biased, num_layers, dropout, train, *rest) = args[: 1 + packed], args[1 + packed :]
        if not train or dropout == 0 or num_layers == 1:
            return layer(*args)
        x, size, states = args[0], len(weights) // num_layers, []
        pair = isinstance(hx, tuple | list)  # hidden and cell state of an LSTM
        for number in range(num_layers):
            chosen = slice(number * (1 + rest[0]), (number + 1) * (1 + rest[0]))  # both directions
            start = tuple(value[chosen] for value in hx) if pair else hx[chosen]
            own = weights[number * size : (number + 1) * size]
            with warnings.catch_warnings():  # cuDNN copies one layer's weights out of the block of all
                warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
                x, *last = layer(x, *first[1:], start, own, biased, 1, 0.0, train, *rest)
            states.append(last)
            x = x if number == num_layers - 1 else self._dropout(None, x, dropout)
        return (x, *(torch.cat(values) for values in zip(*states, strict=True)))


class StackedFunctions(KeyedFunctions):
    """KeyedFunctions that also replaces functions by those that can be mapped over clients, or are faster mapped."""

    def __init__(self, key: Tensor, training: bool = True) -> None:
        super().__init__(key, training)
        self.relu: Relu | None = None  # the last call, if that was a ReLU

    def _other(self, func: Callable[..., Any]) -> Callable[..., Any]:
        relu, self.relu = self.relu, None
        if func in (F.relu, torch.relu):
            return self._relu
        if func is torch._pack_padded_sequence:
            return _pack_padded_sequence
        return partial(max_pool2d, relu=relu) if func is F.max_pool2d else STACKED.get(func) or func

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor:
        out = F.relu(input, inplace)
        self.relu = None if inplace else (out, input)
        return out


def _pack_padded_sequence(*args: Any) -> Any:
    """torch's; under vmap or grad it raises here, where it would otherwise fail later, in a layer that reads the packed
    sequence.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(args[0]):
        raise RuntimeError("_pack_padded_sequence: a PackedSequence cannot be mapped or differentiated by torch.func")
    return torch._pack_padded_sequence(*args)


def _is_packed(args: Sequence[Any]) -> bool:
    """Whether the arguments of `torch.lstm` and the like are those for a PackedSequence: data and batch sizes."""
    return not isinstance(args[3], bool)


def _argument(place: int, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """An argument given by position or name; None if it was not given."""
    return args[place] if len(args) > place else kwargs.get(name)


def _seen_through(function: Any) -> Callable[..., Any]:
    """A torch function without its own mode handling, so that an active mode intercepts the functions it calls."""
    names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


_multi_head_attention_forward = _seen_through(F.multi_head_attention_forward)


@contextlib.contextmanager
def weights_as_given(module: nn.Module) -> Iterator[None]:
    """Make the recurrent layers of a module use the parameters set by `functional_call`, and forget them afterwards.

    They keep a list of their weights that outlives the call. On a GPU they would copy new weights into one block of
    memory, which mapped tensors do not have.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    kept = [(part._flat_weights, part._flat_weight_refs) for part in layers]
    for part in layers:
        part.__dict__["flatten_parameters"] = lambda: None
    try:
        yield
    finally:
        for part, (weights, references) in zip(layers, kept, strict=True):
            del part.__dict__["flatten_parameters"]
            part._flat_weights, part._flat_weight_refs = weights, references
