"""Utility, membership inference and label leakage under differential privacy: tables and figure of docs/privacy.md.

FEDDWA_DATA=DIR python benchmarks/privacy.py utility        # accuracy against epsilon on digits and har
FEDDWA_DATA=DIR python benchmarks/privacy.py utility har    # on one of them, the page's rows of the other stay
python benchmarks/privacy.py audit                          # `feddwa audit privacy` on digits, without and with noise
python benchmarks/privacy.py labels                         # label counts against the update of the head's bias
"""

import argparse
import contextlib
import io
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import feddwa
from feddwa import cli
from feddwa.build import load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.results.palette import styles
from feddwa.trained.audit import label_correlation

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "privacy.md"
PICTURE = DOCS / "images" / "privacy.png"
METHODS = {"local": "Local", "fedavg": "FedAvg", "feddwa": "FedDWA", "feddwa_plus": "FedDWA+"}
BUDGETS = (8.0, 32.0, 128.0, math.inf)
SETTINGS: dict[str, dict[str, Any]] = {  # a batch has a fifth of a client's samples in digits, a quarter in har
    "digits": {"rounds": 10, "batch_size": 14, "lr": 0.2},
    "har": {"rounds": 5, "batch_size": 64, "lr": 0.2, "model": "mlp", "model_arg": ("hidden=16",)},
}
AUDITED = {"clients": 40, "rounds": 20, "batch_size": 7, "lr": 0.3}  # 36 samples are soon memorised
AUDIT_BUDGETS = (math.inf, 8.0, 1.0)
LOCAL = (math.inf, 1000.0, 128.0, 32.0, 8.0)  # budgets at which clients noise what they send
Row = dict[str, float]  # method -> percent


def private(budget: float, unit: str = "sample") -> dict[str, str]:
    """Options of a private run."""
    return {} if math.isinf(budget) else {"dp": f"epsilon={budget:g},delta=1e-3,clip=1,unit={unit}"}


def shown(budget: float) -> str:
    """An epsilon as text for tables."""
    return "none" if math.isinf(budget) else f"{budget:g}"


def accuracy(dataset: str, method: str, budget: float) -> float:
    """Percent after the last round, mean over all clients."""
    options = SETTINGS[dataset] | private(budget)
    options |= {"dataset": dataset, "eval_every": options["rounds"], "device": "cpu", "out": False}
    return feddwa.run(algorithm=method, **options).summary["accuracy"]["last"]


def utility(datasets: Sequence[str]) -> None:
    """Table and figure of accuracy against epsilon."""
    found = known()
    for dataset in datasets or SETTINGS:
        rows = found[dataset] = {}
        for budget in BUDGETS:
            rows[budget] = {method: accuracy(dataset, method, budget) for method in METHODS}
            print(dataset, budget, {name: round(value, 1) for name, value in rows[budget].items()}, flush=True)
    lines = (
        f"| {dataset} | {shown(budget)} | {' | '.join(f'{row[method]:.1f}' for method in METHODS)} |"
        for dataset, rows in found.items()
        for budget, row in rows.items()
    )
    write("utility", ("data", "epsilon", *METHODS.values()), lines)
    draw(found)


def known() -> dict[str, dict[float, Row]]:
    """The numbers of the page's table."""
    found: dict[str, dict[float, Row]] = {}
    match = block("utility").search(PAGE.read_text(encoding="utf-8"))
    for line in match[2].splitlines()[2:] if match else ():
        dataset, budget, *values = line.strip("| ").split(" | ")
        epsilon = math.inf if budget == "none" else float(budget)
        found.setdefault(dataset, {})[epsilon] = dict(zip(METHODS, map(float, values), strict=True))
    return found


def draw(found: dict[str, dict[float, Row]]) -> None:
    """Accuracy against epsilon, a panel for each dataset; without privacy at the right edge."""
    figure, panels = pyplot.subplots(1, len(found), figsize=(4.5 * len(found), 3.2), squeeze=False)
    for panel, (dataset, rows) in zip(panels[0], found.items(), strict=True):
        for style, (method, title) in zip(styles(list(METHODS)), METHODS.items(), strict=True):
            values = [row[method] for row in rows.values()]
            panel.plot(range(len(rows)), values, marker="o", label=title, color=style.light)
        panel.set_xticks(range(len(rows)), [shown(each) for each in rows])
        panel.set(title=dataset, xlabel="epsilon", ylabel="accuracy, %")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def audit() -> None:
    """Table of `feddwa audit privacy` for runs without and with noise."""
    heads = "method", "epsilon", "accuracy", "AUC, loss", "AUC, reference", "true positives, loss", "label counts"
    lines = []
    for method in ("local", "feddwa"):
        for budget in AUDIT_BUDGETS:
            lines.append(f"| {METHODS[method]} | {shown(budget)} | {' | '.join(audited(method, budget))} |")
            print(lines[-1], flush=True)
    write("audit", heads, lines)


def audited(method: str, budget: float) -> list[str]:
    """Accuracy, and the figures of an audit of one run."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        run = feddwa.run(algorithm=method, device="cpu", out=f"{folder}/run", **AUDITED, **private(budget))
        cli.main(["audit", "privacy", f"{folder}/run"])
    told = printed.getvalue()
    areas, low = re.findall(r"AUC (\S+)", told), re.findall(r"false ones (\S+)%", told)
    counts = re.search(r"correlation (\S+)", told)
    return [f"{run.summary['accuracy']['last']:.1f}", *areas, f"{low[0]} %", counts[1] if counts else "not sent"]


def labels() -> None:
    """Table of label-count leakage when clients add noise to their updates; mean over three seeds."""
    methods, lines = ("fedavg", "feddwa"), []
    for budget in LOCAL:
        values = [sum(read(method, budget, seed) for seed in range(3)) / 3 for method in methods]
        lines.append(f"| {shown(budget)} | {' | '.join(f'{value:.2f}' for value in values)} |")
        print(lines[-1], flush=True)
    write("labels", ("epsilon, `unit=local`", *(METHODS[each] for each in methods)), lines)


def read(method: str, budget: float, seed: int) -> float:
    """Correlation of the first round's update of the head's bias with label counts, mean over clients; digits."""
    options: dict[str, Any] = {"algorithm": method, "partition": "dirichlet", "rounds": 10, "seed": seed}
    config = RunConfig(**options, **private(budget, "local")).resolved()
    found = label_correlation(make_federation(config, make_engine(config, load_task(config))))
    assert found is not None
    return found


def write(name: str, heads: Sequence[str], lines: Iterable[str]) -> None:
    """Put a table between its marks on the page."""
    table = "".join(f"{line}\n" for line in (f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads), *lines))
    text, count = block(name).subn(lambda match: match[1] + table + match[3], PAGE.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"docs/privacy.md: the marks of {name!r} are not there once")
    PAGE.write_text(text, encoding="utf-8")


def block(name: str) -> re.Pattern[str]:
    """A table between its marks: begin, lines, end."""
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["utility", "audit", "labels"])
    parser.add_argument("datasets", nargs="*", choices=[[], *SETTINGS], default=[], help="of utility [all]")
    given = parser.parse_args()
    if given.datasets and given.what != "utility":
        parser.error(f"{given.what} is of digits")
    if given.what == "utility":
        utility(given.datasets)
    else:
        {"audit": audit, "labels": labels}[given.what]()


if __name__ == "__main__":
    main()
