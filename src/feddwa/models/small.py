"""Small networks for data of any size: images, series, tables, token ids. Own data without --model get one of them.

Arguments behind `classes` are given by --model-arg; a line of the docstring says what each means.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from feddwa.errors import require
from feddwa.models.network import Network, Shape

Norm = Literal["group", "batch", "none"]


def mlp(shape: Shape, classes: int, hidden: tuple[int, ...] = (64,), dropout: float = 0.0) -> Network:
    """Dense layers with ReLU on the flattened sample; on 8x8 digits this is 64-64-10.

    hidden: widths of the hidden layers, separated by commas.
    dropout: share of each hidden layer's outputs that is left out in training.
    """
    require(all(width > 0 for width in hidden), "--model-arg hidden", hidden, "widths of at least 1")
    _check_dropout(dropout)
    body = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    widths = (math.prod(shape), *hidden)
    for i, width in enumerate(hidden):
        body |= {f"fc{i}": nn.Linear(widths[i], width), f"relu{i}": nn.ReLU()}
        body |= {f"dropout{i}": nn.Dropout(dropout)} if dropout else {}
    return Network(nn.Sequential(body), widths[-1], classes)


def linear(shape: Shape, classes: int) -> Network:
    """Multinomial logistic regression on the flattened sample."""
    return Network(nn.Flatten(), math.prod(shape), classes)


def digits_cnn(shape: Shape, classes: int) -> Network:
    """Two small convolutions for 8x8 digits: 6,090 parameters at 10 classes."""
    body = OrderedDict[str, nn.Module](
        conv0=nn.Conv2d(1, 16, 3, padding=1),  # (16, 8, 8)
        relu0=nn.ReLU(),
        pool0=nn.MaxPool2d(2),
        conv1=nn.Conv2d(16, 32, 3, padding=1),  # (32, 4, 4)
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),  # (32, 2, 2)
        flatten=nn.Flatten(),
    )
    return Network(nn.Sequential(body), 128, classes)


def cnn(shape: Shape, classes: int, norm: Norm = "group", width: int = 16) -> Network:
    """3x3 convolutions that halve an image until its shorter side is 2 or 3 pixels, and a dense head.

    norm: normalisation behind each convolution: group, batch or none.
    width: channels of the first convolution; the next have twice and four times as many.
    """
    require(width > 0, "--model-arg width", width, "at least 1")
    channels, *sides = shape
    body = OrderedDict[str, nn.Module]()
    for i, (inputs, outputs) in enumerate(_widths(channels, width, _halvings(min(sides), smallest=2))):
        body |= {f"conv{i}": nn.Conv2d(inputs, outputs, 3, padding=1), **_norm(norm, i, outputs, nn.BatchNorm2d)}
        body |= {f"relu{i}": nn.ReLU(), f"pool{i}": nn.MaxPool2d(2)}
        channels, sides = outputs, [side // 2 for side in sides]
    body["flatten"] = nn.Flatten()
    return Network(nn.Sequential(body), channels * math.prod(sides), classes)


class Mean(nn.Module):
    """The mean along the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, C)."""
        return x.mean(-1)


def cnn1d(shape: Shape, classes: int, norm: Norm = "group", width: int = 32) -> Network:
    """Convolutions over 5 time steps of a series (channels, length), each with stride 2, and their mean over time.

    norm: normalisation behind each convolution: group, batch or none.
    width: channels of the first convolution; the next have twice and four times as many.
    """
    require(width > 0, "--model-arg width", width, "at least 1")
    channels, length = shape
    body = OrderedDict[str, nn.Module]()
    for i, (inputs, outputs) in enumerate(_widths(channels, width, min(4, max(1, _halvings(length, smallest=4))))):
        conv = nn.Conv1d(inputs, outputs, 5, stride=2, padding=2)
        body |= {f"conv{i}": conv, **_norm(norm, i, outputs, nn.BatchNorm1d), f"relu{i}": nn.ReLU()}
        channels = outputs
    body["mean"] = Mean()
    return Network(nn.Sequential(body), channels, classes)


def _halvings(side: int, smallest: int) -> int:
    """How often a side can be halved, rounding down, until less than twice `smallest` is left."""
    return int(math.log2(side / smallest)) if side >= smallest else 0


def _widths(channels: int, width: int, count: int) -> Iterator[tuple[int, int]]:
    """(channels in, channels out) of `count` convolutions: width, twice that, then four times."""
    for i in range(count):
        outputs = width * min(2**i, 4)
        yield channels, outputs
        channels = outputs


def _norm(norm: Norm, place: int, channels: int, batch_norm: type[nn.Module]) -> dict[str, nn.Module]:
    """The normalisation of a layer by its name; at most eight groups."""
    groups = max(groups for groups in (1, 2, 4, 8) if channels % groups == 0)
    made = {"group": lambda: nn.GroupNorm(groups, channels), "batch": lambda: batch_norm(channels)}
    return {f"norm{place}": made[norm]()} if norm in made else {}


class Attention(nn.Module):
    """Self-attention between the tokens that are there."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """x: (B, L, dim); present: (B, L) 1 where a token is there, 0 where it is padding."""
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, L, dim / heads) each
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim / self.heads)  # (B, heads, L, L)
        scores = scores + (present[:, None, None, :] - 1) * 1e4  # finite: a sample may be padding alone
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """A transformer's layer, normalised first: attention, then a dense layer of four times the width."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm0, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.dense = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """(B, L, dim) -> (B, L, dim)."""
        x = x + self.dropout(self.attention(self.norm0(x), present))
        out: Tensor = x + self.dropout(self.dense(self.norm1(x)))
        return out


class TokenEncoder(nn.Module):
    """Token ids (B, L) -> (B, dim): embeddings of tokens and places, blocks, and the mean of the tokens there."""

    def __init__(
        self, length: int, vocabulary: int, dim: int, layers: int, heads: int, padding: int, dropout: float
    ) -> None:
        super().__init__()
        self.padding = padding
        self.token = nn.Embedding(vocabulary, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, dim)."""
        x = self.token(ids) + self.place
        present = (ids != self.padding).to(x.dtype)  # (B, L)
        for block in self.blocks:
            x = block(x, present)
        total: Tensor = (self.norm(x) * present.unsqueeze(-1)).sum(1)
        return total / present.sum(1, keepdim=True).clamp(min=1)


def transformer(
    shape: Shape, classes: int, vocabulary: int, dim: int = 64, layers: int = 2, heads: int = 4, padding: int = 0,
    dropout: float = 0.0,
) -> Network:  # fmt: skip
    """A small transformer for token ids: embedding, layers of attention, the mean over tokens, and a dense head.

    vocabulary: number of ids; default: one more than the largest id in the data.
    dim: width of the embedding.
    layers: number of layers.
    heads: attention heads of a layer.
    padding: the id that fills up short samples and is ignored; -1: none.
    dropout: share of a layer's outputs that is left out in training.
    """
    require(heads > 0 and dim > 0 and dim % heads == 0, "--model-arg dim", dim, f"a multiple of heads={heads}")
    require(layers > 0, "--model-arg layers", layers, "at least 1")
    _check_dropout(dropout)
    return Network(TokenEncoder(shape[0], vocabulary, dim, layers, heads, padding, dropout), dim, classes)


def _check_dropout(share: float) -> None:
    require(0 <= share < 1, "--model-arg dropout", share, "from 0 to below 1")
