"""Speed of the vectorised program against the plain loop, both timed in one run on this machine.

    python benchmarks/engine.py                 # everything
    python benchmarks/engine.py cifar-cnn-20    # some cases by name
    python benchmarks/engine.py networks        # LSTM, GRU, transformers, ResNet-18, MobileNetV3; --device cuda

The plain loop is what researchers write: a module, an SGD optimiser and a DataLoader per client, one client after
another. The ratio is (median time of the plain loop's epoch) / (median time of the engine's epoch), the two measured in
turn. The server's weights are held against a double Python loop over clients, and against one matrix product; three
seeds trained as one stack of rows against the same three one after another; evaluation against a loop over clients;
`recipes`, momentum, Adam and a decaying rate, against plain SGD in the engine (the ratio: how many times as long).
`networks` are those of networks.py, 20 clients each, for the next character 100; for them the seconds until the first
epoch is done are told, too: on a GPU, kernels are compiled then. Networks whose package is not installed are left out,
which is said.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networks
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from feddwa import mixing, models
from feddwa.data.dataset import Dataset
from feddwa.data.federated import federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, Settings, Trainer, evaluate
from feddwa.engine.fast.record import RECORD_AFTER
from feddwa.engine.optimizers import SGD, Adam
from feddwa.engine.rate_schedule import RateSchedule
from feddwa.engine.rows import repeat

# name -> (model, sample shape, clients, samples per client, batch size, wanted ratio on two cores, on a GPU)
CASES: dict[str, tuple[str, tuple[int, ...], int, int, int, float | None, float | None]] = {
    "digits-mlp-20": ("digits-mlp", (1, 8, 8), 20, 72, 10, 5.0, None),
    "digits-mlp-100": ("digits-mlp", (1, 8, 8), 100, 72, 10, 8.0, None),
    "digits-cnn-20": ("digits-cnn", (1, 8, 8), 20, 72, 10, 3.0, None),
    "cifar-cnn-20": ("cifar-cnn", (3, 32, 32), 20, 200, 20, 1.2, 20.0),
    "cifar-cnn-100": ("cifar-cnn", (3, 32, 32), 100, 200, 20, None, 30.0),
    "resnet8-20": ("resnet8", (3, 32, 32), 20, 200, 20, 1.5, None),
}


TENSOR_CORES = False  # set by --tensor-cores


def make_engine(model: str, shape: tuple[int, ...], clients: int, samples: int, batch: int, device: str) -> Engine:
    x = np.random.default_rng(0).normal(size=(clients * (samples + 1), *shape)).astype(np.float32)
    torch.manual_seed(0)
    return engine_on(models.make(model, shape, 10), x, clients, batch, device)


def engine_on(module: nn.Module, x: np.ndarray, clients: int, batch: int, device: str) -> Engine:
    """An engine on x with random labels in equal shares; each client trains on all but one sample."""
    dataset = Dataset("synthetic", x, np.random.default_rng(1).integers(0, 10, len(x)), 1, 10)
    rows = np.arange(len(x)).reshape(clients, -1)
    data = federate(dataset, Partition([own[:-1] for own in rows], [own[-1:] for own in rows]), torch.device(device))
    return Engine(module, data, Settings(1, batch, 0.01), tensor_cores=TENSOR_CORES)


def engine_epoch(engine: Engine) -> Callable[[], None]:
    """One local epoch of all clients as the library runs it."""
    parameters, buffers = engine.initial()
    clients, rounds = engine.data.clients, iter(range(1, 10**9))
    state = [repeat(parameters, clients), {"buffers": repeat(buffers, clients)}]

    def epoch() -> None:
        state[:] = Trainer(engine, torch.arange(clients), next(rounds)).sgd(*state)

    return epoch


def plain_epoch(engine: Engine, make: Callable[[], nn.Module]) -> Callable[[], None]:
    """One local epoch of all clients in a plain loop, with one module per client."""
    device, train = engine.data.device, engine.data.splits["train"]
    clients = []
    for index, size in zip(train.index.cpu(), train.sizes.tolist(), strict=True):
        module = make().to(device).train()
        own = TensorDataset(engine.data.x.cpu()[index[:size]], engine.data.y.cpu()[index[:size]])
        loader = DataLoader(own, batch_size=engine.settings.batch_size, shuffle=True)
        clients.append((module, torch.optim.SGD(module.parameters(), lr=0.01), loader))

    def epoch() -> None:
        for module, optimiser, loader in clients:
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(module(x.to(device)), y.to(device)).backward()
                optimiser.step()

    return epoch


def race(one: Callable[[], None], other: Callable[[], None], seconds: float, device: str) -> tuple[float, float]:
    """Median times of two functions, run in turn for about `seconds`."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for function, own in zip((one, other), times, strict=True):
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            own.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def run_case(name: str, device: str, seconds: float) -> dict[str, object]:
    model, shape, clients, samples, batch, on_cpu, on_gpu = CASES[name]
    engine = make_engine(model, shape, clients, samples, batch, device)
    vectorised, plain = engine_epoch(engine), plain_epoch(engine, lambda: models.make(model, shape, 10))
    steps = -(-samples // batch)
    for _ in range(1 + 60 // steps):  # until the step is traced (and on a GPU captured)
        vectorised()
    plain()
    fast, slow = race(vectorised, plain, seconds, device)
    wanted = on_gpu if device == "cuda" else on_cpu
    return {
        "case": name,
        "engine_ms": fast / steps * 1e3,
        "plain_ms": slow / steps * 1e3,
        "ratio": slow / fast,
        "wanted": wanted,
    }


def run_seeds(device: str, seconds: float) -> list[dict[str, object]]:
    """Three seeds as one stack of rows against three runs."""
    rows: list[dict[str, object]] = []
    for name in ("digits-mlp-20", "cifar-cnn-20", "resnet8-20") if device == "cuda" else ("digits-mlp-20",):
        model, shape, clients, samples, batch, _, _ = CASES[name]
        alone, stack = (
            engine_epoch(make_engine(model, shape, m, samples, batch, device)) for m in (clients, 3 * clients)
        )
        steps = -(-samples // batch)
        for _ in range(1 + 60 // steps):
            alone()
            stack()

        def three(alone: Callable[[], None] = alone) -> None:
            for _ in range(3):
                alone()

        together, apart = race(stack, three, seconds, device)
        times = {"engine_ms": together / steps * 1e3, "plain_ms": apart / steps * 1e3, "ratio": apart / together}
        rows.append({"case": f"{name} x 3 seeds", **times, "wanted": 1.0})
    return rows


def run_recipes(device: str, seconds: float) -> list[dict[str, object]]:
    """Epochs with an optimiser or learning-rate schedule against plain SGD, as a ratio of times."""
    name = "cifar-cnn-20" if device == "cuda" else "digits-mlp-20"
    model, shape, clients, samples, batch, _, _ = CASES[name]
    recipes: dict[str, dict[str, Any]] = {
        "momentum": {"optimizer": SGD(0.9)},
        "adam": {"optimizer": Adam()},
        "cosine": {"schedule": RateSchedule("cosine", rounds=10**9)},
    }
    rows = []
    for recipe, options in recipes.items():
        plain, own = (make_engine(model, shape, clients, samples, batch, device) for _ in range(2))
        own.settings = replace(own.settings, **options)
        epochs = engine_epoch(own), engine_epoch(plain)
        for epoch in epochs * (2 if device == "cuda" else RECORD_AFTER[device]):  # until it is recorded
            epoch()
        slow, fast = race(*epochs, seconds, device)
        times = {"engine_ms": slow * 1e3, "plain_ms": fast * 1e3, "ratio": slow / fast}
        rows.append({"case": f"{name} {recipe}", **times, "wanted": -3.0 if recipe == "adam" else -2.0})
    return rows


def run_evaluation(device: str, seconds: float) -> list[dict[str, object]]:
    """All clients' models on their own samples, against a loop over clients."""
    names = ("digits-mlp-20", "cifar-cnn-20") if device == "cuda" else ("digits-mlp-20",)
    return [evaluate_case(name, device, seconds) for name in names]


def evaluate_case(name: str, device: str, seconds: float) -> dict[str, object]:
    """The loop evaluates each client's samples as one batch on the device."""
    model, shape, clients, samples, batch, _, _ = CASES[name]
    engine = make_engine(model, shape, clients, samples, batch, device)
    parameters, buffers = (repeat(values, clients) for values in engine.initial())
    data, everybody = engine.data, torch.arange(clients)
    modules = [models.make(model, shape, 10).to(device).eval() for _ in everybody]
    batches = [(data.x[own], data.y[own]) for own in data.splits["train"].index]

    def together() -> None:
        evaluate(engine, parameters, buffers, everybody, "train")

    @torch.no_grad()
    def apart() -> None:
        for module, (x, y) in zip(modules, batches, strict=True):
            outputs = module(x)
            (outputs.argmax(1) == y).double().mean().item(), F.cross_entropy(outputs, y).item()

    for _ in range(12):  # until it is recorded
        together()
    fast, slow = race(together, apart, seconds, device)
    times = {"engine_ms": fast * 1e3, "plain_ms": slow * 1e3, "ratio": slow / fast}
    return {"case": f"{name} evaluation", **times, "wanted": 1.0}


def run_server(device: str, seconds: float, m: int = 100, size: int = 1_200_000) -> list[dict[str, object]]:
    """The server's weights against a double Python loop and against one matrix product."""
    torch.manual_seed(0)
    base = torch.randn(size, device=device)
    guidance, local = (base + 0.1 * torch.randn(m, size, device=device) for _ in range(2))

    def loop() -> None:
        distances = torch.zeros(m, m)
        for i in range(m):
            for j in range(m):
                distances[i, j] = (guidance[i] - local[j]).square().sum()

    def weights() -> None:
        mixing.dwa_weights(guidance, local, 5)

    def product() -> None:
        guidance @ local.T

    fast, gemm = race(weights, product, seconds / 2, device)
    start = time.perf_counter()
    loop()
    slow = time.perf_counter() - start
    return [
        {
            "case": f"server m={m} d={size}",
            "engine_ms": fast * 1e3,
            "plain_ms": slow * 1e3,
            "ratio": slow / fast,
            "wanted": 20.0,
        },
        {
            "case": "server / one product",
            "engine_ms": fast * 1e3,
            "plain_ms": gemm * 1e3,
            "ratio": fast / gemm,
            "wanted": -3.0,
        },
    ]


def run_networks(device: str, seconds: float) -> list[dict[str, object]]:
    """Typical networks of users, each with a number of clients."""
    found = []
    for name in networks.NETWORKS:
        rows = run_network(name, device, seconds)
        for row in rows:
            show(row)
        found += rows
    return found


def run_network(name: str, device: str, seconds: float, samples: int = 40) -> list[dict[str, object]]:
    """An epoch of two batches of 20 for every client; None if the network cannot be built here."""
    batch, network = 20, networks.NETWORKS[name]
    if network.left_out:
        print(f"{name:<24} left out: {network.left_out}", flush=True)
        return []
    clients = network.clients
    engine = engine_on(networks.make(name), network.samples(clients * (samples + 1)), clients, batch, device)
    vectorised, plain = engine_epoch(engine), plain_epoch(engine, lambda: networks.make(name))
    start = time.perf_counter()
    vectorised()
    if device == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(0 if device == "cuda" else RECORD_AFTER[device] // (samples // batch)):
        vectorised()
    plain()
    fast, slow = race(vectorised, plain, seconds, device)
    steps = samples // batch
    times = {"engine_ms": fast / steps * 1e3, "plain_ms": slow / steps * 1e3, "ratio": slow / fast}
    return [{"case": name, **times, "wanted": network.on_gpu if device == "cuda" else 1.0, "first_s": first}]


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    wanted = row["wanted"]
    bound = "" if wanted is None else (f">= {wanted:g}" if wanted > 0 else f"<= {-wanted:g}")
    times = f"{row['engine_ms']:>9.2f} ms {row['plain_ms']:>9.2f} ms"
    first = f"{row['first_s']:>7.1f} s" if "first_s" in row else ""
    print(f"{row['case']:<24} {times} {row['ratio']:>7.1f}x {bound:>8} {first}", flush=True)


OTHERS = {
    "networks": run_networks,
    "server": run_server,
    "seeds": run_seeds,
    "recipes": run_recipes,
    "evaluation": run_evaluation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases", nargs="*", help=f"default: all of {', '.join([*CASES, *OTHERS])}; also single networks"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each case")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--tensor-cores", action="store_true", help="products in TensorFloat-32, also the plain loop's")
    options = parser.parse_args()
    global TENSOR_CORES
    TENSOR_CORES = options.tensor_cores
    torch.set_float32_matmul_precision("high" if TENSOR_CORES else "highest")
    chosen = options.cases or [
        *(name for name in CASES if options.device == "cuda" or name != "cifar-cnn-100"),
        *OTHERS,
    ]
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads")
    print(f"{'case':<24} {'engine':>12} {'plain loop':>12} {'ratio':>8} {'wanted':>8} {'first epoch':>11}")
    results: list[dict[str, object]] = []
    for name in chosen:
        if name in networks.NETWORKS:
            rows = run_network(name, options.device, options.seconds)
        elif name in OTHERS:
            rows = OTHERS[name](options.device, options.seconds)
        else:
            rows = [run_case(name, options.device, options.seconds)]
        if name != "networks":  # shown as they come
            for row in rows:
                show(row)
        results += rows
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
