"""Small networks for data of any size: images, series, tables. Own data without --model get one of them.

Arguments after `classes` are set by --model-arg; the docstring has one line for each.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

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
    check_dropout(dropout)
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


def check_dropout(share: float) -> None:
    """Raise unless a share can be left out."""
    require(0 <= share < 1, "--model-arg dropout", share, "from 0 to below 1")
