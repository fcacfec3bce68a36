"""A task of benchmarks/field.py in Flower's simulation: FedAvg over Ray on arrays that forms.write_arrays wrote.

    python run_flower.py FOLDER PARALLEL      PARALLEL: clients that train at once, each in a process of its own

Flower leaves networks, data and training to its users, so these are written as its own PyTorch template has them, with
our network; a process keeps the samples in memory. A round is from `configure_train` to the end of `aggregate_train`.
"""

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import clock
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

FOLDER = "FIELD_FOLDER"  # environment variable, which the clients' processes inherit

client_app, server_app = ClientApp(), ServerApp()


@cache
def task() -> dict[str, Any]:
    """The task's numbers."""
    return clock.task_in(Path(os.environ[FOLDER]))


@cache
def arrays() -> tuple[np.ndarray, Tensor, Any]:
    """Images (bytes, memory-mapped), targets, row numbers."""
    folder = Path(os.environ[FOLDER])
    y = torch.from_numpy(np.load(folder / "y.npy"))
    return np.load(folder / "x.npy", mmap_mode="r"), y, np.load(folder / "rows.npz")


def data_of(part: str) -> TensorDataset:
    """The samples of a client, or of the test set, normalised."""
    x, y, rows = arrays()
    mean, std = (torch.tensor(task()[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    own = rows[part]
    return TensorDataset((torch.from_numpy(x[own]) / 255 - mean) / std, y[own])


def network() -> nn.Module:
    """The task's network, built by our library."""
    from feddwa import models

    torch.manual_seed(task()["seed"])
    return models.make(task()["model"], tuple(task()["shape"]), 10)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Local training of a client."""
    device = torch.device(task()["device"])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.to(device).train()
    data = data_of(f"train_{context.node_config['partition-id']}")
    loader = DataLoader(data, task()["batch_size"], shuffle=True, drop_last=task()["drop_last"])
    optimiser, steps = torch.optim.SGD(model.parameters(), lr=task()["lr"]), 0
    for _ in range(task()["epochs"]):
        for x, y in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimiser.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(data), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg with a clock around its rounds."""

    def __init__(self, watch: clock.Clock, **options: Any) -> None:
        super().__init__(**options)
        self.watch = watch

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.watch.begin()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        found = super().aggregate_train(server_round, answers)
        self.watch.end(sum(int(each.content["metrics"]["steps"]) for each in answers if each.has_content()))
        return found


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """All rounds, and the global model on all test samples after the last one."""
    watch, model = clock.Clock(), network()
    share = task()["per_round"] / task()["clients"]
    strategy = Timed(watch, fraction_train=share, fraction_evaluate=0.0, min_available_nodes=task()["clients"])
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=task()["rounds"])
    model.load_state_dict(result.arrays.to_torch_state_dict())
    with watch.evaluation():
        accuracy = accuracy_of(model.eval().to(task()["device"]))
    watch.write(Path(os.environ[FOLDER]), accuracy, ["flwr", "ray", "numpy"])


@torch.no_grad()
def accuracy_of(model: nn.Module) -> float:
    """Accuracy in percent on all test samples."""
    loader, device = DataLoader(data_of("test"), 500), task()["device"]
    right = sum(int((model(x.to(device)).argmax(1) == y.to(device)).sum()) for x, y in loader)
    return 100 * right / len(loader.dataset)


def main() -> None:
    folder, parallel = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    os.environ[FOLDER] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    gpus = 1 / parallel if task()["device"] == "cuda" else 0.0
    backend = {"init_args": {"num_cpus": parallel}, "client_resources": {"num_cpus": 1, "num_gpus": gpus}}
    run_simulation(server_app, client_app, num_supernodes=task()["clients"], backend_config=backend)


if __name__ == "__main__":
    import run_flower  # by its name, so that the clients' processes find in it what they are sent

    run_flower.main()
