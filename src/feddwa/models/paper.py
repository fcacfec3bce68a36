"""The networks of the paper, to the parameter; initial values come from torch's global generator."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from feddwa.models.network import Network, Shape


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
    """relu(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution if shapes differ."""

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
