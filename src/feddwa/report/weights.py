"""Aggregation weights as pictures: row i has the weights of client i."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.text import Text

from feddwa.data.labels import short

PANELS_PER_ROW = 5


class Panel(NamedTuple):
    """One matrix of aggregation weights."""

    title: str
    weights: np.ndarray  # (m, m), row i has the weights of client i
    cohort: np.ndarray  # (m,) the clients' numbers
    client_names: tuple[str, ...] = ()  # of all N clients, where the data name them

    def client_at(self, place: float) -> str:
        """What the client at a place on an axis is called, "" beside the clients."""
        if not 0 <= place < len(self.cohort):
            return ""
        client = int(self.cohort[int(place)])
        return self.client_names[client] if self.client_names else str(client)


def draw_weights(
    panels: Sequence[Panel], path: str | Path, groups: np.ndarray | None = None, columns: int = PANELS_PER_ROW
) -> None:
    """Heat maps side by side; white lines part the true groups, where there are any."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure  # only the commands that draw pay for the import
    from matplotlib.ticker import MaxNLocator

    columns = min(len(panels), columns)
    lines = -(-len(panels) // columns)
    room = 0.07 * max(len(short(name)) for panel in panels for name in (*panel.client_names, ""))  # inches
    figure = Figure(figsize=((2.9 + room) * columns + 1.0, (3.0 + room) * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        # The square root shows a weight of 0.05 beside one of 0.8.
        image = axis.imshow(panel.weights, cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        axis.set_title(panel.title, fontsize=10)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(5, integer=True))
            side.set_major_formatter(partial(_tick, panel))
        if panel.client_names:
            axis.tick_params(axis="x", rotation=90)
        for border in _borders(panel.cohort, groups):
            axis.axhline(border, color="white", linewidth=0.8)
            axis.axvline(border, color="white", linewidth=0.8)
    for axis in axes[:, 0]:
        axis.set_ylabel("model of client")
    for axis in axes[-1]:
        axis.set_xlabel("weight of client")
    figure.colorbar(image, ax=list(axes.flat), label="aggregation weight", shrink=0.85)
    figure.savefig(path, dpi=150)


def _tick(panel: Panel, place: float, _: object = None) -> str:
    """A name for an axis; a dollar sign in it does not begin a formula."""
    return short(panel.client_at(place)).replace("$", r"\$")


def _borders(cohort: np.ndarray, groups: np.ndarray | None) -> list[float]:
    if groups is None:
        return []
    own = groups[cohort]
    return [float(i) - 0.5 for i in range(1, len(own)) if own[i] != own[i - 1]]


def terminal_weights(panel: Panel, encoding: str = "utf-8", most: int = 36) -> Text | None:
    """A small heat map for the terminal, a line per client, two characters a weight; None if it would be too wide."""
    if len(panel.weights) > most:
        return None
    shades = "·░▒▓█" if encoding.startswith("utf") else ".-+*#"
    level = np.ceil(panel.weights / max(panel.weights.max(), 1e-12) * (len(shades) - 1)).astype(int)
    level = level.clip(0, len(shades) - 1)  # FedAMP's weights may be negative
    names = [short(panel.client_at(place)) for place in range(len(level))]
    width = max(5, *map(len, names))
    lines = zip(names, level, strict=True)
    return Text("\n".join(f"{name:>{width}} " + "".join(shades[cell] * 2 for cell in row) for name, row in lines))
