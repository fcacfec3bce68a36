"""docs/reproduction.md, written from the results alone."""

import os
from pathlib import Path

from feddwa.paper.figures import draw
from feddwa.paper.specs import Experiment, experiments
from feddwa.paper.store import Store
from feddwa.paper.summary import GAP, gaps
from feddwa.paper.tables import Table, findings, tables_of

FRAME = """# Reproduction of the paper

Every table and figure of *FedDWA: Personalized Federated Learning with Dynamic Weight Adjustment* (Liu et al., IJCAI
2023), run again with this package: ours beside the paper's numbers. This page is written by `feddwa reproduce docs`
from the files in `results/`, and from nothing else. Each of them holds one run: its configuration, seed, code version,
machine, time and the accuracy of every round. The heading of a section gives the command that runs what is missing of
it; finished runs are not run again, interrupted ones go on.

## What is compared

- **Two metrics.** *The paper's*: the clients of the round, weighted by their test samples, tested before they train,
  and of these 100 numbers the best. *All clients*: every client counts once, whether it took part or not; the best
  round, and the last, which is what a user would be left with. Where everybody takes part and all clients have the same
  number of test images (Table 1), both agree but for the round that is picked.
- **Mean ± standard deviation over seeds.** A seed changes the division of the data, the first model, the batches and
  who takes part; methods are compared seed by seed. Where the difference to the best method is not larger than its
  standard deviation it is called a tie. The best and what ties with it are in bold.
- **Gain over Local** is a client's accuracy at the end less what it reaches alone on the same data: the mean, the mean
  of the worst tenth of the clients, and the share of clients that lose by joining.
- **Cost.** MiB up and down and GFLOPs of local training (forward and backward) per participating client and round,
  seconds per run on the machine that is named. Seeds that were trained together as one program share its time.

## What is the paper's and what is ours

Data, division, networks, rounds, batch size and rate are the paper's, and where its text and its authors' code
disagree, the code's: [the partitions](data.md) and [the methods](algorithms/README.md) say so point by point.
Every method gets the same data, epochs, rate and rounds, and no tuning beyond the paper's own: the values that the
paper prints are used as they are (K = 5 and one guidance epoch for FedDWA, mu = 1 for FedProx, beta = 0.1 for FedAvgM,
lambda = 1 and K = 5 for pFedMe, sigma = alpha = 1 and lambda = 0.1 for FedAMP, M = 5 for FedFomo). What it does not
print is a default, the same for all data: per-FedAvg is first order with both rates 0.01 and adapts for one epoch;
FedAvg_FT tunes for one epoch; pFedMe's inner rate is 0.01; FedFomo and L2C hold out 20 % of the training data, which
the paper's table of FLOPs implies; L2C learns its weights by Adam with rate 0.1. ClusterFL's two tolerances depend on
the task, and the paper tuned them without printing them: TUNED
BatchNorm statistics stay with their client for all methods alike, as in the authors' code.

Not at hand when this was written: CIFAR-100, CINIC-10 and EMNIST byclass. Their cells say "not run here"; with the data
in place the same commands run them. What stands in for EMNIST is named as what it is: a third of EMNIST letters (41,600
training images of 26 classes). Tiny-ImageNet is at 32 pixels, the size that the paper's text names (its code loads 64),
from a lossy copy.
"""


def write_page(store: Store, folder: Path) -> list[Path]:
    """Write reproduction.md and its figures; the same results give the same bytes."""
    figures = folder / "reproduction"
    parts, written = [FRAME.replace("TUNED", tuned_text())], []
    for experiment in experiments().values():
        drawn = draw(experiment, store, figures)
        parts.append(section(experiment, store, [path.relative_to(folder) for path in drawn]))
        written += drawn
    page = folder / "reproduction.md"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = page.with_suffix(".part")
    temporary.write_text("\n".join(parts), encoding="utf-8")
    os.replace(temporary, page)
    return [page, *written]


def section(experiment: Experiment, store: Store, figures: list[Path]) -> str:
    """One table or figure of the paper."""
    lines = [f"## {experiment.title}", "", "```sh", f"feddwa reproduce {experiment.name}", "```", ""]
    lines += ["The paper says:", "", *(f"- {claim}" for claim in experiment.claims)]
    if told := findings(experiment, store):
        lines += ["", "We find:", "", *(f"- {text}" for text in told)]
    for table in tables_of(experiment, store):
        lines += ["", *markdown(table)]
    for path in figures:
        lines += ["", f"![{experiment.title}]({path.as_posix()})"]
    if experiment.remarks:
        lines += ["", *(f"- {remark}" for remark in experiment.remarks)]
    wide = gaps(experiment, store) if experiment.paper and experiment.trains else []
    if wide:
        lines += ["", f"Cells more than {GAP:g} points from the paper's number:", ""]
        lines += [
            f"- {gap.column.name}, {gap.row.label}: {gap.ours:.2f} against {gap.paper:.2f}. "
            + (gap.reason or "No reason is known yet.")
            for gap in wide
        ]
    return "\n".join([*lines, ""])


def markdown(table: Table) -> list[str]:
    """A table with its title and note."""
    lines = [f"### {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    lines.append("| " + " | ".join(table.header) + " |")
    lines.append("| " + " | ".join(["---", *["---:"] * (len(table.header) - 1)]) + " |")
    for row in table.rows:
        lines.append("| " + " | ".join(f"**{cell[:-1]}**" if cell.endswith("*") else cell for cell in row) + " |")
    return lines


def tuned_text() -> str:
    """What was set for single columns, in words."""
    from feddwa.paper.specs import tuned

    found = [f"{column}: {', '.join(values)}" for column, methods in tuned().items() for values in methods.values()]
    return "; ".join(found) + "." if found else "here they are the original's, 0.4 and 1.6."
