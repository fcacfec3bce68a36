"""Which rate trains the networks that fit own data? Seven kinds of small own data, scored on held-out training data.

    python benchmarks/own_rates.py
    FEDDWA_DATA=DIR python benchmarks/own_rates.py     # with rows of photos, where the datasets are at hand

Accuracy in percent of `local` / `fedavg` after 15 rounds with batch size 10, on the fifth of each client's training
data that --validation sets apart, mean over clients and three seeds. Test data are not looked at.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from sklearn import datasets

import feddwa
from feddwa.data import sources
from feddwa.errors import InputError

RATES, ROUNDS, SEEDS = (0.3, 0.1, 0.03, 0.01), 15, (0, 1, 2)
Client = tuple[np.ndarray, np.ndarray]


def divided(x: np.ndarray, y: np.ndarray, clients: int, each: int | None = None) -> list[Client]:
    """So many clients with `each` samples, or with all there are, drawn at random."""
    order = np.random.default_rng(0).permutation(len(y))[: None if each is None else clients * each]
    return [(x[rows], y[rows]) for rows in np.array_split(order, clients)]


def photos(name: str) -> list[Client]:
    whole = sources.load(name)
    return divided(np.asarray(whole.x), np.asarray(whole.y), 6, 120)


def digits() -> list[Client]:
    whole = sources.load("digits")
    return divided(whole.x, whole.y, 10)


def table(load: Callable[..., Client], clients: int) -> list[Client]:
    x, y = load(return_X_y=True)
    return divided(((x - x.mean(0)) / x.std(0)).astype(np.float32), y, clients)


def waves() -> list[Client]:
    """Sine waves (1, 64) of four frequencies with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 8 * 60)
    time, phase = np.arange(64) / 64, rng.uniform(0, 2 * np.pi, (len(y), 1))
    x = np.sin(2 * np.pi * 3 * (1 + y[:, None]) * time + phase) + 0.5 * rng.normal(size=(len(y), 64))
    return divided(x[:, None].astype(np.float32), y, 8)


def sentences() -> list[Client]:
    """20 words of 100, one of which tells the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 5 * 100)
    x = rng.integers(4, 100, (len(y), 20))
    x[np.arange(len(y)), rng.integers(0, 20, len(y))] = y
    return divided(x.astype(np.int64), y, 5)


def kinds() -> Iterator[tuple[str, list[Client]]]:
    """Name -> clients; photos only where they are at hand."""
    yield "digits as images, 10 clients", digits()
    for name, title in (("fashion-mnist", "Fashion-MNIST"), ("cifar10", "CIFAR-10")):
        try:
            yield f"{title}, 6 clients with 120 images", photos(name)
        except InputError as error:
            print(f"{title} is left out: {error}")
    yield "breast cancer table, 6 clients", table(datasets.load_breast_cancer, 6)
    yield "wine table, 4 clients", table(datasets.load_wine, 4)
    yield "noisy sine waves of four frequencies, 8 clients", waves()
    yield "sentences with a word that tells the class, 5 clients", sentences()


def accuracy(clients: list[Client], method: str, rate: float) -> float:
    """Percent on the held-out part of the training data, mean over clients and seeds."""
    options = {"rounds": ROUNDS, "batch_size": 10, "validation": 0.2, "eval_every": ROUNDS, "out": False}
    found = feddwa.run(algorithm=method, dataset=clients, lr=rate, seeds=SEEDS, **options)
    return float(np.mean([run.summary["validation"]["last"] for run in found.values()]))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"| own data | {' | '.join(map(str, RATES))} |")
    print("| --- |" + " --- |" * len(RATES))
    for name, clients in kinds():
        cells = [
            " / ".join(f"{accuracy(clients, method, rate):.1f}" for method in ("local", "fedavg")) for rate in RATES
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
