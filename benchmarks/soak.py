"""Soak test of a federation against the simulator: python benchmarks/soak.py --nodes 24 --rounds 200

Every few rounds SuperNodes or the SuperLink are killed (SIGKILL) and started again; every request of a node may be
delayed, or sent twice (benchmarks/unreliable.py). Then the simulator runs the same configuration and is told who was
missing in each round, and whether it had trained. The scores of all clients in all rounds and the final models must be
equal. Memory, processes and files are watched throughout, and nothing may be left behind.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import torch
from flower import processes
from flwr.proto.run_pb2 import RunStatus
from safetensors.torch import load_file
from torch import Tensor
from unreliable import Forwarder

from feddwa import checkpoint
from feddwa.build import load_task, make_engine, make_federation
from feddwa.engine import Cohort
from feddwa.faults import Faults
from feddwa.flower.local import LocalFederation
from feddwa.flower.server import plain_config
from feddwa.flower.settings import FlowerConfig
from feddwa.results.runs import METRICS, read_lines

AGAIN = 5.0  # seconds between two starts of a node: the SuperLink refuses its key for up to a minute
POLL = 0.5
CLOSE = {"accuracy": 0.01, "loss": 1e-4, "model": 1e-5}  # scores are written with two and four digits
GROWTH, SLACK = 1.25, 30  # by which the memory of a kind of process may grow: a factor, and MiB
CLIENTS = "clients.jsonl"


@dataclass
class UnreliableFederation(LocalFederation):
    """Nodes reach the SuperLink through a forwarder that delays and repeats requests."""

    seed: int = 0

    def start_superlink(self) -> None:
        super().start_superlink()
        if not hasattr(self, "forwarder"):
            assert self.certificates is not None
            self.forwarder = Forwarder(self.port, self.certificates, self.seed)

    def start_node(self, number: int) -> None:
        direct, self.port = self.port, self.forwarder.port
        super().start_node(number)
        self.port = direct

    def _close(self) -> None:
        super()._close()
        if hasattr(self, "forwarder"):
            self.forwarder.close()


@dataclass
class Soak:
    """A federated run under kills, with its observations."""

    federation: UnreliableFederation
    config: FlowerConfig
    every: int  # rounds from one kill to the next
    seed: int
    run: int = 0  # number of the run; a SuperLink that was killed has the run submitted again
    trained: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # client -> rounds on its disk
    started: dict[int, float] = field(default_factory=dict)  # node -> when it was last started
    times: int = 0  # that something was killed
    kills: dict[str, int] = field(default_factory=lambda: {"SuperNode": 0, "SuperLink": 0})
    memory: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # kind -> MiB of the largest
    counts: list[tuple[int, int, int]] = field(default_factory=list)  # processes, files, MB of files; once a round
    seen: int = 0  # rounds that were over when this was noted

    def __post_init__(self) -> None:
        self.rng, self.out = random.Random(self.seed), Path(self.config.out or "")
        self.memory_folder = Path(self.federation.node_config["memory"])

    def submit(self) -> None:
        self.run = self.federation.control.start(self.federation.app, self.config)

    def rounds(self) -> int:
        """Number of finished rounds."""
        path = self.out / METRICS
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def last(self, ends: float) -> None:
        """Run until all rounds are finished or the time `ends` has come."""
        self.submit()
        next_kill = self.every
        while (status := self.status()) is None or status.status != "finished":
            if time.monotonic() > ends:
                return
            self.watch()
            self.nurse()
            if next_kill <= self.rounds() < (self.config.rounds or 0):
                next_kill = self.rounds() + self.every
                self.kill()
            time.sleep(POLL)
        if status.sub_status != "completed":
            raise RuntimeError("".join(self.federation.control.log(self.run)))

    def status(self) -> RunStatus | None:
        """The status of the run; None if the SuperLink answers 500 because its database is locked."""
        with contextlib.suppress(httpx.HTTPStatusError, httpx.TransportError):
            return self.federation.control.status(self.run)
        return None

    def kill(self) -> None:
        """Kill one to three nodes at any moment; the second time, and every third time after it, the SuperLink."""
        time.sleep(self.rng.uniform(0, 5))
        self.times += 1
        if self.times % 3 == 2:
            self.kills["SuperLink"] += 1
            self.federation.processes.signal("superlink", signal.SIGKILL)
            time.sleep(self.rng.uniform(0, 5))
            self.federation.start_superlink()
            self.submit()
            return
        alive = sorted(set(range(self.federation.nodes)) - self.away())
        for node in self.rng.sample(alive, min(len(alive), self.rng.choice([1, 1, 2, 3]))):
            self.kills["SuperNode"] += 1
            self.federation.processes.signal(f"node-{node}", signal.SIGKILL)
            self.started[node] = time.monotonic() + self.rng.uniform(0, 60)

    def away(self) -> set[int]:
        """Nodes that are not running."""
        return {int(name[5:]) for name in self.federation.processes.ended() if name.startswith("node-")}

    def nurse(self) -> None:
        """Restart nodes that have ended, as a service manager does."""
        for node in self.away():
            if time.monotonic() > self.started.get(node, 0) + AGAIN:
                self.federation.start_node(node)
                self.started[node] = time.monotonic()

    def watch(self) -> None:
        """Record the clients' memory files by round and, once a round, processes and files."""
        for file in self.memory_folder.glob("*/*/round-*.safetensors"):
            self.trained[int(file.parent.name)].add(int(checkpoint.NAME.fullmatch(file.name)[1]))  # type: ignore[index]
        if self.seen == self.rounds():  # before the first round is over, processes are still starting
            return
        self.seen = self.rounds()
        largest: Counter[str] = Counter()
        running = list(processes(self.federation.processes.mark, "VmRSS"))
        for kind, size, _ in running:
            largest[kind] = max(largest[kind], size)
        for kind, size in largest.items():
            self.memory[kind].append(size)
        sizes = [path.stat().st_size for path in self.federation.folder.parent.rglob("*") if path.is_file()]
        self.counts.append((len(running), len(sizes), sum(sizes) // 10**6))


class Told(Faults):
    """The absences of a federation."""

    def __init__(self, missing: dict[int, set[int]], trained: dict[int, set[int]]) -> None:
        """missing: round -> clients; trained: client -> rounds that it trained, whether or not its reply arrived."""
        object.__setattr__(self, "missing", missing)
        object.__setattr__(self, "trained", trained)

    def absent(self, seed: int, cohort: Cohort) -> Tensor:
        return self._missing(cohort, False)

    def late(self, seed: int, cohort: Cohort) -> Tensor:
        return self._missing(cohort, True)

    def _missing(self, cohort: Cohort, trained: bool) -> Tensor:
        """(m,) bool: clients whose update did not count, by whether they had trained."""
        away = self.missing.get(cohort.round, set())
        return torch.tensor([i in away and (cohort.round in self.trained[i]) == trained for i in cohort.ids.tolist()])


def compare(soak: Soak) -> dict[str, float]:
    """Largest differences to a simulator with the same absences.

    Returns those of single clients' accuracies (points), mean losses and parameters of the final models.
    """
    lines = read_lines(soak.out / METRICS)
    each = [json.loads(line) for line in (soak.out / CLIENTS).read_text().splitlines()]
    everybody = set(range(soak.config.clients or 0))
    missing = {line["round"]: everybody - set(line.get("participants", everybody)) for line in each}
    config = plain_config(soak.config, soak.config.clients or 0, soak.out)
    simulated = make_federation(config, make_engine(config, load_task(config)))
    simulated.faults = Told(missing, soak.trained)
    worst = {"accuracy": 0.0, "loss": 0.0, "model": 0.0}

    def differ(kind: str, found: Iterable[float | None], expected: Iterable[float]) -> None:
        pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
        worst[kind] = max([worst[kind], *(abs(a - b) for a, b in pairs)])

    for line, own in zip(lines, each, strict=True):
        scores, there = simulated.scores, [value is not None for value in own["before"]]
        differ("accuracy", own["before"], (100 * scores.accuracy).tolist())
        if any(there):
            differ("loss", [line["loss_before"]], [float(scores.loss[torch.tensor(there)].mean())])
        if "after" in own:
            step = simulated.step()
            assert step.cohort.ids.tolist() == own["participants"], f"round {line['round']}: other participants"
            differ("accuracy", own["after"], (100 * step.after.accuracy).tolist())
    models, buffers = simulated.personal(simulated.all_clients())
    for file in soak.memory_folder.rglob("client-*.safetensors"):
        client = int(file.stem.removeprefix("client-"))
        for name, value in load_file(file).items():
            other = (models | buffers)[name][client]
            differ("model", [float((value.double() - other.double()).abs().max())], [0.0])
    return worst


def report(soak: Soak, minutes: float) -> list[str]:
    """Print the observations; return the failures."""
    lines, forwarder = read_lines(soak.out / METRICS), soak.federation.forwarder
    reasons = Counter(
        why.partition(":")[0] for line in lines for why, those in line.get("missing", {}).items() for _ in those
    )
    print(f"{soak.federation.nodes} nodes, {len(lines) - 1} rounds, {minutes:.0f} minutes; killed: {soak.kills}")
    print(f"requests: {forwarder.requests:,}, delayed {forwarder.delayed:,}, sent twice {forwarder.duplicated:,}")
    used = sum(line.get("participants", 0) for line in lines)
    print(f"updates used: {used:,}, missing: {dict(reasons)}")
    wrong = []
    for kind, sizes in sorted(soak.memory.items()):
        third = max(1, len(sizes) // 3)
        first, last = median(sizes[:third]), median(sizes[-third:])
        print(
            f"  {kind}: {first:.0f} MiB in the first third of the rounds, {last:.0f} in the last, at most {max(sizes)}"
        )
        if last > GROWTH * first + SLACK:
            wrong.append(f"memory of {kind}")
    counts = list(zip(*soak.counts, strict=True))
    for name, values in zip(("processes", "files", "MB of files"), counts, strict=True):
        print(f"  {name}: {values[0]} at first, {values[-1]} at last, {max(values)} at most")
    left = soak.federation.processes.descendants()
    worst = compare(soak)
    print(f"largest difference to the simulator: {worst}; processes left: {len(left)}", flush=True)
    return [*wrong, *(["processes"] if left else []), *(kind for kind, value in worst.items() if value > CLOSE[kind])]


def soaked(
    folder: Path, nodes: int, rounds: int, minutes: float, every: int, seed: int, deadline: float, algorithm: str
) -> list[str]:
    """Run a federation in a new folder, compare it, and return the failures."""
    began = time.monotonic()
    options = {"algorithm": algorithm, "clients": nodes, "rounds": rounds, "seed": seed, "model": "mlp"}
    config = FlowerConfig(
        **options,
        model_arg=("hidden=16",),
        batch_size=20,
        min_nodes=(nodes + 1) // 2,
        deadline=deadline,
        out=str(folder / "out"),
    ).resolved()
    node = {"memory": str(folder / "memory")}
    with UnreliableFederation(folder / "try", nodes, node, database=True, seed=seed) as federation:
        soak = Soak(federation, config, every, seed)
        soak.last(began + 60 * minutes)
    return report(soak, (time.monotonic() - began) / 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=600.0, help="then it ends, and what there is is compared")
    parser.add_argument("--every", type=int, default=5, help="rounds from one kill to the next")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds that a round waits")
    parser.add_argument("--algorithm", default="fedrod", help="FedRoD's heads are the clients' memory")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    folder = Path(tempfile.mkdtemp(prefix="feddwa-soak-"))
    wrong = soaked(folder, **given)
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}; everything is in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
