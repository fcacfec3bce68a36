"""The runs behind docs/robustness.md, stored one by one so that the grid can be stopped and continued.

A cell is one method under one attack and one defence, on one dataset; its seeds are trained in lockstep. A line of
results/robustness/DATASET.jsonl is a cell.
"""

import itertools
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Self

import numpy as np

import feddwa
from feddwa.results.fairness import fairness

STORE = Path(__file__).parents[1] / "results" / "robustness"
DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"clients": 20, "rounds": 15, "lr": 0.3},
    "har": {
        "dataset": "har", "model": "mlp", "model_arg": ("hidden=16",), "rounds": 8, "local_steps": 6,
        "batch_size": 20, "drop_last": True,
    },
}  # fmt: skip
USUAL = "K = 5 of 20, the default"
LIMITS: dict[str, dict[str, Any]] = {  # of FedDWA
    USUAL: {},
    "K = 20: nobody is left out": {"param": ("top_k=20",)},
    "5 clients a round, K = 5": {"participation": 0.25},
}
DIVISIONS = ("rotations", "label-permutation", "groups", "pathological", "dirichlet")
ABSENT = {f"{share:.0%} of the clients absent": {"fault": f"dropout={share}"} for share in (0.2, 0.5)}
SETTINGS = LIMITS | ABSENT | {division: {"partition": division} for division in DIVISIONS}

METHODS = ("fedavg", "fedrod", "ditto", "feddwa", "feddwa_plus")
MODEL_ATTACKS = ("sign-flip", "scaled", "random", "free-rider", "alie", "ipm", "min-max", "min-sum", "collusion")
ATTACKS = {"digits": (*MODEL_ATTACKS, "label-flip", "backdoor"), "har": (*MODEL_ATTACKS, "label-flip")}
SHARES = (0.2, 0.1, 0.3)  # of attackers, in the order in which they are computed
SEEDS, CHOICE_SEEDS = (0, 1, 2), (3, 4)
LOUD = ("sign-flip", "scaled", "random")
CHOICE_ATTACKS, CHOICE_SHARE = ("sign-flip", "scaled", "alie", "min-max"), 0.3

NONE = "none"
DEFENCES = (NONE, "clip", "geometric-median")
OF_ONE = (*DEFENCES, "centred-clipping", "nnm,trimmed-mean")  # for methods with one mean for all
OF_ROWS = (*DEFENCES, "clip,geometric-median", "clip,robust-rows")  # for those that mix for every client
CANDIDATES = {name: OF_ROWS if name.startswith("feddwa") else OF_ONE for name in METHODS}


@dataclass(frozen=True)
class Cell:
    """The setting of a run."""

    dataset: str
    algorithm: str
    attack: str = ""  # "" = nobody attacks
    share: float = 0.0
    defence: str = NONE
    setting: str = USUAL
    choice: bool = False  # on held-out training data and seeds that no table of results has

    @property
    def options(self) -> dict[str, Any]:
        """The options of `feddwa.run`."""
        return DATASETS[self.dataset] | SETTINGS[self.setting] | {
            "algorithm": self.algorithm, "attack": f"{self.attack}={self.share}" if self.attack else "",
            "defence": self.defence, "validation": 0.2 if self.choice else 0.0,
            "seeds": CHOICE_SEEDS if self.choice else SEEDS,
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Results by seed."""

    honest: list[float]  # percent after the last round, mean over honest clients; on held-out data where chosen by
    accuracy: list[list[float | None]]  # of every client on test data; None of attackers
    triggered: list[float]  # success of a backdoor in percent; nothing where there is none
    given: list[float]  # percent of their weight that honest clients give to attackers, mean over rounds
    at_first: list[float]  # the same of the first five rounds
    victim: list[int]  # at whom attackers aim, where they aim at one client

    @property
    def mean(self) -> float:
        """Honest clients' accuracy, mean over seeds."""
        return mean(self.honest)

    @property
    def worst(self) -> float:
        """Accuracy of their worst tenth, mean over seeds."""
        found = [fairness(np.array(own, dtype=float)) for own in self.accuracy]
        return mean(each.worst_tenth for each in found if each is not None)

    def of(self, attacked: Self) -> float:
        """The mean accuracy over the clients that are honest in another outcome."""
        pairs = zip(self.accuracy, attacked.accuracy, strict=True)
        return mean(mean(a for a, b in zip(*pair, strict=True) if a is not None and b is not None) for pair in pairs)


def compute(options: Mapping[str, Any]) -> Outcome:
    """Run a cell's options."""
    results = feddwa.run(device="cpu", out=False, eval_every=options["rounds"], **options).values()
    last = [result.metrics[-1] for result in results]
    part = "validation" if options["validation"] else "before"
    given = [found for result in results if (found := _given(result))]
    return Outcome(
        honest=[round(line[part]["all"], 3) for line in last],
        accuracy=[[_rounded(each) for each in result.trained.card.accuracy] for result in results],
        triggered=[round(line["triggered"]["all"], 2) for line in last if "triggered" in line],
        given=[round(100 * mean(found), 2) for found in given],
        at_first=[round(100 * mean(found[:5]), 2) for found in given],
        victim=[result.summary["victim"] for result in results if "victim" in result.summary],
    )


def _given(result: feddwa.Result) -> list[float]:
    """By round, the share of their weight that honest clients give to attackers."""
    attackers = [client for own in result.summary.get("attackers", {}).values() for client in own]
    hostile = [np.isin(ids, attackers) for _, ids, _ in result.weights]
    pairs = zip(result.weights, hostile, strict=True)
    return [float(p[~bad][:, bad].sum(1).mean()) for (_, _, p), bad in pairs if attackers and not bad.all()]


def _rounded(accuracy: float | None) -> float | None:
    return None if accuracy is None or np.isnan(accuracy) else round(accuracy, 2)


class Store(dict[Cell, Outcome]):
    """The cells of a folder."""

    def __init__(self, folder: Path = STORE) -> None:
        super().__init__()
        self.folder = folder
        for path in sorted(folder.glob("*.jsonl")):
            for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                self[Cell(**line["cell"])] = Outcome(**line["outcome"])

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Append a cell to its file."""
        self[cell] = outcome
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"cell": asdict(cell), "outcome": asdict(outcome)}, separators=(",", ":"))
        with (self.folder / f"{cell.dataset}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def chosen(self, algorithm: str) -> str | None:
        """The defence with the best worst case on held-out data, ties by the mean; None while cells are missing."""
        scores = {}
        for defence in CANDIDATES[algorithm]:
            cells = choice_cells(algorithm, defence)
            if any(cell not in self for cell in cells):
                return None
            found = [self[cell].mean for cell in cells]
            scores[defence] = min(found), mean(found)
        return max(scores, key=scores.__getitem__)


def choice_cells(algorithm: str, defence: str) -> list[Cell]:
    """The cells by which a defence is chosen, the first without an attack."""
    attacks = [("", 0.0), *((attack, CHOICE_SHARE) for attack in CHOICE_ATTACKS)]
    return [Cell("digits", algorithm, *attack, defence=defence, choice=True) for attack in attacks]


def grid_cells(dataset: str, algorithm: str, share: float, defence: str) -> list[Cell]:
    """A method without attack, then under every attack with this share."""
    attacks = [("", 0.0), *((attack, share) for attack in ATTACKS[dataset])]
    return [Cell(dataset, algorithm, *attack, defence) for attack in attacks]


def limit_cells(setting: str) -> list[Cell]:
    """FedDWA without a defence, first without an attack, then under the loud ones."""
    attacks = [("", 0.0), *((attack, SHARES[-1]) for attack in LOUD)]
    return [Cell("digits", "feddwa", *attack, setting=setting) for attack in attacks]


def cost_cells(store: Store, division: str) -> list[Cell]:
    """FedDWA+ without an attack, without and with a defence, on held-out data."""
    defences = dict.fromkeys((NONE, "clip", "geometric-median", store.chosen("feddwa_plus") or NONE))
    return [Cell("digits", "feddwa_plus", defence=each, setting=division, choice=True) for each in defences]


def absence_cells(algorithm: str) -> list[Cell]:
    """A method with increasing shares of absent clients, from 0."""
    return [Cell("digits", algorithm, setting=setting) for setting in (USUAL, *ABSENT)]


def stages(store: Store) -> Iterator[list[Cell]]:
    """All cells in running order; later ones depend on the defences chosen by earlier ones."""
    for share, name in itertools.product(SHARES, reversed(METHODS)):
        yield [cell for dataset in DATASETS for cell in grid_cells(dataset, name, share, NONE)]
        yield [cell for defence in CANDIDATES[name] for cell in choice_cells(name, defence)]
        best = store.chosen(name)
        yield [cell for dataset in DATASETS for cell in grid_cells(dataset, name, share, best or NONE)]
    yield [cell for setting in LIMITS for cell in limit_cells(setting)]
    yield [cell for division in DIVISIONS for cell in cost_cells(store, division)]
    yield [cell for name in ("feddwa", "fedavg", "local") for cell in absence_cells(name)]


def fill(store: Store, jobs: int) -> None:
    """Compute all missing cells."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for cells in stages(store):
            compute_missing(store, cells, pool)


def compute_missing(store: Store, cells: Sequence[Cell], pool: ProcessPoolExecutor) -> None:
    """Compute the cells that are not stored."""
    missing = [cell for cell in dict.fromkeys(cells) if cell not in store]
    running = {pool.submit(compute, cell.options): cell for cell in missing}
    for done, future in enumerate(as_completed(running), 1):
        store.add(running[future], future.result())
        print(f"{done}/{len(missing)} {running[future]} {store[running[future]].mean:.2f}", file=sys.stderr, flush=True)
