"""Finished runs as one figure: curves over the rounds, and the weights of the best method's last round."""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from feddwa.results.display import Methods, best_method, curve, last_panel, measure_of
from feddwa.results.palette import styles
from feddwa.results.plot import heat_map

SIZE = (7.2, 2.9)  # inches
DOTS = 110  # per inch in a notebook


class Drawing(Figure):
    """A Matplotlib figure that a notebook shows once, whether pyplot is imported or not."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DOTS)
        return file.getvalue()


def drawing(methods: Methods, path: str | Path | None = None) -> Drawing:
    """The figure, also saved to `path` if given."""
    best = best_method(methods)
    first = None if best is None else next(iter(methods[best].values()))
    panel = None if best is None or first is None else last_panel(best, first)
    figure = Drawing(figsize=SIZE, layout="constrained")
    left, *right = figure.subplots(1, 1 if panel is None else 2, squeeze=False).flat
    algorithms: Sequence[str] = [str(next(iter(runs.values())).summary["algorithm"]) for runs in methods.values()]
    for (name, runs), style in zip(methods.items(), styles(algorithms), strict=True):
        for place, run in enumerate(runs.values()):
            label = None if place else name
            left.plot(*curve(run), color=style.light, linestyle=style.dash, label=label, linewidth=1.4)
    measure = measure_of(next(iter(next(iter(methods.values())).values())))
    left.set(xlabel="finished rounds", ylabel=measure.head, xlim=(0, None))
    left.grid(linewidth=0.4)
    left.legend(frameon=False)
    if panel is not None and first is not None:
        image = heat_map(right[0], panel.weights, panel.cohort, first.partition.groups)
        right[0].set(title=panel.title, xlabel="weight of client", ylabel="model of client")
        right[0].set_xticks([])
        right[0].set_yticks([])
        figure.colorbar(image, ax=right[0], label="aggregation weight", shrink=0.9)
    if path is not None:
        figure.savefig(path, dpi=300)
    return figure
