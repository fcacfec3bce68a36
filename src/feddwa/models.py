"""The networks of the paper, a small default, and two that take data of any shape.

Every network is a `Network`: a body that turns a sample into features and a head, the last linear layer. Methods that
personalise the head alone find it under that name. Initial values come from torch's global generator.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from feddwa import plugins
from feddwa.data import cache
from feddwa.errors import InputError, one_line, require
from feddwa.plugins import Unfit, accepted, label

Shape = tuple[int, ...]


class Network(nn.Module):
    """A body, and the linear head on its features."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> (B, classes) logits."""
        logits: Tensor = self.head(self.body(x))
        return logits


def cifar_cnn(shape: Shape, classes: int) -> Network:
    """The CIFAR network of the paper: 1,204,874 parameters at 10 classes. BatchNorm comes after pooling."""
    body = OrderedDict[str, nn.Module](
        conv0=nn.Conv2d(3, 32, 3),  # (32, 30, 30)
        relu0=nn.ReLU(),
        pool0=nn.MaxPool2d(2),  # (32, 15, 15)
        bn0=nn.BatchNorm2d(32),
        conv1=nn.Conv2d(32, 64, 3),  # (64, 13, 13)
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),  # (64, 6, 6)
        bn1=nn.BatchNorm2d(64),
        flatten=nn.Flatten(),
        fc0=nn.Linear(2304, 512),
        dropout=nn.Dropout(0.5),
        relu2=nn.ReLU(),
    )
    return Network(nn.Sequential(body), 512, classes)


def emnist_cnn(shape: Shape, classes: int) -> Network:
    """The EMNIST network of the paper's appendix (dense layer of 2,048): 2,278,334 parameters at 62 classes."""
    return Network(_two_convolutions(32, 64, 2048), 2048, classes)


def emnist_small(shape: Shape, classes: int) -> Network:
    """The EMNIST network of clustered federated learning (Sattler): 18,506 parameters at 62 classes."""
    return Network(_two_convolutions(6, 16), 256, classes)


def _two_convolutions(first: int, second: int, dense: int | None = None) -> nn.Sequential:
    """Two 5x5 convolutions with pooling on (1, 28, 28), flattened, and a dense layer where asked for."""
    body = OrderedDict[str, nn.Module](
        conv0=nn.Conv2d(1, first, 5),  # (first, 24, 24)
        relu0=nn.ReLU(),
        pool0=nn.MaxPool2d(2),
        conv1=nn.Conv2d(first, second, 5),  # (second, 8, 8)
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),  # (second, 4, 4)
        flatten=nn.Flatten(),
    )
    if dense is not None:
        body |= {"fc0": nn.Linear(second * 16, dense), "relu2": nn.ReLU()}
    return nn.Sequential(body)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution where shapes differ."""

    def __init__(self, branch: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return torch.relu(self.branch(x) + self.shortcut(x))


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(OrderedDict[str, nn.Module](conv=conv, bn=nn.BatchNorm2d(outputs)))


def _basic(inputs: int, outputs: int, stride: int) -> Residual:
    branch = nn.Sequential(_conv_bn(inputs, outputs, 3, stride), nn.ReLU(), _conv_bn(outputs, outputs, 3))
    return Residual(branch, inputs, outputs, stride)


def _bottleneck(inputs: int, middle: int, outputs: int) -> Residual:
    narrow = _conv_bn(inputs, middle, 1), nn.ReLU(), _conv_bn(middle, middle, 3), nn.ReLU()
    return Residual(nn.Sequential(*narrow, _conv_bn(middle, outputs, 1)), inputs, outputs, stride=1)


def resnet8(shape: Shape, classes: int) -> Network:
    """The released ResNet-8 for Tiny-ImageNet: 90,392 parameters at 200 classes, Kaiming-normal weights (fan-in)."""
    body = OrderedDict[str, nn.Module](
        stem=_conv_bn(3, 16, 3),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
        stage1=_basic(16, 16, stride=1),
        stage2=_basic(16, 32, stride=2),
        stage3=_basic(32, 64, stride=2),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    network = Network(nn.Sequential(body), 64, classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return network


def resnet8_gkt(shape: Shape, classes: int) -> Network:
    """FedGKT's ResNet-8, two bottleneck blocks and no pooling: 22,936 parameters at 200 classes."""
    body = OrderedDict[str, nn.Module](
        stem=_conv_bn(3, 16, 3),
        relu=nn.ReLU(),
        block1=_bottleneck(16, 16, 64),
        block2=_bottleneck(64, 16, 64),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Network(nn.Sequential(body), 64, classes)


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


def mlp(shape: Shape, classes: int) -> Network:
    """One hidden layer of 64 on the flattened sample; on 8x8 digits this is 64-64-10."""
    body = OrderedDict[str, nn.Module](flatten=nn.Flatten(), fc0=nn.Linear(prod(shape), 64), relu0=nn.ReLU())
    return Network(nn.Sequential(body), 64, classes)


def linear(shape: Shape, classes: int) -> Network:
    """Multinomial logistic regression on the flattened sample."""
    return Network(nn.Flatten(), prod(shape), classes)


@dataclass(frozen=True)
class Model:
    """A network by name: how to build it and which samples it takes."""

    build: Callable[[Shape, int], nn.Module]
    takes: str  # in words, for errors and lists
    fits: Callable[[Shape], bool]


def _exactly(*wanted: int) -> Callable[[Shape], bool]:
    return lambda shape: shape == wanted


def _is_colour(shape: Shape) -> bool:
    return len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 8


def _is_any(shape: Shape) -> bool:
    return prod(shape) > 0


MODELS: dict[str, Model] = {
    "cifar-cnn": Model(cifar_cnn, "samples of shape (3, 32, 32)", _exactly(3, 32, 32)),
    "emnist-cnn": Model(emnist_cnn, "samples of shape (1, 28, 28)", _exactly(1, 28, 28)),
    "emnist-small": Model(emnist_small, "samples of shape (1, 28, 28)", _exactly(1, 28, 28)),
    "resnet8": Model(resnet8, "colour images (3, H, W) of at least 8x8", _is_colour),
    "resnet8-gkt": Model(resnet8_gkt, "colour images (3, H, W) of at least 8x8", _is_colour),
    "digits-mlp": Model(mlp, "samples of shape (1, 8, 8)", _exactly(1, 8, 8)),
    "digits-cnn": Model(digits_cnn, "samples of shape (1, 8, 8)", _exactly(1, 8, 8)),
    "mlp": Model(mlp, "samples of any shape", _is_any),
    "linear": Model(linear, "samples of any shape", _is_any),
}


def adopt(build: Any) -> Model:
    """A class or function from outside the package as a model; it is given `shape` and `classes` if it names them."""
    if not callable(build) or isinstance(build, nn.Module):
        raise Unfit(f"is a {type(build).__name__}, must be a class or a function that makes an nn.Module")
    names = accepted(build, ("shape", "classes"))

    def make(shape: Shape, classes: int) -> nn.Module:
        given = {"shape": shape, "classes": classes}
        return _module(build(**{name: given[name] for name in names}))

    return Model(make, "the samples that its code takes", lambda shape: True)


def _module(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise InputError(f"--model: its function returned a {type(made).__name__}, must return an nn.Module")
    return made


def find(name: str) -> Model:
    """The model of NAME or REFERENCE; with @FILE.safetensors behind it everybody starts from these parameters."""
    plain, at, file = name.partition("@")
    model: Model = plugins.MODELS.find(plain)
    if not at:
        return model
    require(os.path.isfile(file), f"--model {plain}@", file, "a file of parameters (.safetensors) that exists")
    return replace(model, build=lambda *task: _load(model.build(*task), name, file))


def _load(module: nn.Module, name: str, file: str) -> nn.Module:
    try:
        module.load_state_dict(load_file(file))
    except (RuntimeError, SafetensorError) as error:
        why = one_line(str(error).strip().splitlines()[-1].strip())
        raise InputError(f"--model {name}: the parameters do not fit what {label(name)} makes: {why}") from None
    return module


def store(module: nn.Module) -> Path:
    """Write a module's parameters and buffers into the cache, under a name that tells their content."""
    content = save({name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()})
    path = cache.root() / "models" / f"{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    os.replace(part, path)
    return path


def make(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build the network `name` for samples of `shape`."""
    model = find(name)
    require(classes >= 1, "--model classes", classes, "at least 1")
    if not model.fits(shape):
        fitting = ", ".join(key for key, other in MODELS.items() if other.fits(shape))
        raise InputError(f"--model {name}: takes {model.takes}, got {shape}; models that fit: {fitting or 'none'}")
    return model.build(shape, classes)
