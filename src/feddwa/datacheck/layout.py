"""Images with permuted axes, detected by their roughness; and images without scaling."""

from collections.abc import Iterator

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.datacheck.rows import drawn
from feddwa.results.findings import Finding

ROUGHER = 0.6  # relative roughness below which another order of the axes is the right one
LARGEST = 10.0  # largest pixel value that suits the default rate


def images(dataset: Dataset) -> Iterator[Finding]:
    """Images with permuted axes, or without scaling."""
    channels, height, width = dataset.shape
    rows = drawn(np.arange(dataset.train_count), dataset)[:500]
    x = dataset.x[rows].astype(np.float64)  # (n, C, H, W)
    if channels > 4 and width in (1, 3, 4):
        yield Finding(
            "warning",
            f"images of shape {dataset.shape} have {channels} channels and are {width} wide: the channels seem to "
            "stand last; transpose the array to (n, C, H, W)",
        )
    elif 1 < channels <= 4:
        flat = x.reshape(len(x), -1)
        layouts = {
            "(H, W, C) read as (C, H, W)": flat.reshape(-1, height, width, channels).transpose(0, 3, 1, 2),
            "(C, H, W) read as (H, W, C)": x.transpose(0, 2, 3, 1).reshape(len(x), channels, height, width),
        }
        seen, others = _roughness(x), {name: _roughness(each) for name, each in layouts.items()}
        likely = min(others, key=others.__getitem__)
        if others[likely] < ROUGHER * seen:
            yield Finding(
                "warning",
                f"the images look scrambled: neighbouring pixels would differ {seen / others[likely]:.1f} times less "
                f"if these were bytes {likely}; store them in the other order, or transpose instead of reshape",
            )
    if dataset.x.dtype != np.uint8 and not dataset.mean and abs(x).max() > LARGEST:
        yield Finding(
            "warning",
            f"pixels go up to {abs(x).max():.4g}: real numbers are used as they are; store bytes (uint8), or divide by "
            "the largest",
        )


def _roughness(images: np.ndarray) -> float:
    """Mean difference between neighbouring pixels, of images (n, C, H, W)."""
    return float(abs(np.diff(images, axis=2)).mean() + abs(np.diff(images, axis=3)).mean())
