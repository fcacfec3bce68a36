"""Random changes of training images, drawn from the key of a client's batch.

    flip     horizontal, with probability one half
    crop     a shift by up to 4 pixels along either axis, padded with black
    cutout   a square of half the height at a random position becomes zero, the mean of the normalised images

Every change draws numbers in [0, 1) for every sample, on the device. `stacked` does not branch on them, so that it can
be mapped over clients and captured in a CUDA graph; `plain`, for the sequential twin, slices sample by sample.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine import keys

BORDER = 4
STREAM = -1  # folded into a batch's key; draws inside the network fold 0, 1, ...
DRAWS = {"flip": 1, "crop": 2, "cutout": 2}  # draws per sample


def drawn(names: Sequence[str], key: Tensor, samples: int) -> Mapping[str, Tensor]:
    """Name -> (draws, B) in [0, 1): the random numbers for a batch's changes."""
    own = keys.fold(key, STREAM)
    shapes = {name: torch.Size([DRAWS[name] * samples]) for name in names}
    return {
        name: keys.uniform(keys.fold(own, list(DRAWS).index(name)), shape).reshape(-1, samples)
        for name, shape in shapes.items()
    }


def stacked(names: Sequence[str], x: Tensor, black: Tensor, key: Tensor) -> Tensor:
    """Images x (B, C, H, W) of one client after all changes. black: (C, 1, 1), or a scalar."""
    for name, numbers in drawn(names, key, len(x)).items():
        if name == "flip":
            x = torch.where(numbers[0].reshape(-1, 1, 1, 1) < 0.5, x.flip(-1), x)
        for axis in (2, 3) if name == "crop" else ():
            x = _moved(x, (numbers[axis - 2] * (2 * BORDER + 1)).long() - BORDER, axis, black)
        if name == "cutout":
            x = x * ~(_inside(x, numbers[0], 2) & _inside(x, numbers[1], 3))
    return x


def _moved(x: Tensor, by: Tensor, axis: int, black: Tensor) -> Tensor:
    """x (B, C, H, W) shifted by `by` (B,) pixels along an axis, padded with black."""
    shape, length = [-1, 1, 1, 1], x.shape[axis]
    shape[axis] = length
    at = (torch.arange(length, device=x.device) + by.unsqueeze(1)).reshape(shape)  # (B, 1, H, 1) or (B, 1, 1, W)
    found = x.gather(axis, at.clamp(0, length - 1).expand(x.shape))
    return torch.where((at >= 0) & (at < length), found, black)


def _inside(x: Tensor, number: Tensor, axis: int) -> Tensor:
    """Pixels along an axis that lie in a square centred at `number` (B,), a fraction of the axis."""
    shape, half = [-1, 1, 1, 1], x.shape[2] // 4
    shape[axis] = x.shape[axis]
    offset = torch.arange(x.shape[axis], device=x.device) - (number * x.shape[axis]).long().unsqueeze(1)
    return ((offset >= -half) & (offset < half)).reshape(shape)


def plain(names: Sequence[str], x: Tensor, black: Tensor, key: Tensor) -> Tensor:
    """The same as `stacked`, sample by sample."""
    numbers, samples = drawn(names, key, len(x)), []
    for place, image in enumerate(x):
        for name, own in numbers.items():
            image = _changed(name, image, black, own[:, place].tolist())
        samples.append(image)
    return torch.stack(samples)


def _changed(name: str, image: Tensor, black: Tensor, numbers: Sequence[float]) -> Tensor:
    """An image (C, H, W) after one change."""
    height, width = image.shape[1:]
    if name == "flip":
        return image.flip(-1) if numbers[0] < 0.5 else image
    if name == "crop":
        top, left = (int(number * (2 * BORDER + 1)) for number in numbers)
        wide = F.pad(image - black, [BORDER] * 4)[:, top : top + height, left : left + width]
        return wide + black
    (row, column), half = (
        (int(number * length) for number, length in zip(numbers, (height, width), strict=True)),
        height // 4,
    )
    image = image.clone()
    image[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    return image
