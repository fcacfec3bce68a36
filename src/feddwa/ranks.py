"""Ranks: processes that work on one run, as in `torch.distributed`. Rank 0 sends requests, the others reply.

A message is a line of facts and a tree of named tensors, from one rank to another. CPU tensors are sent by gloo, GPU
tensors by NCCL if every rank has its own GPU, otherwise via the CPU. Along an axis of shared memory (one model repeated
for all clients) one copy is sent. Nothing here depends on the meaning of the tensors, and nothing is pickled.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from subprocess import Popen, TimeoutExpired
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from feddwa.checkpoint import Tree, leaves, own_memory, tree_of

PATIENCE = timedelta(days=1)  # timeout between ranks; a dead rank is noticed earlier, by its closed connections
LAST_WORDS = 10.0  # seconds for a process to end once its connections are closed
READY, BACKEND = "ready", "backend"  # keys in the store where ranks meet

CURRENT: ContextVar["Ranks | None"] = ContextVar("ranks", default=None)  # ranks of the current command


class Lost(RuntimeError):
    """A rank is gone."""


@dataclass
class Ranks:
    """The ranks of a run, from the view of one of them. They connect at the first message."""

    count: int
    number: int = 0  # of this rank
    local: int = 1  # ranks on this machine
    place: int = 0  # of this rank among them
    store: str | None = None  # file for the rendezvous; None: as set by torchrun
    processes: Sequence[Popen[bytes]] = ()  # of ranks 1, 2, ... if this one has started them
    direct: bool = field(default=False, init=False)  # whether tensors go from GPU to GPU
    _met: bool = field(default=False, init=False)
    _threads: int = field(default=0, init=False)  # threads before the division among ranks; 0: not divided

    @property
    def others(self) -> range:
        """The numbers of the replying ranks."""
        return range(1, self.count)

    def sharing(self, device: torch.device) -> int:
        """Ranks that share the memory of a device with this one, itself included."""
        return self.local if device.type == "cpu" else -(-self.local // torch.cuda.device_count())

    def send(self, to: int, facts: Mapping[str, Any], tree: Tree) -> None:
        """Send a message; `facts` is anything that JSON can hold. Returns once it is sent."""
        values = {name: value.detach() for name, value in leaves(tree)}
        cut = {name: value[own_memory(value)] for name, value in values.items()}
        about = [
            [name, str(value.dtype).removeprefix("torch."), list(cut[name].shape), list(value.shape), value.is_cuda]
            for name, value in values.items()
        ]
        text = torch.frombuffer(bytearray(json.dumps([facts, about]).encode()), dtype=torch.uint8)
        self._meet()
        self._pass(dist.send, torch.tensor([len(text)]), to)
        self._pass(dist.send, text, to)
        for value in filter(Tensor.numel, cut.values()):
            self._pass(dist.send, _as_bytes(value if self.direct else value.cpu()), to)

    def receive(self, source: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next message of a rank: facts, and the tree with tensors on the sender's kind of device."""
        self._meet()
        length = torch.zeros(1, dtype=torch.int64)
        self._pass(dist.recv, length, source)
        text = torch.empty(int(length), dtype=torch.uint8)
        self._pass(dist.recv, text, source)
        facts, about = json.loads(text.numpy().tobytes())
        return facts, tree_of([(name, self._value(source, *form)) for name, *form in about])

    def _pass(self, way: Callable[..., Any], value: Tensor, rank: int) -> None:
        """Send or receive a tensor."""
        try:
            way(value, rank)
        except RuntimeError as error:
            raise self._lost(rank) from error

    def _value(self, source: int, dtype: str, cut: list[int], shape: list[int], on_gpu: bool) -> Tensor:
        """The next tensor of a message."""
        device = "cuda" if on_gpu else "cpu"
        value = torch.empty(cut, dtype=getattr(torch, dtype), device=device if self.direct else "cpu")
        if value.numel():
            self._pass(dist.recv, _as_bytes(value), source)
        return value.to(device).expand(shape)

    def tell_all(self, facts: Mapping[str, Any]) -> None:
        """Send the others a message without tensors; ranks that are not connected yet are skipped."""
        for rank in self.others if self._met or not self.processes else ():
            with suppress(Lost):
                self.send(rank, facts, {})

    def close(self) -> None:
        """Disconnect."""
        if self._met and dist.is_initialized():
            dist.destroy_process_group()
        if self._threads:
            torch.set_num_threads(self._threads)

    def _meet(self) -> None:
        """Connect to all ranks, once, and agree on the transport of tensors."""
        if self._met:
            return
        self._met = True
        own_gpu = torch.cuda.is_available() and self.local <= torch.cuda.device_count()
        if torch.cuda.is_available():
            torch.cuda.set_device(self.place % torch.cuda.device_count())
        if self.store is not None:
            _stay_on_this_machine()
            self._threads = torch.get_num_threads()
            torch.set_num_threads(max(1, self._threads // self.local))
        store = self._open()
        store.set(f"{READY}/{self.number}", "gpu" if own_gpu else "cpu")
        if self.number == 0:
            self._await(store)
            every = all(store.get(f"{READY}/{rank}") == b"gpu" for rank in range(self.count))
            store.set(BACKEND, "cpu:gloo,cuda:nccl" if every and dist.is_nccl_available() else "gloo")
        backend = store.get(BACKEND).decode()
        self.direct = "nccl" in backend
        dist.init_process_group(backend, store=store, rank=self.number, world_size=self.count, timeout=PATIENCE)

    def _open(self) -> Any:
        """The rendezvous store."""
        if self.store is None:
            store, _, _ = next(dist.rendezvous("env://", self.number, self.count, timeout=PATIENCE))  # type: ignore[attr-defined]
        else:
            store = dist.FileStore(self.store, self.count)  # type: ignore[attr-defined]
        store.set_timeout(PATIENCE)
        return store

    def _await(self, store: Any) -> None:
        """Wait for all ranks; raises if a process started by this one has ended."""
        while not store.check([f"{READY}/{rank}" for rank in range(self.count)]):
            for rank, process in enumerate(self.processes, start=1):
                if process.poll() is not None:
                    raise self._lost(rank)
            time.sleep(0.02)

    def _lost(self, rank: int) -> Lost:
        """The error for a rank that does not reply."""
        if not self.processes:
            return Lost(f"rank {rank} of {self.count} is gone")
        try:
            status = self.processes[rank - 1].wait(LAST_WORDS)
        except TimeoutExpired:
            return Lost(f"rank {rank} of {self.count} does not answer")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return Lost(f"rank {rank} of {self.count} {how}")


def from_torchrun() -> Ranks:
    """The ranks started by torchrun or another launcher that sets its variables."""
    known = os.environ
    local, place = int(known.get("LOCAL_WORLD_SIZE", "1")), int(known.get("LOCAL_RANK", "0"))
    return Ranks(int(known["WORLD_SIZE"]), int(known["RANK"]), local, place)


def _as_bytes(value: Tensor) -> Tensor:
    """The bytes of a tensor; of one that is contiguous in its memory."""
    return value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8)


def _stay_on_this_machine() -> None:
    """Let the ranks of one machine communicate by its loopback device."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
