"""A federation over Flower on this machine, measured: python benchmarks/flower.py [NODES ...]

Seconds and processor seconds per round, bytes on the wire against the ledger's, peak memory of every kind of process.
Nodes talk to the SuperLink through a forwarder that counts bytes, TLS included. `--settings` measures what each setting
gives; `--megabytes 100` a model of that size, FedAvg's, with one client a node.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from feddwa import run
from feddwa.flower import watchdog
from feddwa.flower.local import LocalFederation
from feddwa.flower.settings import FlowerConfig
from feddwa.results.runs import METRICS, read_lines

ROUNDS = 6
OPTIONS = {"algorithm": "feddwa", "clients": 20, "rounds": ROUNDS}


class Counter:
    """Forwards connections to a port and counts the bytes either way."""

    def __init__(self, target: int) -> None:
        self.target, self.bytes = target, {"down": 0, "up": 0}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the SuperLink has been stopped before the nodes
                near.close()
                continue
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                self.bytes[way] += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


class CountedFederation(LocalFederation):
    """Nodes reach the SuperLink through the counter."""

    def start_superlink(self) -> None:
        super().start_superlink()
        self.counter = Counter(self.port)

    def start_node(self, number: int) -> None:
        direct, self.port = self.port, self.counter.port
        super().start_node(number)
        self.port = direct


EXECUTOR = "feddwa.flower.executor"
NAMES = ("flower-superlink", "flower-superexec", "flwr-serverapp", "flower-supernode", "flwr-clientapp", EXECUTOR)
TICKS = os.sysconf("SC_CLK_TCK")


def processes(mark: str, memory: str = "VmHWM") -> Iterator[tuple[str, int, float]]:
    """(kind, resident MiB, processor seconds with those of its ended children) of every process.

    memory: VmHWM, the largest so far, or VmRSS, at this moment.
    """
    for process in watchdog.marked(mark):
        folder = Path(f"/proc/{process}")
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended since
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            kind = next((name for name in NAMES if name in command), "other")
            facts = (folder / "stat").read_text().rpartition(")")[2].split()
            if kind == EXECUTOR and EXECUTOR.encode() in Path(f"/proc/{facts[1]}/cmdline").read_bytes():
                kind = "ClientApp"  # a fork of it
            for line in (folder / "status").read_text().splitlines():  # a process that has just ended has no such line
                if line.startswith(memory):
                    yield kind, int(line.split()[1]) >> 10, sum(map(int, facts[11:15])) / TICKS


def measure(nodes: int, options: dict[str, Any] = OPTIONS, **settings) -> dict:
    folder = Path(tempfile.mkdtemp(prefix="feddwa-benchmark-"))
    out, began, rounds = folder / "out", time.perf_counter(), options["rounds"]
    config = FlowerConfig(**options, min_nodes=nodes, out=str(out)).resolved()
    memory: dict[str, int] = {}
    with CountedFederation(folder / "try", nodes, {"memory": str(folder / "memory")}, **settings) as federation:
        number, counts = federation.control.start(federation.app, config), []
        while federation.control.status(number).status != "finished":
            running = list(processes(federation.processes.mark))
            for kind, size, _ in running:
                memory[kind] = max(memory.get(kind, 0), size)
            lines = (out / METRICS).read_bytes().count(b"\n") if (out / METRICS).exists() else 0
            if lines > len(counts):
                counts.append({**federation.counter.bytes, "cpu": sum(seconds for *_, seconds in running)})
            time.sleep(0.1)
        total = time.perf_counter() - began
        assert federation.control.status(number).sub_status == "completed", list(federation.control.log(number))
    lines = read_lines(out / METRICS)
    shutil.rmtree(folder)
    later, steps = lines[1:rounds], list(itertools.pairwise(counts[:rounds]))
    return {
        "round": median(sum(line["seconds"].values()) for line in later),
        "first": sum(lines[0]["seconds"].values()),
        "total": total,
        "payload": {way: later[-1]["wire"][way] for way in ("down", "up")},
        "ledger": {way: options["clients"] * later[-1][f"bytes_{way}"] for way in ("down", "up")},
        "wire": {way: median(b[way] - a[way] for a, b in steps) for way in ("down", "up", "cpu")},
        "memory": memory,
    }


def large(nodes: int, megabytes: int) -> dict[str, Any]:
    """FedAvg with a network of this size in MB: 64 inputs, one hidden layer, 10 classes."""
    hidden = megabytes * 250_000 // (64 + 1 + 10)
    network = {"model": "mlp", "model_arg": (f"hidden={hidden}",), "partition": "iid"}
    return {"algorithm": "fedavg", "clients": nodes, "rounds": 3, **network}


def report(name: str, found: dict) -> None:
    first, total, busy = found["first"], found["total"], found["wire"]["cpu"]
    print(
        f"{name}: {found['round']:.1f} s a round, {busy:.1f} s of processors (first {first:.1f} s, all {total:.0f} s)"
    )
    for way in ("down", "up"):
        ledger, payload, wire = (found[kind][way] for kind in ("ledger", "payload", "wire"))
        print(f"  {way:>4}: ledger {ledger:>9,}  arrays {payload:>9,}  on the wire {wire:>9,.0f} bytes a round")
    print("  MiB:", ", ".join(f"{kind} {size}" for kind, size in sorted(found["memory"].items())), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int, nargs="*", default=[3, 10])
    parser.add_argument("--settings", action="store_true", help="one setting after another")
    parser.add_argument("--megabytes", type=int, help="a model of this size, one client a node")
    options = parser.parse_args()
    if options.megabytes:
        for nodes in options.nodes:
            report(f"{nodes} nodes, {options.megabytes} MB", measure(nodes, large(nodes, options.megabytes)))
        return
    result = run(**OPTIONS, out=False)
    seconds = [sum(line["seconds"].values()) for line in result.metrics[1:ROUNDS]]
    print(f"in one process: {median(seconds):.2f} s a round", flush=True)
    for nodes in options.nodes:
        report(f"{nodes} nodes", measure(nodes))
    if options.settings:
        report("3 nodes, a process per message", measure(3, warm=False))
        report("3 nodes, SuperLink with a database", measure(3, database=True))
        report("3 nodes, without TLS", measure(3, insecure=True))
        report("3 nodes, a process per message, Flower's poll interval", measure(3, warm=False, poll=1.0))


if __name__ == "__main__":
    main()
