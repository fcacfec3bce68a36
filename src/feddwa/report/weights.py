"""Aggregation weights as pictures: who listens to whom."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.text import Text

PANELS_PER_ROW = 5


class Panel(NamedTuple):
    """One matrix of aggregation weights."""

    title: str
    weights: np.ndarray  # (m, m), row i = who client i listens to
    cohort: np.ndarray  # (m,) the clients' numbers


def draw_weights(panels: Sequence[Panel], path: str | Path, groups: np.ndarray | None = None) -> None:
    """Heat maps side by side; white lines part the true groups, where there are any."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure  # only the commands that draw pay for the import
    from matplotlib.ticker import MaxNLocator

    columns = min(len(panels), PANELS_PER_ROW)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns + 1.0, 3.0 * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        # The square root shows a weight of 0.05 beside one of 0.8.
        image = axis.imshow(panel.weights, cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        axis.set_title(panel.title, fontsize=10)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        for border in _borders(panel.cohort, groups):
            axis.axhline(border, color="white", linewidth=0.8)
            axis.axvline(border, color="white", linewidth=0.8)
    for axis in axes[:, 0]:
        axis.set_ylabel("model of client")
    for axis in axes[-1]:
        axis.set_xlabel("weight of client")
    figure.colorbar(image, ax=list(axes.flat), label="aggregation weight", shrink=0.85)
    figure.savefig(path, dpi=150)


def _borders(cohort: np.ndarray, groups: np.ndarray | None) -> list[float]:
    if groups is None:
        return []
    own = groups[cohort]
    return [float(i) - 0.5 for i in range(1, len(own)) if own[i] != own[i - 1]]


def terminal_weights(weights: np.ndarray, encoding: str = "utf-8", most: int = 40) -> Text | None:
    """A small heat map for the terminal, two characters a weight; None if it would be too wide."""
    if len(weights) > most:
        return None
    shades = "·░▒▓█" if encoding.startswith("utf") else ".-+*#"
    level = np.ceil(weights / max(weights.max(), 1e-12) * (len(shades) - 1)).astype(int)
    return Text("\n".join("  " + "".join(shades[cell] * 2 for cell in row) for row in level))
