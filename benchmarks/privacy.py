"""What differential privacy costs and hides; rebuilds tables of docs/privacy.md.

FEDDWA_DATA=DIR python benchmarks/privacy.py            # accuracy against epsilon on digits, fashion-mnist
python benchmarks/privacy.py digits --quick             # two rounds, nothing written: does it work?
python benchmarks/privacy.py labels                     # label counts against the update of the head's bias
"""

import argparse
import math
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import feddwa
from feddwa.build import load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.results.palette import styles
from feddwa.trained.audit import label_correlation

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "images" / "privacy.png"
METHODS = {"local": "Local", "fedavg": "FedAvg", "feddwa": "FedDWA", "feddwa_plus": "FedDWA+"}
BUDGETS = (8.0, 32.0, 128.0, math.inf)
SETTINGS: dict[str, dict[str, Any]] = {  # of a client's samples, a batch has a fifth in digits, 1/30 in fashion-mnist
    "digits": {"rounds": 10, "seeds": [0], "batch_size": 14, "lr": 0.2},
    "fashion-mnist": {"rounds": 4, "seeds": [0], "batch_size": 100, "lr": 0.2, "model": "mlp"},
}
CLIP = 1.0
LOCAL = (1000.0, 128.0, 32.0, 8.0)  # budgets at which clients noise what they send
Row = dict[str, float]  # method -> percent


def accuracy(dataset: str, method: str, budget: float, quick: bool) -> float:
    """Percent after the last round, mean over all clients and seeds."""
    private = {} if math.isinf(budget) else {"dp": f"epsilon={budget:g},delta=1e-3,clip={CLIP:g},unit=sample"}
    options = SETTINGS[dataset] | ({"rounds": 2} if quick else {})
    found = feddwa.run(algorithm=method, dataset=dataset, out=False, **options, **private)
    own = [run.summary["accuracy"]["last"] for run in found.values()]
    return float(sum(own) / len(own))


def told(method: str, budget: float, seed: int) -> float:
    """Correlation of the first round's update of the head's bias with label counts, mean over clients; digits."""
    private = "" if math.isinf(budget) else f"epsilon={budget:g},delta=1e-3,clip={CLIP:g},unit=local"
    options: dict[str, Any] = {"algorithm": method, "partition": "dirichlet", "rounds": 10, "seed": seed}
    config = RunConfig(**options, dp=private).resolved()
    found = label_correlation(make_federation(config, make_engine(config, load_task(config))))
    assert found is not None
    return found


def labels() -> str:
    """The rows of the page: a budget each, mean over three seeds."""
    methods = ("fedavg", "feddwa")
    lines = ["| epsilon, `unit=local` | FedAvg | FedDWA |\n| --- | --- | --- |\n"]
    for budget in (math.inf, *LOCAL):
        values = [sum(told(method, budget, seed) for seed in range(3)) / 3 for method in methods]
        name = "none" if math.isinf(budget) else f"{budget:g}"
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |\n")
        print(lines[-1], end="", flush=True)
    return "".join(lines)


def write(name: str, content: str) -> None:
    """Replace a block of the page."""
    page = (DOCS / "privacy.md").read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    (DOCS / "privacy.md").write_text(block.sub(lambda match: match[1] + content + match[2], page), encoding="utf-8")


def table(found: dict[str, dict[float, Row]]) -> str:
    """The rows of the page: a dataset and a budget each."""
    head = f"| data | epsilon | {' | '.join(METHODS.values())} |\n| --- |{' --- |' * (len(METHODS) + 1)}\n"
    lines = [
        f"| {dataset} | {'none' if math.isinf(budget) else f'{budget:g}'} | "
        + " | ".join(f"{row[method]:.1f}" for method in METHODS)
        + " |\n"
        for dataset, rows in found.items()
        for budget, row in rows.items()
    ]
    return head + "".join(lines)


def draw(found: dict[str, dict[float, Row]]) -> None:
    """Accuracy against epsilon, a panel for each dataset; without privacy at the right edge."""
    figure, panels = pyplot.subplots(1, len(found), figsize=(4.5 * len(found), 3.2), squeeze=False)
    for panel, (dataset, rows) in zip(panels[0], found.items(), strict=True):
        for style, (method, title) in zip(styles(list(METHODS)), METHODS.items(), strict=True):
            values = [row[method] for row in rows.values()]
            panel.plot(range(len(rows)), values, marker="o", label=title, color=style.light)
        panel.set_xticks(range(len(rows)), ["none" if math.isinf(each) else f"{each:g}" for each in rows])
        panel.set(title=dataset, xlabel="epsilon", ylabel="accuracy, %")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def main() -> None:
    """Run what is asked for, print it, and write it unless --quick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", choices=[[], *SETTINGS, "labels"], default=[])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.datasets == ["labels"]:
        write("labels", labels())
        return
    found: dict[str, dict[float, Row]] = {}
    for dataset in given.datasets or SETTINGS:
        rows = found[dataset] = {}
        for budget in BUDGETS:
            rows[budget] = {method: accuracy(dataset, method, budget, given.quick) for method in METHODS}
            print(dataset, budget, {name: round(value, 1) for name, value in rows[budget].items()}, flush=True)
    if not given.quick:
        write("utility", table(found))
        draw(found)


if __name__ == "__main__":
    main()
