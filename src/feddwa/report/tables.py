"""Results as tables in the terminal, and the paths of what was written."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from feddwa.experiment import Result
from feddwa.report.weights import Panel, draw_weights, terminal_weights

SHOWN_ROUNDS = (1, 5)  # besides the last: how early a method finds its partners


def show_results(console: Console, results: Mapping[str, Result]) -> None:
    """Accuracy, gain over Local, traffic and time of every run."""
    first = next(iter(results.values())).summary
    table = Table(
        title=f"{first['dataset']}, {first['partition']}, {first['clients']} clients, {first['rounds']} rounds",
        caption="Accuracy in percent: each client's personalised model on its own test data,\n"
        "mean over all clients. Traffic: up + down, per participating client and round.",
    )
    columns = ("algorithm", "last", "best (after round)", "over Local", "traffic", "time")
    for column in columns:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    local = results["local"].summary["accuracy"]["last"] if "local" in results else None
    for name, result in results.items():
        summary, accuracy = result.summary, result.summary["accuracy"]
        traffic = summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"]
        table.add_row(
            name,
            f"{accuracy['last']:.2f}",
            f"{accuracy['best']:.2f} ({accuracy['best_round'] - 1})",
            "" if local is None or name == "local" else f"{accuracy['last'] - local:+.2f}",
            human_bytes(traffic),
            f"{summary['seconds']:.1f} s",
        )
    console.print(table)


def show_weights(console: Console, results: Mapping[str, Result], folder: Path) -> None:
    """Draw the aggregation weights of the run, or of the last round of every run, and list what was written."""
    panels = []
    for name, result in results.items():
        rounds = sorted({*SHOWN_ROUNDS, len(result.weights)}) if len(results) == 1 or name == "feddwa" else []
        rounds = rounds or [len(result.weights)]
        for number in rounds:
            if number <= len(result.weights):
                cohort, weights = result.weights[number - 1]
                panels.append(Panel(f"{name}, round {number}", weights, cohort))
    groups = next(iter(results.values())).partition.groups
    if panels:
        draw_weights(panels, folder / "weights.png", groups)
        shown = max((panel for panel in panels), key=lambda panel: panel.title.startswith("feddwa"))
        last = [panel for panel in panels if panel.title.split(",")[0] == shown.title.split(",")[0]][-1]
        small = terminal_weights(last.weights)
        if small is not None:
            console.print(f"\nWho listens to whom ({last.title}; row = client, column = its weight):")
            console.print(small)
    console.print("\nWritten:", highlight=False)
    for result in results.values():
        console.print(f"  {result.path}/", highlight=False, soft_wrap=True)
    if panels:
        console.print(f"  {folder / 'weights.png'}", highlight=False, soft_wrap=True)


def human_bytes(count: int) -> str:
    """1536 -> "1.5 KiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
