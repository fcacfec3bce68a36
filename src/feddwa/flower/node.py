"""The client side on a node: its rows of the federation, and the memory of its clients.

Memory is stored on the node's own disk and never sent: in the folder `memory` of the node config, by default in
~/.local/state/feddwa. One file holds the memory after one round, and the last two files are kept. A server that was
stopped before it had saved a round repeats it; the clients then start from their memory before that round.
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddwa import checkpoint
from feddwa.algorithms import Algorithm, Problem
from feddwa.build import make_engine
from feddwa.engine import Memory, Model
from feddwa.engine.rows import grown, take_parts, to_devices
from feddwa.flower.settings import FlowerConfig
from feddwa.flower.site import Refusal, Values, load_site, place
from feddwa.sides import ClientSide, begin, problem_of
from feddwa.trained.export import export
from feddwa.trained.store import TrainedModels

DEFAULT_MEMORY = "~/.local/state/feddwa"


@dataclass(frozen=True)
class Node:
    """The client side for the rows of one node."""

    algorithm: Algorithm
    client_side: ClientSide
    rows: Tensor  # (k,) its clients' numbers in the federation
    problem: Problem  # of the whole federation; sizes of other nodes' clients are 0
    buffers: Model  # initial BatchNorm statistics

    def fresh_memory(self) -> Memory:
        """Memory (k, ...) of its clients before their first round."""
        side = self.client_side
        memory = begin(self.algorithm, side.batchnorm, self.problem, self.buffers, side.engine.settings)[1]
        return take_parts(memory, self.rows)


@functools.lru_cache(maxsize=64)
def make_node(config: FlowerConfig, node: Values, rows: tuple[int, ...], clients: int) -> Node:
    """The node of a run. node: its node config; rows: those that the server says it holds; clients: N.

    Raises Refusal where the rows are not the node's.
    """
    site, algorithm = load_site(config, node), config.make_algorithm()
    if len(rows) != site.clients or (site.first >= 0 and rows != tuple(site.numbers.tolist())):
        raise Refusal("rows: not those of this node")
    if len(set(rows)) < len(rows) or min(rows) < 0 or max(rows) >= clients:
        raise Refusal(f"rows: not in a federation of {clients}")
    config = dataclasses.replace(config, device=str(dict(node).get("device", config.device)))
    engine, numbers = make_engine(config, site.task), torch.tensor(rows)
    engine.data = place(engine.data, site.numbers, numbers, clients)
    side = ClientSide.of(algorithm, engine, config.batchnorm, config.chunk, engine.sequential)
    return Node(algorithm, side, numbers, problem_of(engine), engine.initial()[1])


def memory_folder(node: Values, federation: str, rows: Tensor) -> Path:
    """Folder of the memory of `rows` (k,) in a federation."""
    root = Path(str(dict(node).get("memory", DEFAULT_MEMORY))).expanduser()
    return root / federation / f"{int(rows[0]):06d}"


def load_memory(folder: Path, node: Node, round: int) -> tuple[Memory, int]:
    """(memory (k, ...) from which `round` starts, round after which it was saved); (initial memory, 0) without one."""
    fresh, found = node.fresh_memory(), checkpoint.latest(folder, below=round)
    if found is None:
        return fresh, 0
    return grown(to_devices(found.tree, fresh), fresh), found.round


def save_memory(folder: Path, round: int, memory: Memory) -> None:
    """Save the memory (k, ...) after a round."""
    if any(memory.values()):  # with many networks and algorithms it is empty
        private_folder(folder)
        checkpoint.save(folder, round, memory, {})


def save_models(folder: Path, rows: Tensor, trained: TrainedModels) -> None:
    """Export each client's personalised model, client-000003.safetensors; rows: (k,), trained: of these clients."""
    private_folder(folder)
    for number, row in enumerate(rows.tolist()):
        export(trained, number, folder / f"client-{row:06d}.safetensors")


def private_folder(folder: Path) -> None:
    """Create a folder that other users of this machine cannot read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
