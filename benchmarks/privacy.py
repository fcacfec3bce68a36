"""What differential privacy costs: accuracy against epsilon, each sample private; rebuilds a table of docs/privacy.md.

FEDDWA_DATA=DIR python benchmarks/privacy.py            # digits, fashion-mnist
python benchmarks/privacy.py digits --quick             # two rounds, nothing written: does it work?
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
from feddwa.results.palette import styles

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "images" / "privacy.png"
METHODS = {"local": "Local", "fedavg": "FedAvg", "feddwa": "FedDWA", "feddwa_plus": "FedDWA+"}
BUDGETS = (8.0, 32.0, 128.0, math.inf)
SETTINGS: dict[str, dict[str, Any]] = {  # of a client's samples, a batch has a fifth in digits, 1/30 in fashion-mnist
    "digits": {"rounds": 10, "seeds": [0], "batch_size": 14, "lr": 0.2},
    "fashion-mnist": {"rounds": 4, "seeds": [0], "batch_size": 100, "lr": 0.2, "model": "mlp"},
}
CLIP = 1.0
Row = dict[str, float]  # method -> percent


def accuracy(dataset: str, method: str, budget: float, quick: bool) -> float:
    """Percent after the last round, mean over all clients and seeds."""
    private = {} if math.isinf(budget) else {"dp": f"epsilon={budget:g},delta=1e-3,clip={CLIP:g},unit=sample"}
    options = SETTINGS[dataset] | ({"rounds": 2} if quick else {})
    found = feddwa.run(algorithm=method, dataset=dataset, out=False, **options, **private)
    own = [run.summary["accuracy"]["last"] for run in found.values()]
    return float(sum(own) / len(own))


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
    parser.add_argument("datasets", nargs="*", choices=[[], *SETTINGS], default=[])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    found: dict[str, dict[float, Row]] = {}
    for dataset in given.datasets or SETTINGS:
        rows = found[dataset] = {}
        for budget in BUDGETS:
            rows[budget] = {method: accuracy(dataset, method, budget, given.quick) for method in METHODS}
            print(dataset, budget, {name: round(value, 1) for name, value in rows[budget].items()}, flush=True)
    if not given.quick:
        page = (DOCS / "privacy.md").read_text(encoding="utf-8")
        new = re.sub(
            r"(<!-- utility -->\n).*?(<!-- end -->)",
            lambda match: match[1] + table(found) + match[2],
            page,
            flags=re.DOTALL,
        )
        (DOCS / "privacy.md").write_text(new, encoding="utf-8")
        draw(found)


if __name__ == "__main__":
    main()
