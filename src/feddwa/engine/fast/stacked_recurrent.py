"""Recurrent layers that can be mapped over clients: torch's LSTM, GRU and RNN have no rule for `vmap`.

The input's part of the gates is one product for all time steps; the rest is a loop over time (`recurrence.py`), whose
products are batched over clients.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from feddwa.engine.fast.dispatch import BackwardFunction, clients_first
from feddwa.engine.fast.recurrence import Trace, Weights, backward, forward

States = tuple[Tensor, ...]  # hidden state, and for an LSTM the cell state


def recurrent(
    kind: str,
    input: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """`torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` for sequences of equal length, without dropout between layers.

    input: (T, B, I), or (B, T, I) if batch_first; hx: states (layers * directions, B, P or H); params: in torch's
    order, by layer and direction. Returns the outputs of the last layer and the last states of all layers.
    """
    states = hx if kind == "lstm" else (hx,)
    x = input.transpose(0, 1) if batch_first else input
    directions = 2 if bidirectional else 1
    size = len(params) // (num_layers * directions)
    last: list[States] = []
    for _ in range(num_layers):
        outputs = []
        for backwards in range(directions):
            place = len(last)
            own, start = params[place * size : (place + 1) * size], [value[place] for value in states]
            output, new = _one_way(kind, x.flip(0) if backwards else x, start, own, has_biases)
            outputs.append(output.flip(0) if backwards else output)
            last.append(new)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    final = (torch.stack(values) for values in zip(*last, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *final)


def recurrent_cell(
    kind: str,
    input: Tensor,
    hx: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    """`torch.lstm_cell`, `gru_cell`, `rnn_tanh_cell` or `rnn_relu_cell`: one step of a batch. input: (B, I)."""
    weights = [value for value in (w_ih, w_hh, b_ih, b_hh) if value is not None]
    _, states = _one_way(kind, input.unsqueeze(0), hx if kind == "lstm" else (hx,), weights, b_ih is not None)
    return states if kind == "lstm" else states[0]


KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
RECURRENT: dict[Any, Callable[..., Any]] = {getattr(torch, kind): partial(recurrent, kind) for kind in KINDS}
CELLS: dict[Any, Callable[..., Any]] = {getattr(torch, f"{kind}_cell"): partial(recurrent_cell, kind) for kind in KINDS}


def _one_way(
    kind: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], biased: bool
) -> tuple[Tensor, States]:
    """One layer in one direction: outputs (T, B, P) and last states. x: (T, B, I)."""
    w_ih, w_hh, *others = params
    bias, own_bias = (others[0], others[1]) if biased else (None, None)
    if bias is not None and own_bias is not None and kind != "gru":  # a GRU's reset gate scales the second bias
        bias, own_bias = bias + own_bias, None
    projection = others[-1] if len(params) % 2 else None
    rows = x.flatten(0, 1)  # (T B, I)
    gates = rows @ w_ih.T if bias is None else torch.addmm(bias, rows, w_ih.T)
    cell = states[1] if kind == "lstm" else None
    projected = gates.unflatten(0, x.shape[:2])  # (T, B, G)
    outputs, last_cell, *_ = _Recurrence.apply(projected, states[0], cell, w_hh, own_bias, projection, kind)
    return outputs, (outputs[-1], last_cell) if kind == "lstm" else (outputs[-1],)


class _Recurrence(torch.autograd.Function):
    """The loop over time. One client: projected (T, B, G), hidden (B, P), cell (B, H) or None, weight (G, P),
    bias (G,) or None, projection (P, H) or None -> the parts of a `Trace` without the client axis."""

    @staticmethod
    def forward(projected: Tensor, *others: Any) -> tuple[Tensor, ...]:
        *values, kind = others
        hidden, cell, *weights = _one_client(values)
        return _without_clients(forward(kind, projected.unsqueeze(1), hidden, cell, Weights(*weights)), (1, 0, 1, 1))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, *others, ctx.kind = inputs
        ctx.save_for_backward(*others, output[0], *output[2:])
        ctx.mark_non_differentiable(*output[2 if ctx.kind == "lstm" else 1 :])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_cell: Tensor, *_: Any) -> Any:
        last = grad_cell if ctx.kind == "lstm" else None
        return (*_RecurrenceBackward.apply(grad_output, last, *ctx.saved_tensors, ctx.kind), None)

    @staticmethod
    def vmap(info: Any, in_dims: Any, projected: Tensor, *others: Any) -> Any:
        *values, kind = others
        hidden, cell, *weights = _clients_first(values, in_dims[1:6], info.batch_size)
        projected = clients_first(projected, in_dims[0], info.batch_size).transpose(0, 1)  # (T, m, B, G)
        return _with_axes(forward(kind, projected, hidden, cell, Weights(*weights)), (1, 0, 1, 1))


class _RecurrenceBackward(BackwardFunction):
    """The gradients of `_Recurrence` with respect to its tensors, from the gradients of the outputs (T, B, P) and the
    last cell state (B, H), the inputs, and the saved results of the forward pass.
    """

    @staticmethod
    def forward(grad_output: Tensor, *others: Any) -> Any:
        *values, kind = others
        sequences = [value.unsqueeze(1) if value.numel() else value for value in (grad_output, *values[6:])]
        return _without_clients(_gradients(kind, sequences, _one_client(values[:6])), (1, 0, 0, 0, 0, 0))

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad_output: Tensor, *others: Any) -> Any:
        m, (*values, kind) = info.batch_size, others
        sequences = [
            clients_first(value, dim, m).transpose(0, 1) if value.numel() else value
            for value, dim in zip((grad_output, *values[6:]), (in_dims[0], *in_dims[7:10]), strict=True)
        ]
        return _with_axes(_gradients(kind, sequences, _clients_first(values[:6], in_dims[1:7], m)), (1, 0, 0, 0, 0, 0))


def _gradients(kind: str, sequences: Sequence[Tensor], stack: Sequence[Any]) -> Any:
    """sequences: grad_output, outputs, gates, more; stack: grad_cell, hidden, cell, weight, bias, projection."""
    grad_output, outputs, gates, more = sequences
    grad_cell, hidden, cell, *weights = stack
    trace = Trace(outputs, outputs.new_empty(0), gates, more)
    return backward(kind, trace, grad_output, grad_cell, hidden, cell, Weights(*weights))


def _one_client(values: Sequence[Any]) -> list[Any]:
    """The values of one client as a stack of one."""
    return [None if value is None else value.unsqueeze(0) for value in values]


def _clients_first(values: Sequence[Any], dims: Sequence[int | None], m: int) -> list[Any]:
    return [None if value is None else clients_first(value, dim, m) for value, dim in zip(values, dims, strict=True)]


def _without_clients(results: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """Results of a stack of one client without the client axis; None and empty results have none."""
    pairs = zip(results, axes, strict=True)
    return tuple(value if value is None or not value.numel() else value.squeeze(axis) for value, axis in pairs)


def _with_axes(results: Sequence[Any], axes: Sequence[int]) -> Any:
    """Results of a stack, and the client axis of each."""
    pairs = zip(results, axes, strict=True)
    return tuple(results), tuple(None if value is None or not value.numel() else axis for value, axis in pairs)
