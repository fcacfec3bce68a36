"""The loop over time of a recurrent layer of many clients, and its gradients.

Sequences of a stack are (T, m, B, ...), with time first, so that a step is contiguous. States and weights are
(m, ...). H is the hidden size, P the size of the outputs (H, or an LSTM's `proj_size`), G the size of the gates: 4 H in
the order i, f, g, o (LSTM), 3 H in the order r, z, n (GRU), H (RNN).

The backward pass is written out: everything that does not depend on the next step's gradient is computed for all steps
at once, and the weights' gradient is one product over all steps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """The loop's weights."""

    weight: Tensor  # (m, G, P), applied to the hidden state
    bias: Tensor | None  # (m, G), added to that product; GRU only
    projection: Tensor | None  # (m, P, H), hidden state to output; LSTM with proj_size only


class Trace(NamedTuple):
    """The loop's results."""

    outputs: Tensor  # (T, m, B, P)
    last_cell: Tensor  # (m, B, H); empty except for an LSTM
    gates: Tensor  # (T, m, B, G), after their activations; empty for an RNN
    more: Tensor  # (T, m, B, H), an LSTM's cell states, or a GRU's product for n before the reset gate; else empty


class Gradients(NamedTuple):
    """The gradients of the loop with respect to its inputs; None for absent inputs."""

    projected: Tensor  # (T, m, B, G)
    hidden: Tensor  # (m, B, P)
    cell: Tensor | None  # (m, B, H)
    weight: Tensor  # (m, G, P)
    bias: Tensor | None  # (m, G)
    projection: Tensor | None  # (m, P, H)


def forward(kind: str, projected: Tensor, hidden: Tensor, cell: Any, weights: Weights) -> Trace:
    """projected: (T, m, B, G), the input's part of the gates; hidden (m, B, P), cell (m, B, H): the initial states."""
    gates = projected.clone(memory_format=torch.contiguous_format)
    if kind == "lstm":
        return _lstm(gates, hidden, cell, weights)
    return _gru(gates, hidden, weights) if kind == "gru" else _rnn(gates, hidden, weights, kind == "rnn_relu")


def backward(
    kind: str, trace: Trace, grad_output: Tensor, grad_cell: Any, hidden: Tensor, cell: Any, weights: Weights
) -> Gradients:
    """The gradients, from those of all outputs (T, m, B, P) and of an LSTM's last cell state (m, B, H)."""
    if kind == "lstm":
        return _lstm_backward(trace, grad_output, grad_cell, hidden, cell, weights)
    if kind == "gru":
        return _gru_backward(trace, grad_output, hidden, weights)
    return _rnn_backward(trace, grad_output, hidden, weights, kind == "rnn_relu")


def _lstm(gates: Tensor, hidden: Tensor, cell: Tensor, weights: Weights) -> Trace:
    transposed, size, outputs, cells = weights.weight.mT, cell.shape[-1], [], []
    for step in range(len(gates)):
        gate = gates[step].baddbmm_(hidden, transposed)  # (m, B, 4 H)
        gate[..., : 2 * size].sigmoid_()
        gate[..., 2 * size : 3 * size].tanh_()
        gate[..., 3 * size :].sigmoid_()
        i, f, g, o = gate.chunk(4, -1)
        cell = torch.addcmul(f * cell, i, g)
        hidden = o * cell.tanh()
        hidden = hidden if weights.projection is None else hidden @ weights.projection.mT
        outputs.append(hidden)
        cells.append(cell)
    return Trace(torch.stack(outputs), cell, gates, torch.stack(cells))


def _lstm_backward(
    trace: Trace, grad_output: Tensor, grad_cell: Tensor, hidden: Tensor, cell: Tensor, weights: Weights
) -> Gradients:
    i, f, g, o = trace.gates.chunk(4, -1)
    tanh_cell, size = trace.more.tanh(), cell.shape[-1]
    grad_gates = torch.cat(  # so far the derivative of the cell state (i, f, g) and of the hidden state (o)
        [g * i * (1 - i), _before(cell, trace.more) * f * (1 - f), i * (1 - g * g), tanh_cell * o * (1 - o)], -1
    )
    through_cell = o * (1 - tanh_cell * tanh_cell)
    grad_hidden, totals = torch.zeros_like(hidden), []
    for step in reversed(range(len(grad_output))):
        total = grad_output[step] + grad_hidden  # (m, B, P)
        totals.append(total)
        total = total if weights.projection is None else total @ weights.projection  # (m, B, H)
        grad_cell = torch.addcmul(grad_cell, total, through_cell[step])
        gate = grad_gates[step]
        gate[..., : 3 * size].unflatten(-1, (3, size)).mul_(grad_cell.unsqueeze(-2))
        gate[..., 3 * size :].mul_(total)
        grad_hidden, grad_cell = gate @ weights.weight, grad_cell * f[step]
    grad_weight = _over_time(grad_gates, _before(hidden, trace.outputs))
    projected_from = None if weights.projection is None else _over_time(torch.stack(totals[::-1]), o * tanh_cell)
    return Gradients(grad_gates, grad_hidden, grad_cell, grad_weight, None, projected_from)


def _gru(gates: Tensor, hidden: Tensor, weights: Weights) -> Trace:
    transposed, size, outputs, products = weights.weight.mT, hidden.shape[-1], [], []
    for step in range(len(gates)):
        gate = gates[step]  # (m, B, 3 H)
        product = hidden @ transposed
        product = product if weights.bias is None else product + weights.bias.unsqueeze(1)
        gate[..., : 2 * size].add_(product[..., : 2 * size]).sigmoid_()
        r, z, n = gate.chunk(3, -1)
        n.addcmul_(r, product[..., 2 * size :]).tanh_()
        hidden = n + z * (hidden - n)
        outputs.append(hidden)
        products.append(product[..., 2 * size :])
    return Trace(torch.stack(outputs), gates.new_empty(0), gates, torch.stack(products))


def _gru_backward(trace: Trace, grad_output: Tensor, hidden: Tensor, weights: Weights) -> Gradients:
    r, z, n = trace.gates.chunk(3, -1)
    before, size = _before(hidden, trace.outputs), hidden.shape[-1]
    slope = (1 - z) * (1 - n * n)  # derivative of the hidden state by n before its activation
    grad_products = torch.cat([slope * trace.more * r * (1 - r), (before - n) * z * (1 - z), slope * r], -1)
    grad_hidden, totals = torch.zeros_like(hidden), []
    for step in reversed(range(len(grad_output))):
        total = grad_output[step] + grad_hidden  # (m, B, H)
        totals.append(total)
        product = grad_products[step]
        product.unflatten(-1, (3, size)).mul_(total.unsqueeze(-2))
        grad_hidden = torch.baddbmm(total * z[step], product, weights.weight)
    grad_projected = torch.cat([grad_products[..., : 2 * size], slope * torch.stack(totals[::-1])], -1)
    grad_bias = None if weights.bias is None else grad_products.sum((0, 2))
    return Gradients(grad_projected, grad_hidden, None, _over_time(grad_products, before), grad_bias, None)


def _rnn(gates: Tensor, hidden: Tensor, weights: Weights, relu: bool) -> Trace:
    transposed, nothing = weights.weight.mT, gates.new_empty(0)
    for step in range(len(gates)):
        gate = gates[step].baddbmm_(hidden, transposed)  # (m, B, H)
        hidden = gate.relu_() if relu else gate.tanh_()
    return Trace(gates, nothing, nothing, nothing)


def _rnn_backward(trace: Trace, grad_output: Tensor, hidden: Tensor, weights: Weights, relu: bool) -> Gradients:
    out = trace.outputs
    grad_gates = (out > 0).to(out.dtype) if relu else 1 - out * out
    grad_hidden = torch.zeros_like(hidden)
    for step in reversed(range(len(grad_output))):
        gate = grad_gates[step].mul_(grad_output[step] + grad_hidden)  # (m, B, H)
        grad_hidden = gate @ weights.weight
    return Gradients(grad_gates, grad_hidden, None, _over_time(grad_gates, _before(hidden, out)), None, None)


def _before(first: Tensor, values: Tensor) -> Tensor:
    """The values (T, m, B, ...) one step earlier, with `first` (m, B, ...) in front."""
    return torch.cat([first.unsqueeze(0), values[:-1]])


def _over_time(left: Tensor, right: Tensor) -> Tensor:
    """The sum over time and batch of left^T right: (T, m, B, a), (T, m, B, b) -> (m, a, b)."""
    rows: Sequence[Tensor] = [value.transpose(0, 1).flatten(1, 2) for value in (left, right)]  # (m, T B, .)
    return rows[0].mT @ rows[1]
