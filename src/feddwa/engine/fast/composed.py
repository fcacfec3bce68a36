"""Operations without a batching rule in torch, composed of operations that have one."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`F.scaled_dot_product_attention` as two products and a softmax.

    query: (..., L, E); key: (..., S, E); value: (..., S, Ev) -> (..., L, Ev). `dropout`, if given, is applied to the
    attention weights (..., L, S) in place of torch's dropout with probability `dropout_p`.
    """
    if enable_gqa:  # several heads of the query share one of key and value
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    weights = scores.softmax(-1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    return (weights if dropout is None else dropout(weights)) @ value


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis of the scores that a boolean mask keeps, or of scores plus a numeric mask; zero if the
    mask keeps none, as in torch.
    """
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """`F.one_hot` without torch's check of the values, which mapped tensors do not allow."""
    if num_classes < 0:
        return F.one_hot(tensor, num_classes)  # the number of classes depends on values: torch raises the error
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.bilinear`. input1: (..., I); input2: (..., J); weight: (O, I, J) -> (..., O)."""
    products: Tensor = (input1 @ weight.movedim(0, 1).flatten(1)).unflatten(-1, (weight.shape[0], -1))  # (..., O, J)
    out = (products * input2.unsqueeze(-2)).sum(-1)
    return out if bias is None else out + bias


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag`; sums and means of bags of equal length, (B, L) -> (B, E), via `F.embedding`."""
    others = (offsets, max_norm, per_sample_weights, padding_idx)
    if input.ndim != 2 or mode == "max" or scale_grad_by_freq or any(value is not None for value in others):
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight)  # (B, L, E)
    return rows.mean(1) if mode == "mean" else rows.sum(1)
