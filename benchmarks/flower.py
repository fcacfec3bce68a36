"""A federation over Flower on this machine, measured: python benchmarks/flower.py [NODES ...]

Seconds per round and where they go, bytes on the wire against the ledger's, memory of every kind of process. Nodes talk
to the SuperLink through a forwarder that counts bytes, TLS included. `--settings` measures what each setting gives.
"""

import argparse
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from feddwa import run
from feddwa.flower.local import LocalFederation
from feddwa.flower.processes import MARK
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


def kinds_of_processes(mark: str) -> dict[str, list[int]]:
    """Resident MiB of every process of a federation, by kind."""
    found: dict[str, list[int]] = defaultdict(list)
    names = ("flower-superlink", "flower-superexec", "flwr-serverapp", "flower-supernode", "feddwa.flower.executor")
    names += ("flwr-clientapp",)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            pages = int((entry / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        kind = next((name for name in names if name in command), "other")
        found[kind].append(pages * os.sysconf("SC_PAGE_SIZE") >> 20)
    return found


def measure(nodes: int, **settings) -> dict:
    folder = Path(tempfile.mkdtemp(prefix="feddwa-benchmark-"))
    out, began = folder / "out", time.perf_counter()
    config = FlowerConfig(**OPTIONS, min_nodes=nodes, out=str(out)).resolved()
    memory: dict[str, int] = {}
    with CountedFederation(folder / "try", nodes, {"memory": str(folder / "memory")}, **settings) as federation:
        number, counts, seen = federation.control.start(federation.app, config), [], 0
        while federation.control.status(number).status != "finished":
            lines = (out / METRICS).read_bytes().count(b"\n") if (out / METRICS).exists() else 0
            if lines > seen:
                counts.append(dict(federation.counter.bytes))
                seen = lines
            for kind, sizes in kinds_of_processes(federation.processes.mark).items():
                memory[kind] = max([memory.get(kind, 0), *sizes])
            time.sleep(0.1)
        total = time.perf_counter() - began
        assert federation.control.status(number).sub_status == "completed", federation.control.log(number)
    lines = read_lines(out / METRICS)
    shutil.rmtree(folder)
    later, steps = lines[1:ROUNDS], list(itertools.pairwise(counts[1:-1]))
    return {
        "round": median(sum(line["seconds"].values()) for line in later),
        "first": sum(lines[0]["seconds"].values()),
        "total": total,
        "payload": {way: later[-1]["wire"][way] for way in ("down", "up")},
        "ledger": {way: OPTIONS["clients"] * later[-1][f"bytes_{way}"] for way in ("down", "up")},
        "wire": {way: median(b[way] - a[way] for a, b in steps) for way in ("down", "up")},
        "memory": memory,
    }


def report(name: str, found: dict) -> None:
    print(
        f"{name}: {found['round']:.1f} s a round (first {found['first']:.1f} s, all with starts {found['total']:.0f} s)"
    )
    for way in ("down", "up"):
        ledger, payload, wire = (found[kind][way] for kind in ("ledger", "payload", "wire"))
        print(f"  {way:>4}: ledger {ledger:>9,}  arrays {payload:>9,}  on the wire {wire:>9,.0f} bytes a round")
    print("  MiB:", ", ".join(f"{kind} {size}" for kind, size in sorted(found["memory"].items())), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int, nargs="*", default=[3, 10])
    parser.add_argument("--settings", action="store_true", help="one setting after another")
    options = parser.parse_args()
    result = run(**OPTIONS, out=tempfile.mkdtemp(prefix="feddwa-benchmark-") + "/run")
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
