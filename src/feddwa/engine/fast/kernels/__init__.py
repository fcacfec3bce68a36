"""Triton kernels for the layers of many clients at once: convolution, max-pooling, BatchNorm and random numbers.

Images are (m, B, C, H, W), for m clients with a batch of B each. Their channels are last in memory from one layer to
the next, so that the channels of a pixel are one contiguous read. Block sizes and numbers of stages come from sweeps
over the layers of the CIFAR CNN on an H200. `MIN_STEPS` does not: it leaves these layers as they were.
"""

from feddwa.engine.fast.kernels.common import channels_last
from feddwa.engine.fast.kernels.convolution import conv, conv_grad_input, conv_grad_weight
from feddwa.engine.fast.kernels.draws import mix, uniform
from feddwa.engine.fast.kernels.normalisation import batch_norm, batch_norm_backward
from feddwa.engine.fast.kernels.pooling import (
    max_pool,
    max_pool_backward,
    max_pool_with_indices,
    max_pool_with_indices_backward,
)

__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "channels_last",
    "conv",
    "conv_grad_input",
    "conv_grad_weight",
    "max_pool",
    "max_pool_backward",
    "max_pool_with_indices",
    "max_pool_with_indices_backward",
    "mix",
    "uniform",
]
