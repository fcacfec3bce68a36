"""Datasets by name or path."""

from pathlib import Path

import numpy as np

from feddwa.data.dataset import Dataset, hold_out
from feddwa.errors import unknown

DATASETS: dict[str, str] = {"digits": "1,797 handwritten digits, 8x8 grey, 10 classes; installed with scikit-learn"}


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """The dataset `name`, or own data at the path `name`."""
    if name not in DATASETS:
        raise unknown("--dataset", name, DATASETS)
    return digits()


def digits() -> Dataset:
    """Scikit-learn's digits with a fixed stratified 80/20 split; no file, no network."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    order, train_count = hold_out(np.zeros(len(labels), dtype=np.int64), labels)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # 0..16 in the file; sixteenths are exact in float32
    return Dataset("digits", images[order], labels[order], train_count, 10, class_names=tuple("0123456789"))
