"""The ServerApp: runs all rounds and writes the same run directory as `feddwa run`.

A checkpoint is on disk before the next round begins. A run whose ServerApp or SuperLink was stopped continues when it
is started again with the same `out`.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from flwr.superlink.grid import InMemoryGrid
from torch import Tensor

from feddwa import checkpoint
from feddwa.callbacks import Callbacks, Entry, Line, Run
from feddwa.config import WHERE_AND_HOW, RunConfig, options_of
from feddwa.errors import InputError
from feddwa.flower.coordinator import Coordinator, Outcome
from feddwa.flower.node import DEFAULT_MEMORY
from feddwa.flower.settings import OWN, FlowerConfig, from_run_config
from feddwa.results import metrics, runs
from feddwa.results.recorder import record
from feddwa.storage import write_whole
from feddwa.trackers import callbacks_of
from feddwa.trained.store import TrainedModels, absent

AT_THE_NODES = (
    "each node of the federation keeps its clients' models, client-*.safetensors in the folder of its memory "
    f"({DEFAULT_MEMORY} unless its node config says another)"
)
PATIENCE = 60.0  # seconds to wait for an earlier ServerApp of the same run to end

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of the ServerApp."""
    config = from_run_config(context.run_config).resolved()
    run(grid, config, simulated=isinstance(grid, InMemoryGrid))


def run(grid: Grid, config: FlowerConfig, simulated: bool) -> dict[str, Any]:
    """Run all remaining rounds and write each as it ends; returns the summary.

    simulated: nodes have no keys, as in Flower's simulation. An unfinished run in `config.out` is continued.
    """
    if config.lr == "auto":
        raise InputError("run config lr: must be a number, as only the nodes have data to try rates on")
    if config.partition is None:
        raise InputError("run config partition: must be given where dataset is a path, as only the nodes have the data")
    if config.clients is None and config.dataset != OWN:
        raise InputError("run config clients: must be given where owners are the clients; only the nodes have the data")
    coordinator = Coordinator(grid, config, simulated)
    path = Path(config.out) if config.out else runs.default_path(config.algorithm, config.dataset)
    _wait_for_predecessor(path)  # it may still write a round
    begun = runs.unfinished(path)
    found = checkpoint.latest(path / runs.CHECKPOINTS) if begun else None
    if found is not None:
        coordinator.restore(found.round, found.tree, _same(found.facts, config, path))
    elif not begun:
        runs.check_free(str(path))
    coordinator.start()
    plain = plain_config(coordinator.config, coordinator.registry.clients, path)
    facts = {"options": _options(config)}
    opened = runs.RunDirectory.reopen(plain, facts) if begun else runs.RunDirectory.create(plain, facts=facts)
    with opened as directory:
        log(INFO, "feddwa: federation %s writes %s", coordinator.federation, path.resolve())
        write_whole(path / runs.FEDERATION, json.dumps({"federation": coordinator.federation}) + "\n")
        return _run_rounds(coordinator, directory, directory.rewind(found) if begun else ())


def _wait_for_predecessor(path: Path) -> None:
    """Wait, at most PATIENCE, while another process works on the run.

    A ServerApp survives a killed SuperLink until it notices that the SuperLink is gone.
    """
    ends = time.monotonic() + PATIENCE
    if runs.busy(path):
        log(INFO, "feddwa: waiting for the end of the process that is at work on %s", path)
    while runs.busy(path) and time.monotonic() < ends:
        time.sleep(0.1)


def plain_config(config: FlowerConfig, clients: int, path: Path) -> RunConfig:
    """The configuration with which `feddwa run` simulates the same run."""
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}
    return RunConfig(**{**options, "clients": clients, "out": str(path), "checkpoint_every": 1})


def _options(config: FlowerConfig) -> dict[str, Any]:
    """The options that a run must be continued with, as JSON values."""
    free = ("clients", "clients_per_node", "min_nodes", "wait", "deadline", "min_clients", "max_megabytes")
    left_out = (*WHERE_AND_HOW, *free, "evaluate_absent")
    found: dict[str, Any] = json.loads(json.dumps(options_of(config, leaving_out=left_out)))
    return found


def _same(facts: dict[str, Any], config: FlowerConfig, path: Path) -> dict[str, Any]:
    """`facts` of a checkpoint; InputError unless it belongs to a run with the same options."""
    then, now = facts.get("options"), _options(config)
    if then is None:
        raise InputError(f"--out {path}: has an unfinished run that is not a federation's; give a new directory")
    changed = [name for name in now if then.get(name) != now[name]]
    if changed:
        values = ", ".join(f"{name} was {then.get(name)!r} and is {now[name]!r}" for name in changed)
        raise InputError(f"--out {path}: its run began with other options: {values}")
    return facts


@dataclass
class FederatedRounds:
    """The rounds of a federation over Flower."""

    coordinator: Coordinator
    durable: ClassVar[bool] = (
        True  # nodes can go back by one round only, so a checkpoint must be on disk before the next round
    )

    @property
    def finished(self) -> int:
        """Rounds that are over."""
        return self.coordinator.round

    def next(self) -> Entry:
        """Run a round."""
        outcome = self.coordinator.step()
        line, clients = metric_lines(outcome, *self._sizes)
        log(INFO, "feddwa: round %d of %d: %s", self.finished, self.coordinator.config.rounds, line["before"])
        return Entry(line, clients, outcome.round)

    def last(self) -> Entry:
        """Evaluate the final models of all clients; nodes write them to disk."""
        return Entry(*metric_lines(self.coordinator.finish(), *self._sizes, last=True))

    @property
    def _sizes(self) -> tuple[Tensor, Tensor | None]:
        """(N,) test samples of every client, and held-out ones where the run has any."""
        registry = self.coordinator.registry
        return registry.test, registry.validation if self.coordinator.config.validation else None

    def checkpoint(self) -> tuple[checkpoint.Tree, Mapping[str, Any]]:
        """The server's state."""
        return self.coordinator.keep()

    def spent(self) -> dict[str, Any]:
        """Nothing: over Flower nothing is noised."""
        return {}

    def trained(self) -> TrainedModels:
        """No models: nodes keep those of their clients, with the normalisation and the names that only they know."""
        probe, registry = self.coordinator.probe, self.coordinator.registry
        sizes = registry.train, registry.test
        return absent(self.coordinator.config, probe.dataset, probe.client_side.engine, *sizes, AT_THE_NODES)


def _run_rounds(coordinator: Coordinator, directory: runs.RunDirectory, past: Sequence[Line]) -> dict[str, Any]:
    """Run the rounds after the lines of `past` and write them; returns the summary."""
    config = coordinator.config
    names = {name: getattr(config, name) for name in ("algorithm", "dataset", "partition", "model")}
    names |= {"clients": coordinator.registry.clients, "seed": config.seed}
    device, rounds = coordinator.probe.client_side.engine.data.device, config.rounds or 0
    source = FederatedRounds(coordinator)
    plain = plain_config(config, coordinator.registry.clients, directory.path)
    callbacks = Callbacks(Run(plain, directory.path, past), callbacks_of(plain))
    return record(
        source, rounds, names, device, directory=directory, past=past, patience=config.early_stop, callbacks=callbacks
    ).summary


def metric_lines(
    outcome: Outcome, test_sizes: Tensor, validation_sizes: Tensor | None = None, last: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(line of metrics.jsonl, line of clients.jsonl) of a round; means are over the clients that answered.

    test_sizes, validation_sizes: (N,); last: the final evaluation, which follows the last round.
    """
    result, number, answered = outcome.round, outcome.round.cohort.round, outcome.round.evaluated
    assert answered is not None
    if last:
        line = metrics.final_line(result.before, test_sizes, number - 1, answered, validation_sizes)
        line |= {"missing": metrics.by_reason(result.missing)} if result.missing else {}
        clients = metrics.client_line(number, result.before, None, None)
    else:
        line = metrics.round_line(result, test_sizes, validation_sizes=validation_sizes)
        clients = metrics.client_line(number, result.before, result.after, result.cohort.ids)
    return line | {"wire": dict(outcome.wire)}, clients
