"""Our data and division in the peers' formats: the same samples in the same clients."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.task import Task

PFLLIB = "FashionMNIST"  # the folder that PFLlib is told; its name decides the network's shape


def normalised(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """(n, C, H, W) float32, as networks are given it: bytes over 255, less the mean, over the spread."""
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (dataset.mean, dataset.std))
    return ((dataset.x[rows] / 255 - mean) / std).astype(np.float32)


def write_pfllib(task: Task, folder: Path) -> None:
    """dataset/NAME/{train,test}/CLIENT.npz, each one object array with {"x": (n, C, H, W) float32, "y": (n,)}."""
    for part in ("train", "test"):
        path = folder / "dataset" / PFLLIB / part
        path.mkdir(parents=True)
        for client, rows in enumerate(getattr(task.partition, part)):
            data: Any = {"x": normalised(task.dataset, rows), "y": task.dataset.y[rows]}
            np.savez_compressed(path / f"{client}.npz", data=data)
    (folder / "system").mkdir()  # where it is started: it reads ../dataset


def write_pfl(task: Task, folder: Path) -> None:
    """cifar10_{train,test}.p: a pickled pair of (n, 32, 32, 3) uint8 and (n, 1) int64, client after client.

    Its loader cuts the first file into clients of equal size (`run_pfl` keeps it from shuffling), and normalises.
    """
    for part in ("train", "test"):
        rows = np.concatenate(getattr(task.partition, part))
        pair = channels_last(task.dataset, rows), task.dataset.y[rows].reshape(-1, 1)
        (folder / f"cifar10_{part}.p").write_bytes(pickle.dumps(pair))


def write_arrays(task: Task, folder: Path) -> None:
    """x.npy (n, C, H, W) uint8, y.npy (n,), rows.npz: train_0, train_1, ... and test, row numbers."""
    np.save(folder / "x.npy", task.dataset.x)
    np.save(folder / "y.npy", task.dataset.y)
    clients = {f"train_{client}": rows for client, rows in enumerate(task.partition.train)}
    np.savez(folder / "rows.npz", test=np.concatenate(task.partition.test), **clients)


def channels_last(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """(n, H, W, C), bytes."""
    return np.ascontiguousarray(dataset.x[rows].transpose(0, 2, 3, 1))


def write_nothing(task: Task, folder: Path) -> None:
    """Nothing to write: our side divides the samples by the same seed."""


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """task.json: the numbers that a runner needs."""
    (folder / "task.json").write_text(json.dumps(facts), encoding="utf-8")


WRITERS = {
    "ours": write_nothing,
    "pfllib": write_pfllib,
    "pfl": write_pfl,
    "blazefl": write_arrays,
    "flower": write_arrays,
}
