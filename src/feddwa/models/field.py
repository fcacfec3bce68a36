"""The networks of other libraries' benchmarks, to the parameter; initial values come from torch's global generator."""

from collections import OrderedDict
from math import prod

from torch import nn

from feddwa.models.network import Network, Shape


def fedavg_cnn(shape: Shape, classes: int) -> Network:
    """FedAvg's CNN as in PFLlib and FL-bench: 582,026 parameters on (1, 28, 28), 878,538 on (3, 32, 32)."""
    body = _two_convolutions(shape, (32, 64))
    body |= {"fc0": nn.Linear(_features(shape, 64), 512), "relu2": nn.ReLU()}
    return Network(nn.Sequential(body), 512, classes)


def lenet5(shape: Shape, classes: int) -> Network:
    """FL-bench's LeNet-5, with BatchNorm: 44,470 parameters on (1, 28, 28), 62,050 on (3, 32, 32)."""
    body = _two_convolutions(shape, (6, 16), batch_norm=True)
    body |= {"fc0": nn.Linear(_features(shape, 16), 120), "relu2": nn.ReLU()}
    body |= {"fc1": nn.Linear(120, 84), "relu3": nn.ReLU()}
    return Network(nn.Sequential(body), 84, classes)


def conv_dropout(shape: Shape, classes: int) -> Network:
    """The CNN of pfl-research (CIFAR-10: 1,626,442 parameters) and FedJAX (EMNIST: 1,206,590); Xavier weights."""
    channels, height, width = shape
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    body = OrderedDict[str, nn.Module](
        conv0=nn.Conv2d(channels, 32, 3),
        relu0=nn.ReLU(),
        conv1=nn.Conv2d(32, 64, 3),
        relu1=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout0=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        fc0=nn.Linear(features, 128),
        relu2=nn.ReLU(),
        dropout1=nn.Dropout(0.5),
    )
    network = Network(nn.Sequential(body), 128, classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return network


def har_cnn(shape: Shape, classes: int) -> Network:
    """PFLlib's HARCNN for series (C, L): 2,253,958 parameters on (9, 128), 2,253,094 on (6, 128), at 6 classes."""
    channels, length = shape
    body = OrderedDict[str, nn.Module](
        conv0=nn.Conv1d(channels, 32, 9),  # (32, L - 8)
        relu0=nn.ReLU(),
        pool0=nn.MaxPool1d(2),
        conv1=nn.Conv1d(32, 64, 9),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),  # (64, 26) of length 128
        flatten=nn.Flatten(),
        fc0=nn.Linear(64 * (((length - 8) // 2 - 8) // 2), 1024),
        relu2=nn.ReLU(),
        fc1=nn.Linear(1024, 512),
        relu3=nn.ReLU(),
    )
    return Network(nn.Sequential(body), 512, classes)


def _two_convolutions(shape: Shape, channels: tuple[int, int], batch_norm: bool = False) -> OrderedDict[str, nn.Module]:
    """Two 5x5 convolutions without padding, each with ReLU and pooling, flattened."""
    body, inputs = OrderedDict[str, nn.Module](), shape[0]
    for i, outputs in enumerate(channels):
        body[f"conv{i}"] = nn.Conv2d(inputs, outputs, 5)
        body |= {f"bn{i}": nn.BatchNorm2d(outputs)} if batch_norm else {}
        body |= {f"relu{i}": nn.ReLU(), f"pool{i}": nn.MaxPool2d(2)}
        inputs = outputs
    body["flatten"] = nn.Flatten()
    return body


def _features(shape: Shape, channels: int) -> int:
    """Number of features of an image (C, H, W) after two 5x5 convolutions with pooling."""
    return channels * prod(((side - 4) // 2 - 4) // 2 for side in shape[1:])
