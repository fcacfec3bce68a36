"""Draws the pictures of docs/concepts.md: `python docs/pictures.py` writes them into docs/images."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from feddwa.mixing import dwa_weights

FOLDER = Path(__file__).parent / "images"
GROUPS = ("#0072b2", "#e69f00")
INK, SOFT = "#1a2230", "#5b6675"
STYLE = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "feddwa", "text.color": INK}
CLIENTS, PARAMETERS = 6, 9


def rows() -> None:
    """A federation is a stack: training moves every row by itself, the server mixes rows."""
    rng = np.random.default_rng(1)
    figure = Figure(figsize=(9.2, 3.1), layout="constrained")
    axis = figure.subplots()
    axis.set(xlim=(0, 33.5), ylim=(-1.6, 7.4), aspect="equal")
    axis.set_axis_off()
    start = np.tile(rng.uniform(0.3, 0.5, PARAMETERS), (CLIENTS, 1))
    step = np.repeat(rng.uniform(-0.25, 0.45, (2, PARAMETERS)), 3, axis=0) + rng.uniform(
        -0.1, 0.1, (CLIENTS, PARAMETERS)
    )
    local = np.clip(start + step, 0.08, 1)
    mixed = np.kron(np.eye(2), np.full((3, 3), 1 / 3)) @ local
    for left, values, title in ((1.2, start, "models"), (12.4, local, "local models"), (23.6, mixed, "new models")):
        _stack(axis, left, values)
        axis.text(left + PARAMETERS / 2, 6.75, title, ha="center", weight="bold")
        axis.text(left + PARAMETERS / 2, -0.7, "parameters", ha="center", color=SOFT, fontsize=9)
    for client in range(CLIENTS):
        axis.text(0.9, 5.5 - client, f"{client}", ha="right", va="center", color=GROUPS[client // 3], weight="bold")
        _arrow(axis, (10.4, 5.5 - client), (12.2, 5.5 - client))
    for one in range(CLIENTS):
        for two in range(CLIENTS):
            if one // 3 == two // 3:
                _arrow(axis, (21.6, 5.5 - one), (23.4, 5.5 - two), GROUPS[one // 3])
    axis.text(11.3, 6.75, "train", ha="center", color=SOFT)
    axis.text(22.5, 6.75, "mix", ha="center", color=SOFT)
    axis.text(11.3, -0.7, "each row by itself", ha="center", color=SOFT, fontsize=9)
    axis.text(22.5, -0.7, "new = P @ local", ha="center", color=SOFT, fontsize=9)
    axis.text(0.2, 6.75, "client", ha="center", color=SOFT, fontsize=9)
    _save(figure, "rows.svg")


def _stack(axis, left, values) -> None:
    for client, row in enumerate(values):
        for place, value in enumerate(row):
            cell = (left + place, CLIENTS - 1 - client)
            axis.add_patch(Rectangle(cell, 0.92, 0.86, color=GROUPS[client // 3], alpha=float(value), linewidth=0))


def _arrow(axis, start, end, colour=SOFT) -> None:
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=7, color=colour, linewidth=0.9))


def mixing() -> None:
    """Four methods as matrices: rows are clients, columns whose models they receive."""
    rng = np.random.default_rng(0)
    alike = np.kron(np.eye(2), np.full((3, 3), 1.0)) * rng.uniform(0.5, 1.5, (6, 6)) + np.eye(6)
    matrices = {
        "Local: nobody": np.eye(6),
        "FedAvg: everybody, alike": np.full((6, 6), 1 / 6),
        "clusters: its own group": np.kron(np.eye(2), np.full((3, 3), 1 / 3)),
        "FedDWA: the K closest": alike / alike.sum(axis=1, keepdims=True),
    }
    figure = Figure(figsize=(9.2, 2.75), layout="constrained")
    axes = figure.subplots(1, 4)
    for axis, (title, matrix) in zip(axes, matrices.items(), strict=True):
        image = axis.imshow(matrix, cmap="Blues", norm=PowerNorm(0.7, 0, 1))
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(6))
        axis.set_yticks(range(6))
        axis.tick_params(length=0, labelcolor=SOFT, labelsize=8)
        axis.set_xlabel("from client", color=SOFT, fontsize=9)
    axes[0].set_ylabel("to client", color=SOFT, fontsize=9)
    figure.colorbar(image, ax=list(axes), label="weight", shrink=0.8)
    _save(figure, "mixing.svg")


def guidance() -> None:
    """FedDWA in the plane: where a client is going, and who is close to that place."""
    import torch

    local = np.array([[0.0, 0.0], [1.9, 1.15], [1.75, -0.2], [-1.2, 1.4], [-1.7, 0.6], [0.2, -1.5]])
    ahead = local[0] + [1.0, 0.45]
    guide = local + np.array([0.3, 0.1])
    guide[0] = ahead
    weights = dwa_weights(torch.tensor(guide), torch.tensor(local), 3)[0].numpy()
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    axis.set(xlim=(-2.3, 2.6), ylim=(-1.9, 1.9), aspect="equal")
    for client, (x, y) in enumerate(local):
        if weights[client] > 0:
            axis.plot(
                [ahead[0], x], [ahead[1], y], color=GROUPS[0], linewidth=10 * weights[client], alpha=0.35, zorder=1
            )
        axis.scatter(x, y, s=130, color=INK if client == 0 else SOFT, alpha=1 if weights[client] else 0.35, zorder=3)
        share = f": {100 * weights[client]:.0f} %" if weights[client] else ""
        colour = GROUPS[0] if weights[client] else SOFT
        axis.text(x, y - 0.32, f"client {client}{share}", ha="center", fontsize=9, color=colour)
    axis.scatter(*ahead, s=150, marker="*", color="#d55e00", zorder=4)
    axis.text(ahead[0] - 0.1, ahead[1] + 0.22, "client 0, one epoch on", color="#d55e00", ha="right", fontsize=9)
    axis.add_patch(FancyArrowPatch(local[0], ahead, arrowstyle="-|>", mutation_scale=11, color="#d55e00", zorder=2))
    _save(figure, "guidance.svg")


def _save(figure: Figure, name: str) -> None:
    figure.savefig(FOLDER / name, metadata={"Date": None})


if __name__ == "__main__":
    with rc_context(STYLE):
        rows()
        mixing()
        guidance()
