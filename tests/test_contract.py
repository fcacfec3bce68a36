"""An algorithm that breaks its contract is told so in the first round: who, which part, and what is expected."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import feddwa
from feddwa.algorithms import FedAvg, FedDWA
from feddwa.contract import Checked
from feddwa.errors import InputError
from tests.algorithms.conftest import federation
from tests.conftest import SIZES

M = len(SIZES)
CLIENTS = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(M)]


def refused(algorithm) -> str:
    with pytest.raises(InputError) as error:
        feddwa.run(model=nn.Linear(3, 2), dataset=CLIENTS, algorithm=algorithm, rounds=1, out=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def client_returns(upload=None, memory=None):
    """A FedDWA whose client side returns these: functions of what it ought to return."""

    @dataclass(frozen=True)
    class Broken(FedDWA):
        def client(self, trainer, download, given):
            good, own = super().client(trainer, download, given)
            return good if upload is None else upload(good), own if memory is None else memory(own)

    return Broken()


UPLOADS = {
    "bare tensor": (
        lambda good: {**good, "guidance": good["guidance"]["weight"]},
        "client() returned upload part 'guidance' as a tensor (8, 2, 3) of float32; must be a mapping name -> tensor",
    ),
    "row count": (
        lambda good: {**good, "extra": {"mean": good["model"]["weight"].mean(0)}},
        "client() returned upload part 'extra' with 'mean' as a tensor (2, 3) of float32; must have 8 rows, one for "
        "each client",
    ),
    "number": (
        lambda good: {**good, "extra": {"loss": 0.5}},
        "client() returned upload part 'extra' with 'loss' as a float; must be a tensor",
    ),
    "scalar": (
        lambda good: {**good, "extra": {"loss": torch.tensor(0.5)}},
        "client() returned upload part 'extra' with 'loss' as a tensor () of float32; must have 8 rows",
    ),
    "list": (lambda good: [good], "client() returned upload a list; must be part -> name -> tensor"),
    "slash": (lambda good: {**good, "a/b": {}}, "client() returned upload part 'a/b'; must be a name without '/'"),
    "blank": (
        lambda good: {**good, "a b": good["model"]},
        "client() returned upload part 'a b' with 'weight'; names in messages must have no blanks",
    ),
    "missing": (
        lambda good: {"guidance": good["guidance"]},
        "trained() looks for 'model', which is not there: upload has ['guidance'], memory has ['buffers']",
    ),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_uploads(name):
    upload, message = UPLOADS[name]
    assert refused(client_returns(upload)).startswith(f"algorithm Broken: {message}")


def test_uploads_without_a_model_need_a_trained_of_their_own():
    class Nameless(FedAvg):
        def client(self, trainer, download, memory):
            good, own = super().client(trainer, download, memory)
            return {"other": good["model"]}, own

    expected = "client() sends no part 'model', which trained() evaluates unless the algorithm has its own"
    assert refused(Nameless()) == f"algorithm Nameless: {expected}"


MEMORIES = {
    "undeclared": (
        lambda own: {**own, "momentum": {"w": torch.zeros(M, 3)}},
        "client() returned memory part 'momentum', which setup() did not declare: it would be lost",
    ),
    "empty": (
        lambda own: {},
        "client() returned memory without part 'buffers'; return the memory that the trainer returned",
    ),
    "none": (lambda own: None, "client() returned memory None; must be part -> name -> tensor"),
    "bare tensor": (
        lambda own: {**own, "buffers": torch.zeros(M)},
        "client() returned memory part 'buffers' as a tensor (8,) of float32; must be a mapping name -> tensor",
    ),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_memories(name):
    memory, message = MEMORIES[name]
    assert refused(client_returns(memory=memory)).startswith(f"algorithm Broken: {message}")


@dataclass(frozen=True)
class Remembering(FedDWA):
    """Declares a number per client; what it returns of it is up to its descendants."""

    def setup(self, problem):
        return super().setup(problem)[0], {"count": {"rounds": torch.zeros(problem.clients)}}

    def client(self, trainer, download, memory):
        upload, memory = super().client(trainer, download, memory)
        return upload, {**memory, "count": self.counted(memory["count"])}

    def counted(self, count):
        return {"rounds": count["rounds"] + 1}


def test_declared_memory_is_kept():
    run = federation(Remembering(), participation=0.5)
    taken = sum(torch.bincount(run.step().cohort.ids, minlength=M) for _ in range(3))
    assert torch.equal(run.memory["count"]["rounds"], taken.float())


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        (
            lambda self, count: {"rounds": count["rounds"].double()},
            "client() returned memory part 'count' with 'rounds' as a tensor (8,) of float64; setup() declared a "
            "tensor (8,) of float32",
        ),
        (
            lambda self, count: {"rounds": torch.zeros(M, 2)},
            "client() returned memory part 'count' with 'rounds' as a tensor (8, 2) of float32; setup() declared",
        ),
        (
            lambda self, count: {"other": torch.zeros(M)},
            "client() returned memory part 'count' with other names than setup() declared: ['other'] and ['rounds']",
        ),
    ],
)
def test_memory_must_be_what_setup_declared(counted, message):
    broken = type("Broken", (Remembering,), {"counted": counted})()
    assert refused(broken).startswith(f"algorithm Broken: {message}")


METHODS = {
    "setup rows": (
        "setup",
        lambda self, problem: ({"model": {}}, {"count": {"rounds": torch.zeros(3)}}),
        "setup() returned memory part 'count' with 'rounds' as a tensor (3,) of float32; must have 8 rows",
    ),
    "setup buffers": (
        "setup",
        lambda self, problem: ({}, {"buffers": {}}),
        "setup() returned a part 'buffers', a name that is taken; give it another",
    ),
    "setup alone": (
        "setup",
        lambda self, problem: {"model": problem.initial},
        "setup() returned a dict; must be a pair (server state, memory)",
    ),
    "download rows": (
        "download",
        lambda self, server, cohort: {"model": {name: value[:1] for name, value in server["model"].items()}},
        "deliver() returned message part 'model' with 'weight' as a tensor (1, 2, 3) of float32; must have 8 rows",
    ),
    "server looks for more": (
        "server",
        lambda self, server, cohort, upload: (server, {"weights": upload["weights"]["omega"]}),
        "server() looks for 'weights', which is not there: server has ['model'], upload has ['model', 'guidance']",
    ),
    "download nothing": (
        "download",
        lambda self, server, cohort: {},
        "download() sends no part 'model', which personal() evaluates unless the algorithm has its own",
    ),
    "client alone": (
        "client",
        lambda self, trainer, download, memory: {"model": download["model"]},
        "client() returned a dict; must be a pair (upload, memory)",
    ),
    "server part": (
        "server",
        lambda self, server, cohort, upload: ({**server, "more": {"w": torch.zeros(3)}}, {}),
        "server() returned server state part 'more', which setup() did not declare: it would be lost",
    ),
    "server nothing": (
        "server",
        lambda self, server, cohort, upload: ({}, {}),
        "server() returned server state without part 'model'; return all parts, also those that stay",
    ),
    "server info": (
        "server",
        lambda self, server, cohort, upload: (server, {"weights": [[1.0]]}),
        "server() returned info a dict; must be name -> tensor",
    ),
    "server weights": (
        "server",
        lambda self, server, cohort, upload: (server, {"weights": torch.ones(1, M)}),
        "server() returned info 'weights' a tensor (1, 8) of float32; must be P, (8, 8)",
    ),
    "personal names": (
        "personal",
        lambda self, trainer, download, memory: ({"weight": download["model"]["weight"]}, memory),
        "personal() returned models with 'bias' missing or too much; must be those of the model's parameters",
    ),
    "personal shape": (
        "personal",
        lambda self, trainer, download, memory: (
            {**download["model"], "bias": torch.zeros(M, 5)},
            memory,
        ),
        "personal() returned models with 'bias' as a tensor (8, 5) of float32; a row must be (2,)",
    ),
    "personal memory": (
        "personal",
        lambda self, trainer, download, memory: (download["model"], {}),
        "personal() returned a memory without part 'buffers'",
    ),
    "trained": (
        "trained",
        lambda self, upload, memory: upload["model"]["weight"],
        "trained() returned models as a tensor (8, 2, 3) of float32; must be a mapping parameter name -> (m, *shape)",
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name):
    method, replacement, message = METHODS[name]
    assert refused(type("Broken", (FedDWA,), {method: replacement})()).startswith(f"algorithm Broken: {message}")


def test_later_rounds_cost_nothing():
    run = federation(FedDWA())
    assert isinstance(run.client_side._checked(1, M), Checked)
    assert isinstance(run.server_side._checked(run.all_clients()), Checked)
    run.step()
    assert run.client_side._checked(2, M) is run.algorithm
    assert run.server_side._checked(run.all_clients()) is run.algorithm
