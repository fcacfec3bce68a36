"""Operations of many clients as single GPU kernels, in Triton: convolution, pooling, BatchNorm and random numbers.

Images are (m, B, C, H, W) with the channels last in memory, from one layer to the next, so that a pixel is read as one
piece. Sizes of blocks and numbers of stages come from sweeps over the layers of the CIFAR CNN on an H200; how short a
piece of a sum may be (`LEAST`) does not, it leaves those layers as they were.
"""

from feddwa.engine.fast.kernels.common import channels_last
from feddwa.engine.fast.kernels.convolution import conv, conv_to_input, conv_to_weight
from feddwa.engine.fast.kernels.draws import mix, uniform
from feddwa.engine.fast.kernels.normalisation import normalise, normalise_to_input
from feddwa.engine.fast.kernels.pooling import places_to_input, pool, pool_places, pool_to_input

__all__ = [
    "channels_last",
    "conv",
    "conv_to_input",
    "conv_to_weight",
    "mix",
    "normalise",
    "normalise_to_input",
    "places_to_input",
    "pool",
    "pool_places",
    "pool_to_input",
    "uniform",
]
