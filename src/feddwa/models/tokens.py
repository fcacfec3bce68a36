"""Networks for token ids: one that tells classes of texts apart, and two language models that predict the next token.

Arguments behind `classes` are given by --model-arg; a line of the docstring says what each means.
"""

import math

import torch
from torch import Tensor, nn

from feddwa.errors import require
from feddwa.models.network import Network, Shape
from feddwa.models.small import check_dropout

MASKED = -1e4  # added to the score of what must not be attended to; finite: a sample may be padding alone


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (B, L, dim); mask: broadcast to (B, heads, L, L), added to the scores: 0, or MASKED."""
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, L, dim / heads) each
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim / self.heads)  # (B, heads, L, L)
        mixed = ((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim)
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

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, dim) -> (B, L, dim); mask: see Attention."""
        x = x + self.dropout(self.attention(self.norm0(x), mask))
        out: Tensor = x + self.dropout(self.dense(self.norm1(x)))
        return out


class TransformerBody(nn.Module):
    """Embeddings of tokens and places, blocks, and a normalisation."""

    def __init__(self, length: int, vocabulary: int, dim: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L) -> (B, L, dim); mask: see Attention."""
        x = self.token(ids) + self.place
        for block in self.blocks:
            x = block(x, mask)
        states: Tensor = self.norm(x)
        return states


class TokenEncoder(TransformerBody):
    """Token ids (B, L) -> (B, dim): every token attends to all that are there, of whose states the mean is taken."""

    def __init__(
        self, length: int, vocabulary: int, dim: int, layers: int, heads: int, padding: int, dropout: float
    ) -> None:
        super().__init__(length, vocabulary, dim, layers, heads, dropout)
        self.padding = padding

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, dim)."""
        present = (ids != self.padding).to(self.place.dtype)  # (B, L)
        states = self.states(ids, (1 - present[:, None, None, :]) * MASKED)
        total: Tensor = (states * present.unsqueeze(-1)).sum(1)
        return total / present.sum(1, keepdim=True).clamp(min=1)


class CausalTransformer(TransformerBody):
    """Token ids -> states, where a token attends to itself and those before it: of every token, or the last one."""

    def __init__(
        self, length: int, vocabulary: int, dim: int, layers: int, heads: int, dropout: float, every: bool
    ) -> None:
        super().__init__(length, vocabulary, dim, layers, heads, dropout)
        self.every = every

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, dim) if `every`, else (B, dim)."""
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=self.place.dtype, device=ids.device).triu(1)  # (L, L)
        states = self.states(ids, later * MASKED)
        return states if self.every else states[:, -1]


class RecurrentBody(nn.Module):
    """Token ids -> outputs of layers of LSTM: those of every token, or of the last one."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, every: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.every = every

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, hidden) if `every`, else (B, hidden)."""
        outputs: Tensor = self.lstm(self.token(ids))[0]  # (B, L, hidden)
        return outputs if self.every else outputs[:, -1]


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
    _check_transformer(dim, layers, heads, dropout)
    return Network(TokenEncoder(shape[0], vocabulary, dim, layers, heads, padding, dropout), dim, classes)


def char_transformer(
    shape: Shape, classes: int, vocabulary: int, dim: int = 128, layers: int = 2, heads: int = 4, dropout: float = 0.0,
    every: bool = False,
) -> Network:  # fmt: skip
    """A small causal transformer that predicts the next token: embedding, layers of attention, the last state, a head.

    vocabulary: number of ids; default: as many as the tokens to predict, or one more than the largest id in the data.
    dim: width of the embedding.
    layers: number of layers.
    heads: attention heads of a layer.
    dropout: share of a layer's outputs that is left out in training.
    every: predict at every position, for targets (length,); default: the one token behind a sample.
    """
    _check_transformer(dim, layers, heads, dropout)
    ids = max(vocabulary, classes)
    return Network(CausalTransformer(shape[0], ids, dim, layers, heads, dropout, every), dim, classes)


def char_lstm(
    classes: int, vocabulary: int, embedding: int = 8, hidden: int = 256, layers: int = 2, every: bool = False
) -> Network:
    """LEAF's network for Shakespeare: embedding, two layers of LSTM, the last output, a head: 819,920 parameters at 80
    characters, as torch's LSTM has two biases.

    vocabulary: number of ids; default: as many as the tokens to predict, or one more than the largest id in the data.
    embedding: width of the embedding.
    hidden: width of the LSTM.
    layers: number of its layers.
    every: predict at every position, for targets (length,); default: the one token behind a sample.
    """
    for name, value in {"embedding": embedding, "hidden": hidden, "layers": layers}.items():
        require(value > 0, f"--model-arg {name}", value, "at least 1")
    return Network(RecurrentBody(max(vocabulary, classes), embedding, hidden, layers, every), hidden, classes)


def _check_transformer(dim: int, layers: int, heads: int, dropout: float) -> None:
    require(heads > 0 and dim > 0 and dim % heads == 0, "--model-arg dim", dim, f"a multiple of heads={heads}")
    require(layers > 0, "--model-arg layers", layers, "at least 1")
    check_dropout(dropout)
