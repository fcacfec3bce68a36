"""What sick and hostile clients do to the others: measured on digits; rebuilds docs/robustness.md and its picture.

python benchmarks/robustness.py            # everything, three seeds; a few minutes on two cores
python benchmarks/robustness.py --quick    # one seed, two rounds, into a folder of its own: does it work?
"""

import argparse
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import feddwa

DOCS = Path(__file__).parents[1] / "docs"
CLIENTS = 20
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)  # of attackers
ATTACKS = ("sign-flip", "scaled", "random")
DROPOUT = (0.0, 0.2, 0.5)
USUAL = "K = 5 of 20, the default"
SETTINGS: dict[str, dict[str, Any]] = {
    USUAL: {},
    "K = 20: nobody is left out": {"param": ("top_k=20",)},
    "5 clients a round, K = 5": {"participation": 0.25},
}
COLOURS = {"feddwa": "#0b6e99", "fedavg": "#c2571a", "local": "#777777"}
TITLES = {"feddwa": "FedDWA", "fedavg": "FedAvg", "local": "Local"}


@dataclass(frozen=True)
class Measured:
    """One run."""

    honest: float  # percent after the last round, mean over the clients that are no attackers
    listened: float | None  # share of the weight that they gave to attackers, mean over rounds
    at_first: float | None  # the same, of the first five rounds


@dataclass(frozen=True)
class Study:
    """Runs that differ by algorithm, clients that are ill or hostile, and seed; each is made once."""

    rounds: int
    seeds: Sequence[int]
    known: dict[tuple[str, str, str], list[Measured]]

    def get(self, algorithm: str, hit: str = "", setting: str = USUAL) -> list[Measured]:
        """The runs of all seeds; hit: as --attack or, of dropout, --fault has it."""
        key = (algorithm, hit, setting)
        if key not in self.known:
            self.known[key] = [self._run(algorithm, hit, seed, SETTINGS[setting]) for seed in self.seeds]
            print(f"{algorithm:7} {hit or 'nobody':16} {setting:24} {mean(run.honest for run in self.known[key]):.2f}")
        return self.known[key]

    def _run(self, algorithm: str, hit: str, seed: int, setting: dict[str, Any]) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            options = {"rounds": self.rounds, "clients": CLIENTS, "checkpoint_every": 0, "device": "cpu"}
            options |= setting | {"fault" if hit.startswith("dropout") else "attack": hit}
            result = feddwa.run(algorithm=algorithm, seed=seed, out=f"{folder}/run", **options)
        attackers = [client for own in result.summary.get("attackers", {}).values() for client in own]
        hostile = np.isin(np.arange(CLIENTS), attackers)
        given = [p[~hostile[ids]][:, hostile[ids]].sum(1) for _, ids, p in result.weights]
        listened = float(np.concatenate(given).mean()) if hostile.any() else None
        first = float(np.concatenate(given[:5]).mean()) if hostile.any() else None
        return Measured(result.metrics[-1]["before"]["all"], listened, first)


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


def limits_table(study: Study) -> Iterator[str]:
    """FedDWA where top-K cannot leave attackers out."""
    share = SHARES[-1]
    yield "| setting | no attack | " + " | ".join(f"{kind}, {share:.0%}" for kind in ATTACKS) + " |"
    yield "| --- | --- |" + " --- |" * len(ATTACKS)
    for setting in SETTINGS:
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
    arguments = parser.parse_args()
    study = Study(2, (0,), {}) if arguments.quick else Study(40, (0, 1, 2), {})
    out = arguments.out or (Path(tempfile.mkdtemp()) if arguments.quick else DOCS)
    text = (DOCS / "robustness.md").read_text(encoding="utf-8")
    text = fill(text, "dropout", lambda: dropout_table(study))
    text = fill(text, "attacks", lambda: attack_table(study))
    text = fill(text, "limits", lambda: limits_table(study))
    (out / "images").mkdir(parents=True, exist_ok=True)
    draw(study, out / "images" / "robustness.png")
    (out / "robustness.md").write_text(text, encoding="utf-8")
    print(f"wrote {out / 'robustness.md'} and {out / 'images' / 'robustness.png'}")


if __name__ == "__main__":
    main()
