"""What sick and hostile clients do to the others: measured on digits; rebuilds docs/robustness.md and its picture.

python benchmarks/robustness.py                     # everything, three seeds; 20 minutes of one core
python benchmarks/robustness.py choice defended     # these tables alone
python benchmarks/robustness.py --quick             # one seed, two rounds, into a folder of its own: does it work?
"""

import argparse
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import feddwa
from feddwa.results.fairness import fairness

DOCS = Path(__file__).parents[1] / "docs"
CLIENTS = 20
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)  # of attackers
ATTACKS = ("sign-flip", "scaled", "random")
METHODS = ("fedavg", "fedrod", "ditto", "feddwa", "feddwa_plus")
MODEL_ATTACKS = ("sign-flip", "scaled", "random", "free-rider", "alie", "ipm", "min-max", "min-sum")
DEFENCES = ("", "clip", "geometric-median", "centred-clipping")
CHOSEN = {  # by held-out training data of the seed CHOICE, 30 % attackers; the tables' seeds are others
    "fedavg": "centred-clipping", "fedrod": "centred-clipping", "ditto": "centred-clipping",
    "feddwa": "clip", "feddwa_plus": "geometric-median",
}  # fmt: skip
CHOICE = 3
DROPOUT = (0.0, 0.2, 0.5)
USUAL = "K = 5 of 20, the default"
LIMITS: dict[str, dict[str, Any]] = {
    USUAL: {},
    "K = 20: nobody is left out": {"param": ("top_k=20",)},
    "5 clients a round, K = 5": {"participation": 0.25},
}
DIVISIONS = ("rotations", "label-permutation", "groups", "pathological", "dirichlet")
SETTINGS = LIMITS | {division: {"partition": division} for division in DIVISIONS}
COLOURS = {"feddwa": "#0b6e99", "fedavg": "#c2571a", "local": "#777777"}
TITLES = {
    "feddwa": "FedDWA", "fedavg": "FedAvg", "local": "Local", "fedrod": "FedRoD", "ditto": "Ditto",
    "feddwa_plus": "FedDWA+",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One run."""

    honest: float  # percent after the last round, mean over the clients that are no attackers; on test data unless said
    worst: float  # the same of the worst tenth of these
    listened: float | None  # share of the weight that they gave to attackers, mean over rounds
    at_first: float | None  # the same, of the first five rounds
    accuracy: Sequence[float | None]  # (N,) percent; None of attackers
    victim: int | None  # at whom they aim, where they aim at one client


@dataclass(frozen=True)
class Study:
    """Runs that differ by algorithm, defence, clients that are ill or hostile, and seed; each is made once."""

    rounds: int
    seeds: Sequence[int]
    known: dict[tuple[str, ...], list[Measured]]
    validation: float = 0.0  # share of the training data that is held out and scored in place of the test data

    def get(self, algorithm: str, hit: str = "", setting: str = USUAL, defence: str = "") -> list[Measured]:
        """The runs of all seeds; hit: as --attack or, of dropout, --fault has it."""
        key = (algorithm, hit, setting, defence)
        if key not in self.known:
            options = {"rounds": self.rounds, "clients": CLIENTS, "device": "cpu", "defence": defence, "out": False}
            options["validation"] = self.validation
            options |= SETTINGS[setting] | {"fault" if hit.startswith("dropout") else "attack": hit}
            runs = feddwa.run(algorithm=algorithm, seeds=self.seeds, **options)
            self.known[key] = [_measured(each) for each in runs.values()]
            told = f"{algorithm:12} {hit or 'nobody':16} {setting:24} {defence:18}"
            print(f"{told} {mean(run.honest for run in self.known[key]):.2f}", flush=True)
        return self.known[key]


def _measured(result: feddwa.Result) -> Measured:
    attackers = [client for own in result.summary.get("attackers", {}).values() for client in own]
    hostile = np.isin(np.arange(CLIENTS), attackers)
    given = [p[~hostile[ids]][:, hostile[ids]].sum(1) for _, ids, p in result.weights]
    listened = float(np.concatenate(given).mean()) if hostile.any() and given else None
    first = float(np.concatenate(given[:5]).mean()) if hostile.any() and given else None
    accuracy, victim = result.trained.card.accuracy, result.summary.get("victim")
    worst = fairness(np.array(accuracy, dtype=float)).worst_tenth
    last = result.metrics[-1]
    honest = last["validation" if "validation" in last else "before"]["all"]
    return Measured(honest, worst, listened, first, accuracy, victim)


def hit(kind: str, share: float) -> str:
    """As --attack and --fault have it."""
    return f"{kind}={share}" if share else ""


def attack_table(study: Study) -> Iterator[str]:
    """Accuracy of honest clients, and in brackets what of their weight goes to attackers."""
    yield "| attack | method | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |"
    yield "| --- | --- |" + " --- |" * len(SHARES)
    for kind, algorithm in itertools.product(ATTACKS, ("fedavg", "feddwa")):
        cells = [study.get(algorithm, hit(kind, share)) for share in SHARES]
        yield f"| {kind} | {TITLES[algorithm]} | " + " | ".join(map(_cell, cells)) + " |"
    cells = [study.get("local", hit("random", share)) for share in SHARES]  # sends nothing: any attack is none
    yield "| any | Local | " + " | ".join(f"{_honest(cell):.2f}" for cell in cells) + " |"


def collusion_table(study: Study) -> Iterator[str]:
    """30 % of the clients against one: all honest clients, and the victim with and without the attack."""
    yield "| method | defence | honest clients | victim | victim without attack | weight given to attackers |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for algorithm, defence in itertools.product(("fedavg", "feddwa", "feddwa_plus"), ("", "chosen")):
        own = CHOSEN[algorithm] if defence else ""
        hurt, well = (study.get(algorithm, each, defence=own) for each in (hit("collusion", 0.3), ""))
        pairs = list(zip(hurt, well, strict=True))
        victim, before = (mean(pair[place].accuracy[pair[0].victim] for pair in pairs) for place in (0, 1))
        given = mean(each.listened for each in hurt)
        cells = f"{_honest(hurt):.1f} | {victim:.1f} | {before:.1f} | {given:.0%}"
        yield f"| {TITLES[algorithm]} | {own or 'none'} | {cells} |"


def cost_table(study: Study) -> Iterator[str]:
    """What defences cost FedDWA+ without attackers, on data divided in other ways."""
    yield "| partition | " + " | ".join(each or "no defence" for each in DEFENCES) + " |"
    yield "| --- |" + " --- |" * len(DEFENCES)
    for division in DIVISIONS:
        cells = (_honest(study.get("feddwa_plus", setting=division, defence=each)) for each in DEFENCES)
        yield f"| {division} | " + " | ".join(f"{each:.2f}" for each in cells) + " |"


def limits_table(study: Study) -> Iterator[str]:
    """FedDWA where top-K cannot leave attackers out."""
    share = SHARES[-1]
    yield "| setting | no attack | " + " | ".join(f"{kind}, {share:.0%}" for kind in ATTACKS) + " |"
    yield "| --- | --- |" + " --- |" * len(ATTACKS)
    for setting in LIMITS:
        cells = [f"{_honest(study.get('feddwa', '', setting)):.2f}"]
        for kind in ATTACKS:
            runs = study.get("feddwa", hit(kind, share), setting)
            first = mean(each.at_first for each in runs if each.at_first is not None)
            cells.append(f"{_honest(runs):.2f} ({first:.0%})")
        yield f"| {setting} | " + " | ".join(cells) + " |"


def dropout_table(study: Study) -> Iterator[str]:
    """Accuracy where clients drop out of rounds."""
    yield "| method | " + " | ".join(f"{share:.0%} of the clients absent" for share in DROPOUT) + " |"
    yield "| --- |" + " --- |" * len(DROPOUT)
    for algorithm in ("feddwa", "fedavg", "local"):
        cells = [study.get(algorithm, hit("dropout", share)) for share in DROPOUT]
        values = (f"{_honest(cell):.2f} ({_seeds(cell)})" for cell in cells)
        yield f"| {TITLES[algorithm]} | " + " | ".join(values) + " |"


def choice_table(study: Study) -> Iterator[str]:
    """Which defence suits which method: 30 % attackers, on held-out training data of a seed that no other table has."""
    yield "| method | defence | no attack | mean over attacks | worst attack |"
    yield "| --- | --- | --- | --- | --- |"
    for algorithm, defence in itertools.product(METHODS, DEFENCES):
        found = {kind: _honest(study.get(algorithm, hit(kind, 0.3), defence=defence)) for kind in MODEL_ATTACKS}
        worst = min(found, key=found.__getitem__)
        clean = _honest(study.get(algorithm, defence=defence))
        cells = f"{clean:.1f} | {mean(found.values()):.1f} | {found[worst]:.1f}, {worst}"
        yield f"| {TITLES[algorithm]} | {defence or 'none'} | {cells} |"


def defended_table(study: Study) -> Iterator[str]:
    """Every attack and method without defence and with the chosen one: mean and worst tenth of honest clients."""
    shares = SHARES[1:4]
    heads = [f"{share:.0%}{told}" for told in ("", ", defended") for share in shares]
    yield "| attack | method | " + " | ".join(heads) + " |"
    yield "| --- | --- |" + " --- |" * len(heads)
    for algorithm in METHODS:
        bare, defended = (study.get(algorithm, defence=each) for each in ("", CHOSEN[algorithm]))
        yield f"| none | {TITLES[algorithm]} |" + f" {_both(bare)} |" * 3 + f" {_both(defended)} |" * 3
    for kind, algorithm in itertools.product((*MODEL_ATTACKS, "label-flip"), METHODS):
        cells = [
            study.get(algorithm, hit(kind, share), defence=each) for each in ("", CHOSEN[algorithm]) for share in shares
        ]
        yield f"| {kind} | {TITLES[algorithm]} | " + " | ".join(map(_both, cells)) + " |"


def _both(runs: Sequence[Measured]) -> str:
    return f"{_honest(runs):.1f} ({mean(each.worst for each in runs):.1f})"


def _cell(runs: Sequence[Measured]) -> str:
    listened = [each.listened for each in runs if each.listened is not None]
    return f"{_honest(runs):.2f}" + (f" ({mean(listened):.0%})" if listened else "")


def _honest(runs: Sequence[Measured]) -> float:
    return mean(each.honest for each in runs)


def _seeds(runs: Sequence[Measured]) -> str:
    return ", ".join(f"{each.honest:.2f}" for each in runs)


def draw(study: Study, path: Path) -> None:
    """Accuracy of honest clients over the share of attackers, one panel an attack."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    axes = figure.subplots(1, len(ATTACKS), sharey=True)
    for axis, kind in zip(axes, ATTACKS, strict=True):
        for algorithm in ("feddwa", "fedavg", "local"):
            own = "random" if algorithm == "local" else kind
            runs = np.array([[each.honest for each in study.get(algorithm, hit(own, share))] for share in SHARES])
            style = {"color": COLOURS[algorithm], "linestyle": "--" if algorithm == "local" else "-"}
            axis.plot(np.array(SHARES) * 100, runs.mean(1), marker="o", markersize=4, label=TITLES[algorithm], **style)
            axis.fill_between(np.array(SHARES) * 100, runs.min(1), runs.max(1), color=COLOURS[algorithm], alpha=0.15)
        axis.set_title(kind, fontsize=10)
        axis.set_xlabel("attackers, % of the clients")
        axis.grid(alpha=0.3)
        axis.set_ylim(0, 100)
    axes[0].set_ylabel("accuracy of honest clients, %")
    axes[0].legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=150)


def fill(text: str, name: str, lines: Callable[[], Iterator[str]]) -> str:
    """The text with the lines between the marks of a name."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    new = "\n".join([begin, "", *lines(), "", end])
    text, count = pattern.subn(lambda _: new, text)
    if count != 1:
        raise SystemExit(f"docs/robustness.md: the marks of {name!r} are not there once")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to write instead of docs/")
    parser.add_argument("tables", nargs="*", help="some of them instead of all")
    arguments = parser.parse_args()
    rounds, seeds = (2, (0,)) if arguments.quick else (40, (0, 1, 2))
    study, apart = Study(rounds, seeds, {}), Study(rounds, (CHOICE,), {}, 0.2)
    tables = {
        "dropout": partial(dropout_table, study), "attacks": partial(attack_table, study),
        "limits": partial(limits_table, study), "cost": partial(cost_table, study),
        "collusion": partial(collusion_table, study),
        "choice": partial(choice_table, apart),
        "defended": partial(defended_table, study),
    }  # fmt: skip
    if unknown := set(arguments.tables) - set(tables):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; valid: {', '.join(tables)}")
    out = arguments.out or (Path(tempfile.mkdtemp()) if arguments.quick else DOCS)
    (out / "images").mkdir(parents=True, exist_ok=True)
    text = (DOCS / "robustness.md").read_text(encoding="utf-8")
    for name in arguments.tables or tables:
        text = fill(text, name, tables[name])
        (out / "robustness.md").write_text(text, encoding="utf-8")
    if not arguments.tables or "attacks" in arguments.tables:
        draw(study, out / "images" / "robustness.png")
    print(f"wrote {out / 'robustness.md'}")


if __name__ == "__main__":
    main()
