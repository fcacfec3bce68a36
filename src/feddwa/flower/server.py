"""The ServerApp: all rounds of a run, written to a run directory as `feddwa run` writes them, and resumable."""

import dataclasses
import time
from logging import INFO
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from flwr.superlink.grid import InMemoryGrid
from torch import Tensor

from feddwa import metrics, runs
from feddwa.engine import Cohort, Scores
from feddwa.flower.coordinator import Coordinator, Outcome
from feddwa.flower.settings import FlowerConfig, from_run_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run."""
    config = from_run_config(context.run_config).resolved()
    assert isinstance(config, FlowerConfig)
    run(grid, config, simulated=isinstance(grid, InMemoryGrid))


def run(grid: Grid, config: FlowerConfig, simulated: bool) -> dict[str, Any]:
    """All rounds, each written as it ends."""
    start, coordinator = time.perf_counter(), Coordinator(grid, config, simulated)
    coordinator.start()
    directory = runs.RunDirectory.create(dataclasses.replace(config, clients=coordinator.members.clients))
    log(INFO, "feddwa: writes %s", directory.path.resolve())
    lines, rounds = [], config.rounds or 0
    for number in range(coordinator.round + 1, rounds + 2):
        outcome = coordinator.step() if number <= rounds else coordinator.finish()
        line, clients = describe(outcome, coordinator.members.test, number > rounds)
        directory.add(line, clients, outcome.round if number <= rounds else None)
        lines.append(line)
        log(INFO, "feddwa: round %d/%d: %s", min(number, rounds), rounds, line["before"]["all"])
    summary = {
        "algorithm": config.algorithm, "dataset": config.dataset, "partition": config.partition, "model": config.model,
        "clients": coordinator.members.clients, "rounds": rounds, "seed": config.seed,
        "accuracy": metrics.summarise(lines), "loss": metrics.summarise_loss(lines),
        "seconds": round(time.perf_counter() - start, 2),
    }  # fmt: skip
    directory.finish(summary)
    return summary


def describe(outcome: Outcome, test_sizes: Tensor, last: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The lines of metrics.jsonl and clients.jsonl. Means are over the clients that answered."""
    result, answered = outcome.round, torch.tensor(outcome.answered, dtype=torch.int64)
    before = Scores(*(values[answered] for values in result.before))
    number, cohort = result.cohort.round, result.cohort
    if last:
        line = metrics.final_line(before, test_sizes[answered], number - 1)
        clients = metrics.client_line(number, result.before, None, None)
    else:
        places = Cohort(torch.searchsorted(answered, cohort.ids), cohort.sizes, number)
        line = metrics.round_line(dataclasses.replace(result, cohort=places, before=before), test_sizes[answered])
        clients = metrics.client_line(number, result.before, result.after, cohort.ids)
    if len(answered) < len(test_sizes):
        line["evaluated"] = len(answered)
    if outcome.missing:
        reasons = sorted(set(outcome.missing.values()))
        line["missing"] = {reason: [row for row, why in outcome.missing.items() if why == reason] for reason in reasons}
    return line | {"wire": dict(outcome.wire)}, clients
