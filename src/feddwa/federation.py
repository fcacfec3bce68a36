"""The round loop: sample, download, train, upload, mix, evaluate. It knows no algorithm, no file and no screen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.batchnorm import Border
from feddwa.engine import Cohort, Engine, Rows, Scores, State, keys
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.network import head_parameters
from feddwa.engine.rows import put_state, take_state
from feddwa.halves import ClientHalf, ServerHalf, begin
from feddwa.ledger import Costs, message_bytes


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    cohort: Cohort
    before: Scores  # (N,) every client's personalised model at the start of the round
    after: Scores  # (m,) the participants' models after local training
    info: Info
    costs: Costs


@dataclass
class Federation:
    """A federation at rest between two rounds. `step` advances it by one round."""

    algorithm: Algorithm
    engine: Engine
    participation: float = 1.0
    sequential: bool = False  # the plain loop instead of the vectorised engine
    chunk: int | None = None  # clients trained together; None = as many as fit into memory
    batchnorm: str = "local"  # what becomes of BatchNorm: see feddwa.batchnorm
    round: int = 0  # finished rounds
    server: State = field(init=False)
    memory: State = field(init=False)  # (N, ...) of every client
    scores: Scores = field(init=False)  # (N,) of the personalised models as they are now

    def __post_init__(self) -> None:
        initial, buffers = self.engine.initial()
        sizes = self.engine.data.splits["train"].sizes
        counts, head = self.engine.data.label_counts(), head_parameters(self.engine.module)
        border = Border.of(self.batchnorm, self.engine.module, self.algorithm.updates)
        problem = Problem(initial, len(sizes), sizes, counts, head, self.engine.seed)
        self.server, self.memory = begin(self.algorithm, border, problem, buffers)
        self.chunk = 1 if self.sequential else self.chunk or rows_that_fit(self.engine, initial, buffers)
        self.server_half = ServerHalf(self.algorithm, border)
        self.client_half = ClientHalf(self.algorithm, border, self.engine, self.chunk, self.sequential)
        self.scores = self._evaluate_all()

    def step(self) -> Round:
        """One round."""
        costs, device = Costs(), self.engine.data.device
        cohort, before = self._cohort(self.round + 1), self.scores
        with costs.phase("train", device):
            download = self.server_half.download(self.server, cohort)
            memory = take_state(self.memory, cohort.ids)
            upload, memory, costs.flops = self.client_half.train(cohort.ids, cohort.round, download, memory)
        costs.bytes_down, costs.bytes_up = message_bytes(download), message_bytes(upload)
        with costs.phase("evaluate", device):
            after = self.client_half.trained_scores(cohort.ids, upload, memory)
        with costs.phase("server", device):
            self.server, info = self.server_half.advance(self.server, cohort, upload)
            self.memory = put_state(self.memory, cohort.ids, memory)
        self.round += 1
        with costs.phase("evaluate", device):
            self.scores = self._evaluate_all()
        return Round(cohort, before, after, info, costs)

    def state(self) -> Mapping[str, State]:
        """Everything that the coming rounds depend on, besides the number of the round."""
        return {"server": self.server, "memory": self.memory, "scores": {"all": self.scores._asdict()}}

    def restore(self, round: int, state: Mapping[str, State]) -> None:
        """Go back to where `state` was taken, after so many rounds."""
        device = self.engine.data.device
        self.server = _placed(state["server"], self.server, device)
        self.memory = _placed(state["memory"], self.memory, device)
        self.scores, self.round = Scores(**state["scores"]["all"]), round

    def personal(self, cohort: Cohort) -> tuple[Rows, Rows]:
        """The personalised models of some clients as they are now, and their BatchNorm statistics."""
        message = self.server_half.deliver(self.server, cohort)
        return self.client_half.personal(cohort.ids, cohort.round, message, take_state(self.memory, cohort.ids))

    def everybody(self) -> Cohort:
        """All clients, as the cohort of the coming round."""
        sizes = self.engine.data.splits["train"].sizes
        return Cohort(torch.arange(len(sizes)), sizes, self.round + 1)

    def _cohort(self, round: int) -> Cohort:
        sizes = self.engine.data.splits["train"].sizes
        ids = keys.sample(keys.key(self.engine.seed, "cohort", round), len(sizes), self.cohort_size)
        return Cohort(ids, sizes[ids], round)

    @property
    def cohort_size(self) -> int:
        """m = floor(participation * N)."""
        return int(self.participation * len(self.engine.data.splits["train"].sizes) + 1e-9)

    def _evaluate_all(self) -> Scores:
        everybody = self.everybody()
        message = self.server_half.deliver(self.server, everybody)
        return self.client_half.personal_scores(everybody.ids, everybody.round, message, self.memory)


def _placed(state: State, like: State, device: torch.device) -> State:
    """A state with every tensor where it has its place: some stay on the CPU, whatever the device."""
    return {
        part: {
            name: value.to(like[part][name].device if name in like.get(part, {}) else device)
            for name, value in rows.items()
        }
        for part, rows in state.items()
    }
