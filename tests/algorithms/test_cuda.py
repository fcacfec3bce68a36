"""All algorithms on a GPU: the same run as on the CPU."""

import pytest
import torch

from feddwa.algorithms import ALGORITHMS
from feddwa.engine.rows import tensors
from tests.algorithms.conftest import after, federation
from tests.conftest import conv_net, map_state, small_data

SIZES = (23, 40, 5, 32, 20)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gpu_gives_the_cpus_run(name, participation):
    """Four rounds, so that steps recur often enough to be captured in graphs."""
    runs = [
        federation(ALGORITHMS[name](), conv_net, small_data(SIZES, device=device), participation=participation)
        for device in ("cpu", "cuda")
    ]
    ends = [map_state(torch.Tensor.cpu, after(run, 4)) for run in runs]
    for (part, a), (_, b) in zip(tensors(ends[0]), tensors(ends[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, msg=lambda text, part=part: f"{part}: {text}")
