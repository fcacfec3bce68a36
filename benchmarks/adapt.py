"""What a newcomer gains from the models of a run in which it took no part.

    python benchmarks/adapt.py

FedDWA trains 20 clients in four groups of turned digits on half of the images. The other half are newcomers' alone: 12
of them, three of each turn, train for 10 epochs on some samples and are tested on 200. How FedDWA divides the epochs of
a newcomer between its guidance model and fine-tuning is chosen on newcomers of one quarter of the images; the table is
of newcomers of the last quarter. Accuracy in percent, mean over newcomers.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import feddwa
from feddwa.algorithms import FedDWA
from feddwa.algorithms.newcomer import Newcomer, Others, fine_tuned, nearest_mixed
from feddwa.data import sources
from feddwa.data.dataset import Dataset
from feddwa.engine import Trainer
from feddwa.results import runs
from feddwa.trained.adapt import adapt
from feddwa.trained.samples import Samples

EPOCHS, TESTED, SIZES, TURNS, DRAWS = 10, 200, (20, 50, 100), 4, 3
AHEAD = (1, 2, 5, 8)  # epochs of the guidance model, of EPOCHS


@dataclass(frozen=True)
class Divided(FedDWA):
    """FedDWA whose newcomers spend `ahead` of their epochs on the guidance model."""

    ahead: int = 5

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        return nearest_mixed(trainer, others, epochs, self.ahead, self.top_k)


class FineTuned(FedDWA):
    """FedDWA with the default newcomer rule of most methods."""

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        return fine_tuned(trainer, others, epochs)


def digits() -> tuple[Dataset, list[tuple[np.ndarray, np.ndarray]]]:
    """Half of the digits as a dataset, and two quarters as (x, y)."""
    whole = sources.load("digits")
    order = np.random.default_rng(0).permutation(len(whole.y))
    run, *others = np.split(order, [len(order) // 2, len(order) * 3 // 4])
    kept = Dataset("half-digits", whole.x[run], whole.y[run], len(run) * 4 // 5, whole.classes, whole.mean, whole.std)
    return kept, [(whole.x[rows], whole.y[rows]) for rows in others]


def newcomers(x: np.ndarray, y: np.ndarray, count: int) -> list[Samples]:
    """Turned images, `count` to train on and TESTED to test, of TURNS x DRAWS newcomers."""
    found = []
    for turn, draw in np.ndindex(TURNS, DRAWS):
        rows = np.random.default_rng((turn, draw)).permutation(len(y))[: count + TESTED]
        turned = np.ascontiguousarray(np.rot90(x[rows], turn, axes=(-2, -1)))
        found.append(Samples(turned, y[rows], tuple(map(str, rows))))
    return found


def accuracies(
    out: Path, own: tuple[np.ndarray, np.ndarray], method: type[FedDWA], *param: str
) -> dict[int, dict[str, float]]:
    """Training samples -> "alone", "mean" and "adapted", mean over newcomers."""
    trained = runs.read_models(out).in_memory()
    config = replace(runs.read_config(out), algorithm=f"{__file__}:{method.__name__}", param=param).resolved()
    found = {}
    for count in SIZES:
        each = [
            adapt(config, trained, samples, "newcomer", EPOCHS, TESTED / (count + TESTED)).facts()["results"]
            for samples in newcomers(*own, count)
        ]
        found[count] = {name: float(np.mean([one[name]["accuracy"] for one in each])) for name in each[0]}
    return found


def main() -> None:
    kept, (validation, test) = digits()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        feddwa.run(
            dataset=kept, partition="rotations", model="digits-mlp", rounds=25, batch_size=10, lr=0.1, out=str(out)
        )
        print(f"| on validation newcomers | {' | '.join(f'{count} samples' for count in SIZES)} |")
        chosen = {}
        for ahead in AHEAD:
            row = accuracies(out, validation, Divided, f"ahead={ahead}")
            chosen[ahead] = [own["adapted"] for own in row.values()]
            print(f"| guidance of {ahead} epochs | " + " | ".join(f"{value:.1f}" for value in chosen[ahead]) + " |")
        best = max(AHEAD, key=lambda ahead: sum(chosen[ahead]))
        ours, plain = accuracies(out, test, Divided, f"ahead={best}"), accuracies(out, test, FineTuned)
    print(f"\nchosen: {best} of {EPOCHS} epochs\n\n| training samples | alone | mean | FedDWA | fine-tuned |")
    for count in SIZES:
        values = (*(ours[count][name] for name in ("alone", "mean", "adapted")), plain[count]["adapted"])
        print(f"| {count} | " + " | ".join(f"{value:.1f}" for value in values) + " |")


if __name__ == "__main__":
    main()
