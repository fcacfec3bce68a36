"""Default learning rates for own data: eight kinds of small data, scored on held-out training data.

    python benchmarks/own_rates.py
    python benchmarks/own_rates.py digits waves               # single kinds
    FEDDWA_DATA=DIR python benchmarks/own_rates.py --jobs 4   # with rows of photos, where the datasets are at hand

Accuracy in percent of `local` / `fedavg` after 15 rounds with batch size 10, on the fifth of each client's training
data that --validation sets apart, mean over clients and three seeds. Test data are not looked at. Below the table, for
every kind of input, the rates' mean ranks over its rows and both methods (1 is the best), and the rate that has the
lowest: the one that own data should start with.
"""

import argparse
import functools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.stats import rankdata
from sklearn import datasets

import feddwa
from feddwa.data import sources
from feddwa.data.catalogue import OWN_BY_KIND
from feddwa.errors import InputError

RATES, METHODS, ROUNDS, SEEDS = (0.3, 0.1, 0.03, 0.01), ("local", "fedavg"), 15, (0, 1, 2)
Client = tuple[np.ndarray, np.ndarray]


def divided(x: np.ndarray, y: np.ndarray, clients: int, each: int | None = None) -> list[Client]:
    """`clients` clients with `each` randomly drawn samples, or with all samples."""
    order = np.random.default_rng(0).permutation(len(y))[: None if each is None else clients * each]
    return [(x[rows], y[rows]) for rows in np.array_split(order, clients)]


def photos(name: str) -> list[Client]:
    """Six clients with 120 rows of a named dataset."""
    whole = sources.load(name)
    return divided(np.asarray(whole.x), np.asarray(whole.y), 6, 120)


def digits() -> list[Client]:
    """Ten clients who share scikit-learn's digits."""
    whole = sources.load("digits")
    return divided(whole.x, whole.y, 10)


def table(load: Callable[..., Client], clients: int) -> list[Client]:
    """Clients who share a standardised table of scikit-learn."""
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


def folder(name: str, classes: int = 10, clients: int = 6, each: int = 120, side: int = 64) -> str:
    """A folder <client>/<class>/<number>.png of enlarged photos of some classes, removed when the process ends."""
    whole = sources.load(name)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(np.asarray(whole.y) < classes))[: clients * each]
    place = _temporary()
    for number, row in enumerate(rows):
        path = Path(place, f"client-{number % clients}", f"class-{whole.y[row]:02}", f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(whole.x[row].transpose(1, 2, 0)).resize((side, side), Image.Resampling.BICUBIC).save(path)
    return place


def _temporary() -> str:
    _folders.append(tempfile.TemporaryDirectory(prefix="own-rates-"))
    return _folders[-1].name


_folders: list[tempfile.TemporaryDirectory[str]] = []


@dataclass(frozen=True)
class Kind:
    """A kind of own data, a row of the table."""

    title: str
    inputs: str  # "image", "features", "series" or "tokens"
    make: Callable[[], list[Client] | str]  # clients, or the path of a folder
    dataset: str = ""  # that must be at hand

    @property
    def left_out(self) -> str:
        """Why it cannot be made here, or ""; a kind that can be made is cached."""
        if not self.dataset:
            return ""
        if "FEDDWA_DATA" not in os.environ:
            return f"FEDDWA_DATA does not say where {self.dataset} is"
        try:
            sources.load(self.dataset)
        except InputError as error:
            return str(error)
        return ""


KINDS = {
    "digits": Kind("digits as images, 10 clients", "image", digits),
    "fashion": Kind(
        "Fashion-MNIST, 6 clients with 120 images", "image", lambda: photos("fashion-mnist"), "fashion-mnist"
    ),
    "cifar": Kind("CIFAR-10, 6 clients with 120 images", "image", lambda: photos("cifar10"), "cifar10"),
    "folder": Kind(
        "folder of 64x64 photos of ten classes (Tiny-ImageNet, enlarged), 6 clients with 120 images",
        "image",
        lambda: folder("tiny-imagenet-32"),
        "tiny-imagenet-32",
    ),
    "cancer": Kind("breast cancer table, 6 clients", "features", lambda: table(datasets.load_breast_cancer, 6)),
    "wine": Kind("wine table, 4 clients", "features", lambda: table(datasets.load_wine, 4)),
    "waves": Kind("noisy sine waves of four frequencies, 8 clients", "series", waves),
    "sentences": Kind("sentences with a word that tells the class, 5 clients", "tokens", sentences),
}


@functools.cache
def data(name: str) -> list[Client] | str:
    """The clients of a kind, made once in a process."""
    return KINDS[name].make()


def accuracy(name: str, method: str, rate: float) -> float:
    """Percent on the held-out part of the training data of a kind, mean over clients and seeds."""
    options = {"rounds": ROUNDS, "batch_size": 10, "validation": 0.2, "eval_every": ROUNDS, "out": False}
    found = feddwa.run(algorithm=method, dataset=data(name), lr=rate, seeds=SEEDS, **options)
    return float(np.mean([run.summary["validation"]["last"] for run in found.values()]))


def chosen(inputs: str, scores: Sequence[np.ndarray]) -> str:
    """Text with the rates' mean ranks over the rows of one kind of input. scores: (methods, rates) per row."""
    ranks = rankdata(-np.round(np.concatenate(scores), 1), axis=1).mean(0)  # of what the table shows
    told = ", ".join(f"{rate:g}: {rank:.2f}" for rate, rank in zip(RATES, ranks, strict=True))
    return f"{inputs}: {RATES[int(ranks.argmin())]:g} (mean ranks {told}); the default is {OWN_BY_KIND[inputs].lr:g}"


def main() -> None:
    """Print the table row by row, and the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"default: all of {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options = parser.parse_args()
    unknown = [name for name in options.kinds if name not in KINDS]
    if unknown:
        parser.error(f"{unknown[0]}: unknown; valid: {', '.join(KINDS)}")
    names = []
    for name in options.kinds or KINDS:
        if KINDS[name].left_out:
            print(f"{name} is left out: {KINDS[name].left_out}")
        else:
            names.append(name)
    print(f"| own data | {' | '.join(map(str, RATES))} |")
    print("| --- |" + " --- |" * len(RATES))
    rows: dict[str, list[np.ndarray]] = {}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        work = {
            name: [pool.submit(accuracy, name, method, rate) for method in METHODS for rate in RATES] for name in names
        }
        for name, cells in work.items():
            scores = np.array([cell.result() for cell in cells]).reshape(len(METHODS), len(RATES))
            told = (" / ".join(f"{score:.1f}" for score in column) for column in scores.T)
            print(f"| {KINDS[name].title} | {' | '.join(told)} |", flush=True)
            rows.setdefault(KINDS[name].inputs, []).append(scores)
    print()
    for inputs, scores in rows.items():
        print(chosen(inputs, scores))


if __name__ == "__main__":
    main()
