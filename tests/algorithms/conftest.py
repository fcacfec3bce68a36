"""Small federations for the tests of algorithms."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from feddwa.algorithms import Algorithm
from feddwa.data.federated import FederatedData
from feddwa.engine import Engine, Parts, Settings
from feddwa.engine.rows import tensors
from feddwa.federation import Federation
from feddwa.sides import network_of
from tests.conftest import plain_net, small_data


def federation(
    algorithm: Algorithm,
    network: Callable[[], nn.Module] = plain_net,
    data: FederatedData | None = None,
    dtype: torch.dtype = torch.float64,
    lr: float = 0.1,
    epochs: int = 1,
    **options,
) -> Federation:
    data = small_data() if data is None else data
    data = algorithm.split(data, np.random.default_rng(1))
    module = network_of(algorithm, network(), 0)
    return Federation(algorithm, Engine(module, data, Settings(epochs, 10, lr), 0, dtype=dtype), **options)


def models(federation: Federation) -> Parts:
    """Everybody's evaluated model and BatchNorm statistics."""
    model, buffers = federation.personal(federation.all_clients())
    return {"model": model, "buffers": buffers}


def after(federation: Federation, rounds: int) -> Parts:
    for _ in range(rounds):
        federation.step()
    return models(federation)


def difference(left: Parts, right: Parts) -> float:
    """The largest relative difference."""
    pairs = zip(tensors(left), tensors(right), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for (_, a), (_, b) in pairs)


def equal(left: Parts, right: Parts) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(left), tensors(right), strict=True))
