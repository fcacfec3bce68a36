"""Accuracy under faults and attacks: tables and figure of docs/robustness.md.

python benchmarks/robustness.py grid --jobs 2     # runs what results/robustness has not yet, then the page
python benchmarks/robustness.py tables            # page and figure, from what there is

Two datasets: `digits`, and `har`, whose file FEDDWA_DATA has. It can be stopped at any time and continued.
"""

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import robustness_tables as made
from matplotlib import pyplot
from robustness_cells import DATASETS, METHODS, NONE, Cell, Store, fill

from feddwa.results.palette import styles

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "images" / "robustness.png"


def tables(store: Store) -> dict[str, Iterable[str]]:
    """Name -> the lines of a table of the page."""
    found: dict[str, Callable[[Store], Iterable[str]]] = {
        "lost": made.lost_table, "choice": made.choice_table, "backdoor": made.backdoor_table,
        "weight": made.weight_table, "collusion": made.collusion_table, "cost": made.cost_table,
        "limits": made.limits_table, "dropout": made.dropout_table,
    }  # fmt: skip
    lines = {name: table(store) for name, table in found.items()}
    for dataset in DATASETS:
        lines[f"grid-{dataset}"] = made.grid_table(store, dataset)
    return lines


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with the lines between the marks of a name."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    new = "\n".join([begin, "", *lines, "", end])
    text, count = pattern.subn(lambda _: new, text)
    if count != 1:
        raise SystemExit(f"docs/robustness.md: the marks of {name!r} are not there once")
    return text


def renewed(text: str, store: Store) -> str:
    """The page with tables from the stored cells; tables without any cell stay as they are."""
    for name, lines in tables(store).items():
        found = list(lines)
        if any(re.search(r"\d\.\d", line) for line in found):
            text = between(text, name, found)
    return text


def draw(store: Store) -> None:
    """A panel per dataset: points lost to the worst attack by share of attackers, with the best defence and without."""
    figure, panels = pyplot.subplots(1, len(DATASETS), figsize=(4.5 * len(DATASETS), 3.4), squeeze=False)
    for panel, dataset in zip(panels[0], DATASETS, strict=True):
        for style, method in zip(styles(list(METHODS)), METHODS, strict=True):
            for defence, dash in ((store.chosen(method), "solid"), (NONE, "dashed")):
                found = [made.losses(store, dataset, method, defence or NONE, share) for share in made.SHARES]
                bare, clean = (store.get(Cell(dataset, method, defence=each or NONE)) for each in (NONE, defence))
                cost = bare.mean - clean.mean if bare and clean else float("nan")
                worst = [cost, *(max(own.values(), default=float("nan")) for own in found)]
                label = made.TITLES[method] if dash == "solid" else None
                shares = [0, *(100 * share for share in made.SHARES)]
                panel.plot(shares, worst, color=style.light, linestyle=dash, marker=".", label=label)
        panel.set(title=dataset, xlabel="attackers, % of the clients", ylabel="points lost to the worst attack")
        panel.set_xticks(shares)
        panel.grid(alpha=0.3)
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grid", "tables"])
    parser.add_argument("--jobs", type=int, default=1, help="processes that run what is missing")
    given, store = parser.parse_args(), Store()
    if given.what == "grid":
        fill(store, given.jobs)
    page = DOCS / "robustness.md"
    page.write_text(renewed(page.read_text(encoding="utf-8"), store), encoding="utf-8")
    draw(store)
    print(f"wrote {page} and {PICTURE}: {len(store)} cells")


if __name__ == "__main__":
    main()
