"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between two plain lines


@contextmanager
def progress(console: Console, name: str, rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the lines of metrics.jsonl as they come."""
    if not console.is_terminal:
        yield _plain(console, name, rounds)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=rounds, note="")
        yield lambda line: bar.update(task, completed=min(line["round"], rounds), note=score(line))


def score(line: dict[str, Any]) -> str:
    """How good the models are that the round began with: in percent, or by their loss where there are no classes."""
    accuracy, loss = line["before"]["all"], line["loss_before"]
    if accuracy is not None:
        return f"accuracy {accuracy:.2f} %"
    return "diverged" if loss is None else f"loss {loss:.4f}"


def _plain(console: Console, name: str, rounds: int) -> Callable[[dict[str, Any]], None]:
    shown = time.monotonic()

    def observe(line: dict[str, Any]) -> None:
        nonlocal shown
        finished = line["round"] > rounds
        if finished or time.monotonic() - shown > PLAIN_EVERY:
            shown = time.monotonic()
            place = "done" if finished else f"round {line['round']}/{rounds}"
            console.print(f"{name}: {place}, {score(line)}", highlight=False)

    return observe
