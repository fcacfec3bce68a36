"""BlazeFL's benchmark with a clock around its rounds: its FedAvg on arrays that forms.write_arrays wrote.

    python run_blazefl.py FOLDER EXAMPLE PARALLEL      EXAMPLE: examples/quickstart-fedavg of a copy of the repository

PARALLEL 1 is its single-threaded trainer; more are its processes, or its threads where Python runs without the global
lock. The loop is that of its benchmarks/blazefl-case/main.py; `get_summary` is called after the last round alone.
Images are augmented and normalised as its example does it, one by one.
"""

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import clock
import numpy as np
import torch.multiprocessing


def main() -> None:
    folder, example, parallel = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), int(sys.argv[3])
    task = clock.task_in(folder)
    sys.path.insert(0, str(example))
    from blazefl import contrib  # type: ignore[import-not-found]
    from blazefl.reproducibility import setup_reproducibility  # type: ignore[import-not-found]
    from models import FedAvgModelName, FedAvgModelSelector  # type: ignore[import-not-found]

    setup_reproducibility(task["seed"])
    common: dict[str, Any] = {
        "model_selector": FedAvgModelSelector(num_classes=10, seed=task["seed"]),
        "model_name": FedAvgModelName.CNN,
        "dataset": split_of(folder, task),
        "num_clients": task["clients"],
        "device": task["device"],
        "batch_size": task["batch_size"],
        "seed": task["seed"],
    }
    local = {"epochs": task["epochs"], "lr": task["lr"]}
    handler = contrib.FedAvgBaseServerHandler(**common, global_round=task["rounds"], sample_ratio=1.0)
    free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if parallel == 1:
        mode, trainer = "one thread", contrib.FedAvgBaseClientTrainer(**common, **local)
    elif free:
        mode, trainer = "threads", contrib.FedAvgThreadPoolClientTrainer(**common, **local, num_parallels=parallel)
    else:
        states = folder / "states"
        mode, trainer = (
            "processes",
            contrib.FedAvgProcessPoolClientTrainer(**common, **local, num_parallels=parallel, state_dir=states),
        )
    watch = clock.Clock()
    while not handler.if_stop():
        watch.begin()
        chosen = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), chosen)
        packages = trainer.uplink_package()
        steps = (
            sum(-(-package.data_size // task["epochs"] // task["batch_size"]) for package in packages) * task["epochs"]
        )
        for package in packages:
            handler.load(package)
        watch.end(steps)
    with watch.evaluation():
        accuracy = handler.get_summary()["server_acc"]
    watch.write(folder, 100 * accuracy, ["blazefl", "numpy", "torchvision"], mode=mode)


def split_of(folder: Path, task: dict[str, Any]) -> Any:
    """The example's dataset on our samples and clients, where it would divide torchvision's CIFAR-10."""
    from blazefl.core import FilteredDataset
    from dataset import PartitionedCIFAR10  # type: ignore[import-not-found]

    images, labels = list(np.load(folder / "x.npy").transpose(0, 2, 3, 1)), np.load(folder / "y.npy").tolist()

    def write(split: Any) -> None:
        (split.path / "train").mkdir(parents=True)
        with np.load(folder / "rows.npz") as rows:
            for client in range(task["clients"]):
                own = FilteredDataset(rows[f"train_{client}"].tolist(), images, labels, transform=split.train_transform)
                torch.save(own, split.path / "train" / f"{client}.pkl")
            test = FilteredDataset(rows["test"].tolist(), images, labels, transform=split.test_transform)
            torch.save(test, split.path / "test.pkl")

    with mock.patch.object(PartitionedCIFAR10, "_preprocess", write):
        return PartitionedCIFAR10(folder, folder / "split", task["clients"], task["seed"], partition="ours")


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    main()
