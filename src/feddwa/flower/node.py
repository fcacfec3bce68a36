"""A node that knows its place in the federation: the client side on its own data, and what its clients remember.

Memory is kept on the node's own disk and never sent: in the folder `memory` of the node config, or in
~/.local/state/feddwa. A file holds the memory after a round, and the last two are kept: when the server repeats a
round, because it was stopped before it had saved it, the clients begin from what they remembered before that round.
"""

import dataclasses
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from feddwa import checkpoint
from feddwa.algorithms import Algorithm, Problem
from feddwa.batchnorm import BatchNormPolicy
from feddwa.build import make_engine
from feddwa.engine import Row, Rows, State
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.network import head_parameters
from feddwa.engine.rows import grown, take_state, to_devices
from feddwa.flower.settings import FlowerConfig
from feddwa.flower.site import Refusal, Values, load_site, place
from feddwa.sides import ClientSide, begin

DEFAULT_MEMORY = "~/.local/state/feddwa"


@dataclass(frozen=True)
class Node:
    """The client side of a node's rows."""

    algorithm: Algorithm
    client_side: ClientSide
    rows: Tensor  # (k,) its clients' numbers in the federation
    problem: Problem
    buffers: Row

    def fresh_memory(self) -> State:
        """What its clients remember before their first round."""
        return take_state(begin(self.algorithm, self.client_side.batchnorm, self.problem, self.buffers)[1], self.rows)


@functools.lru_cache(maxsize=64)
def make_node(config: FlowerConfig, node: Values, rows: tuple[int, ...], clients: int) -> Node:
    """The node of a run, for the rows and the number of clients that the server tells."""
    site, algorithm = load_site(config, node), config.make_algorithm()
    if len(rows) != site.clients or (site.first >= 0 and rows != tuple(site.numbers.tolist())):
        raise Refusal("rows: not those of this node")
    if len(set(rows)) < len(rows) or min(rows) < 0 or max(rows) >= clients:
        raise Refusal(f"rows: not in a federation of {clients}")
    config = dataclasses.replace(config, device=str(dict(node).get("device", config.device)))
    engine, numbers = make_engine(config, site.task), torch.tensor(rows)
    engine.data = place(engine.data, site.numbers, numbers, clients)
    (initial, buffers), data = engine.initial(), engine.data
    sizes, counts = data.splits["train"].sizes, data.label_counts()
    problem = Problem(initial, clients, sizes, counts, head_parameters(engine.module), engine.seed)
    sequential, batchnorm = (
        config.backend == "sequential",
        BatchNormPolicy.of(config.batchnorm, engine.module, algorithm.updates),
    )
    chunk = 1 if sequential else config.chunk or rows_that_fit(engine, initial, buffers)
    return Node(algorithm, ClientSide(algorithm, batchnorm, engine, chunk, sequential), numbers, problem, buffers)


def digest(row: Row) -> str:
    """A sum of a model, to see whether two have the same."""
    total = hashlib.sha256()
    for name, value in row.items():
        total.update(name.encode())
        total.update(value.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def memory_folder(node: Values, federation: str, rows: Tensor) -> Path:
    """Where the memory of these rows is kept."""
    root = Path(str(dict(node).get("memory", DEFAULT_MEMORY))).expanduser()
    return root / federation / f"{int(rows[0]):06d}"


def load_memory(folder: Path, node: Node, round: int) -> tuple[State, int]:
    """The memory that a round starts from, and the round that it comes from: 0 where there was none."""
    fresh, found = node.fresh_memory(), checkpoint.latest(folder, below=round)
    if found is None:
        return fresh, 0
    return grown(to_devices(found.tree, fresh), fresh), found.round


def save_memory(folder: Path, round: int, memory: State) -> None:
    """Keep the memory after a round."""
    if any(memory.values()):  # many networks and algorithms have nothing to remember
        private_folder(folder)
        checkpoint.save(folder, round, memory, {})


def save_models(folder: Path, rows: Tensor, models: Rows, buffers: Rows) -> None:
    """Write every client's personalised model as a state dictionary: client-000003.safetensors."""
    private_folder(folder)
    for number, row in enumerate(rows.tolist()):
        path = folder / f"client-{row:06d}.safetensors"
        one = {name: value[number].detach().cpu().contiguous() for name, value in {**models, **buffers}.items()}
        save_file(one, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)


def private_folder(folder: Path) -> None:
    """A folder that others on this machine cannot read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
