"""Saving of figures, and aggregation weights as pictures, in a file and in the terminal."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.text import Text

from feddwa.data.labels import short
from feddwa.storage import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_PER_ROW = 5


class Panel(NamedTuple):
    """One matrix of aggregation weights."""

    title: str
    weights: np.ndarray  # (m, m), row i has the weights of client i
    cohort: np.ndarray  # (m,) the clients' numbers
    client_names: tuple[str, ...] = ()  # of all N clients, if the data name them

    def by_group(self, groups: np.ndarray | None) -> "Panel":
        """The panel with clients sorted by group; groups: (N,)."""
        if groups is None:
            return self
        order = np.argsort(groups[self.cohort], kind="stable")
        return self._replace(weights=self.weights[np.ix_(order, order)], cohort=self.cohort[order])

    def client_at(self, place: float) -> str:
        """The client's name at a position on an axis; "" outside."""
        if not 0 <= place < len(self.cohort):
            return ""
        client = int(self.cohort[int(place)])
        return self.client_names[client] if self.client_names else str(client)


@contextmanager
def saved_figure(path: str | Path, width: float, height: float, **options: Any) -> Iterator["Figure"]:
    """A figure in inches, saved atomically after the enclosed code; options: Matplotlib's rc.

    The same numbers give the same SVG, byte for byte.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # slow import

    path = Path(path)
    kind = path.suffix[1:].lower()
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "feddwa", "pdf.fonttype": 42, **options}
    with rc_context(look):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with replacing(path) as part:
            metadata = {"Date": None, "Creator": None} if kind == "svg" else None
            with warnings.catch_warnings():  # missing glyphs are visible as boxes
                warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
                figure.savefig(part, dpi=300, format=kind, metadata=metadata)
            if kind == "svg":
                part.write_text(_numbered(part.read_text(encoding="utf-8")), encoding="utf-8")


def _numbered(svg: str) -> str:
    """Number the elements in order of appearance.

    Matplotlib's names are hashes of coordinates, whose last bit differs between processors.
    """
    names = dict.fromkeys(re.findall(r'(?<=\bid=")[a-z]+[0-9a-f]{10}(?=")', svg))
    numbers = {name: f"{name[:-10]}{number}" for number, name in enumerate(names, start=1)}
    return re.sub(r'(?<=["#])[a-z]+[0-9a-f]{10}(?=[")])', lambda found: numbers.get(found[0], found[0]), svg)


def heat_map(axis: "Axes", weights: np.ndarray, cohort: np.ndarray, groups: np.ndarray | None) -> Any:
    """P (m, m) of a cohort (m,); lines separate the true groups (N,), if any. Returns the image."""
    from matplotlib.colors import PowerNorm

    # The square root shows a weight of 0.05 beside one of 0.8.
    image = axis.imshow(weights, cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    axis.grid(visible=False)
    borders = group_borders(cohort, groups)
    width = min(0.8, 8 / (1 + len(borders)))  # thinner lines for many groups
    for border in borders:
        axis.axhline(border, color="white", linewidth=width)
        axis.axvline(border, color="white", linewidth=width)
    return image


def draw_weights(
    panels: Sequence[Panel], path: str | Path, groups: np.ndarray | None = None, columns: int = PANELS_PER_ROW
) -> None:
    """Heat maps side by side; white lines separate the true groups, if any."""
    from matplotlib.ticker import MaxNLocator

    columns = min(len(panels), columns)
    lines = -(-len(panels) // columns)
    room = 0.07 * max(len(short(name)) for panel in panels for name in (*panel.client_names, ""))  # inches
    panels = [panel.by_group(groups) for panel in panels]
    with saved_figure(path, (2.9 + room) * columns + 1.0, (3.0 + room) * lines + 0.4) as figure:
        axes = figure.subplots(lines, columns, squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes.flat, panels, strict=False):
            image = heat_map(axis, panel.weights, panel.cohort, groups)
            axis.set_title(panel.title, fontsize=10)
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_locator(MaxNLocator(5, integer=True))
                side.set_major_formatter(partial(_tick, panel))
            if panel.client_names:
                axis.tick_params(axis="x", rotation=90)
        for axis in axes[:, 0]:
            axis.set_ylabel("model of client")
        for axis in axes[-1]:
            axis.set_xlabel("weight of client")
        figure.colorbar(image, ax=list(axes.flat), label="aggregation weight", shrink=0.85)


def _tick(panel: Panel, place: float, _: object = None) -> str:
    """A name for an axis; a dollar sign in it does not begin a formula."""
    return short(panel.client_at(place)).replace("$", r"\$")


def group_borders(cohort: np.ndarray, groups: np.ndarray | None) -> list[float]:
    """Positions between clients of a cohort (m,) that belong to different groups (N,)."""
    if groups is None:
        return []
    own = groups[cohort]
    return [float(i) - 0.5 for i in range(1, len(own)) if own[i] != own[i - 1]]


def terminal_weights(panel: Panel, encoding: str = "utf-8", most: int = 36) -> Text | None:
    """A small heat map for the terminal, one line per client and two characters per weight, with a legend.

    None if it would be too wide.
    """
    if len(panel.weights) > most:
        return None
    shades = "·░▒▓█" if encoding.startswith("utf") else ".-+*#"
    most_weight, steps = max(float(panel.weights.max()), 1e-12), len(shades) - 1
    level = np.ceil(panel.weights / most_weight * steps).astype(int)
    level = level.clip(0, len(shades) - 1)  # FedAMP's weights may be negative
    names = [short(panel.client_at(place)) for place in range(len(level))]
    width = max(5, *map(len, names))
    lines = [
        f"{name:>{width}} {''.join(shades[cell] * 2 for cell in row)}" for name, row in zip(names, level, strict=True)
    ]
    ends = [f"{shade} to {most_weight * step / steps:.2f}" for step, shade in enumerate(shades)][1:]
    return Text("\n".join([*lines, f"{'':>{width}} {', '.join([f'{shades[0]} 0', *ends])}"]))
