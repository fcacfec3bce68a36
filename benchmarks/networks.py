"""Typical networks of users: recurrent ones, transformers with dropout, and models of three packages.

They are written for a module, not for this library; the last two are its own, for the next character. `make(name)` has
the size that is timed, `make(name, tiny=True)` one that the tests train in float64 in a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddwa import models
from feddwa.data.inputs import Inputs

CLASSES = 10
CHARACTERS = 80  # of LEAF's Shakespeare; as many are read to predict the next one


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them, and a head on the last output."""

    def __init__(self, kind: type[nn.RNNBase], features: int, hidden: int) -> None:
        super().__init__()
        self.layers = kind(features, hidden, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, features)."""
        return self.head(self.layers(x)[0][:, -1])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's TransformerEncoder with dropout in its attention and layers."""

    def __init__(self, features: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, features)."""
        return self.head(self.encoder(self.embed(x)).mean(1))  # type: ignore[no-any-return]


def series_network(width: int) -> nn.Module:
    """Convolutions over a recording with six channels, the second a separable one."""
    return nn.Sequential(
        nn.Conv1d(6, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(width, width, 5, padding="same", groups=width), nn.Conv1d(width, 2 * width, 1), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES),
    )  # fmt: skip


class Logits(nn.Module):
    """A transformers classifier that returns its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, L)."""
        return self.network(input_ids=tokens).logits  # type: ignore[no-any-return]


def resnet18(tiny: bool) -> nn.Module:
    """torchvision's ResNet-18; the tiny one has blocks of an eighth of its width."""
    from torchvision.models import resnet

    class Narrow(resnet.ResNet):
        def _make_layer(self, block: type, planes: int, *args: Any, **options: Any) -> nn.Sequential:
            return super()._make_layer(block, planes // 8, *args, **options)

    network = (Narrow if tiny else resnet.ResNet)(resnet.BasicBlock, [2, 2, 2, 2])
    network.fc = nn.Linear(64 if tiny else 512, CLASSES)
    return network


def mobilenetv3(tiny: bool) -> nn.Module:
    """torchvision's small MobileNetV3: depthwise and pointwise convolutions, squeeze-and-excite, dropout."""
    from torchvision import models

    network: nn.Module = models.mobilenet_v3_small(num_classes=CLASSES, width_mult=0.25 if tiny else 1.0)
    return network


def vision_transformer(tiny: bool) -> nn.Module:
    """timm's ViT with few and narrow blocks, and dropout."""
    from timm.models.vision_transformer import VisionTransformer

    size = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2} if tiny else {
        "img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 4}  # fmt: skip
    network: nn.Module = VisionTransformer(**size, num_classes=CLASSES, proj_drop_rate=0.1, attn_drop_rate=0.1)
    return network


def bert(tiny: bool) -> nn.Module:
    """BERT of transformers with few and narrow layers and the usual dropout of 0.1."""
    from transformers import BertConfig, BertForSequenceClassification

    width, layers = (16, 1) if tiny else (96, 2)
    return Logits(
        BertForSequenceClassification(
            BertConfig(
                vocab_size=100, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                intermediate_size=2 * width, max_position_embeddings=64, num_labels=CLASSES,
            )
        )
    )  # fmt: skip


def next_character(name: str, small: list[str]) -> Callable[[bool], nn.Module]:
    """A factory of a next-character network of this library; small: arguments of its tiny version."""

    def make(tiny: bool) -> nn.Module:
        return models.make(name, Inputs.of((7 if tiny else 80,), CHARACTERS), CHARACTERS, small if tiny else [])

    return make


@dataclass(frozen=True)
class Network:
    """How a network is built, and its input."""

    make: Callable[[bool], nn.Module]  # whether it is the tiny one
    shape: tuple[int, ...]
    tiny_shape: tuple[int, ...]
    tokens: int = 0  # the number of token ids, if it reads those
    clients: int = 20  # that are timed: an epoch of ResNet-18 on two cores is a long one
    on_gpu: float = 1.0  # wanted ratio there

    @cached_property
    def left_out(self) -> str:
        """Why it cannot be built here, in one line, or "". Imports of packages fail in many ways."""
        try:
            self.make(True)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed"
        except Exception as error:  # such as a build for another torch
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        return ""

    def samples(self, count: int, tiny: bool = False) -> np.ndarray:
        """`count` random samples."""
        rng, shape = np.random.default_rng(0), self.tiny_shape if tiny else self.shape
        if self.tokens:
            return rng.integers(0, self.tokens, (count, *shape))
        return rng.normal(size=(count, *shape)).astype(np.float32)


NETWORKS = {
    "lstm": Network(lambda tiny: Recurrent(nn.LSTM, *((4, 6) if tiny else (16, 32))), (32, 16), (5, 4)),
    "gru": Network(lambda tiny: Recurrent(nn.GRU, *((4, 6) if tiny else (16, 32))), (32, 16), (5, 4)),
    "transformer": Network(lambda tiny: Encoder(*((4, 8, 2) if tiny else (16, 64, 4))), (32, 16), (5, 4)),
    "conv1d": Network(lambda tiny: series_network(4 if tiny else 32), (6, 64), (6, 12)),
    "resnet18": Network(resnet18, (3, 32, 32), (3, 16, 16), clients=5),
    "mobilenetv3": Network(mobilenetv3, (3, 32, 32), (3, 24, 24)),
    "vit": Network(vision_transformer, (3, 32, 32), (3, 16, 16)),
    "bert": Network(bert, (32,), (6,), tokens=100),
    "char-lstm": Network(
        next_character("char-lstm", ["embedding=3", "hidden=4"]), (80,), (7,), CHARACTERS, clients=100, on_gpu=10.0
    ),
    "char-transformer": Network(
        next_character("char-transformer", ["dim=8", "heads=2", "dropout=0.1"]),
        (80,),
        (7,),
        CHARACTERS,
        clients=100,
        on_gpu=10.0,
    ),
}


def make(name: str, tiny: bool = False) -> nn.Module:
    """A network with the same first parameters every time."""
    torch.manual_seed(0)
    return NETWORKS[name].make(tiny)
