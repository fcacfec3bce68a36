"""`feddwa new`: files to begin with."""

import keyword
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from feddwa.errors import InputError, require
from feddwa.params import Option

ALGORITHM = '''"""{title}: what it does, in a line (authors, venue and year).

    client  v_i <- E epochs of SGD from w
    server  w = sum_{{k in S_t}} (n_k / n) v_k

Crosses the network: w down, v_i up, two model sizes.

As written here this is FedAvg, with a share of the old model that the server keeps. Change what is different in yours.

    feddwa run --algorithm {file}:{title} --param keep=0.1
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import repeat
from feddwa.errors import require
from feddwa.mixing import mix


@dataclass(frozen=True)
class {title}(Algorithm):
    """{title}. Its fields are the hyper-parameters, which --param sets."""

    title = "{title}"
    summary = "one line for lists"
    models_down = models_up = 1  # that a client receives and sends in a round
    passes = 1  # forward and backward passes over its data, those of FedAvg being 1

    keep: float = 0.0
    """Share of the old global model in the new one."""

    def __post_init__(self) -> None:
        require(0 <= self.keep < 1, "--param keep", self.keep, "from 0 up to but not including 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server's state and what clients remember between rounds, rows (N, ...): part -> name -> tensor."""
        return {{"model": problem.initial}}, {{}}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The message to each of the m clients of a round, rows (m, ...)."""
        return {{"model": repeat(server["model"], len(cohort))}}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """The message to the server and the new memory, rows (m, ...). A client sees its own row and data alone."""
        model, memory = trainer.sgd(download["model"], memory)
        return {{"model": model}}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The server's new state; "weights" is P (m, m), whose row i has the weights of all models in client i's."""
        weights = (cohort.sizes.double() / cohort.sizes.sum()).unsqueeze(0)  # (1, m)
        mean = mix(weights, upload["model"])  # name -> (1, *shape)
        new = {{name: self.keep * old + (1 - self.keep) * mean[name][0] for name, old in server["model"].items()}}
        return {{"model": new}}, {{"weights": weights.expand(len(cohort), -1)}}
'''

TEST = '''"""{title} does what its formulas say."""

import pytest
import torch
from {module} import {title}
from torch import nn

import feddwa
from feddwa import InputError


def clients(count=4, samples=20):
    """Points in the plane whose first coordinate decides the class."""
    generator = torch.Generator().manual_seed(0)
    points = [torch.randn(samples, 2, generator=generator) for _ in range(count)]
    return [(x, (x[:, 0] > 0).long()) for x in points]


def trained(algorithm, model, **options):
    """The models that come out; nothing is written."""
    found = feddwa.run(algorithm=algorithm, model=model, dataset=clients(), lr=0.1, out=False, **options)
    return found.models


@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
def test_a_special_case_is_a_known_method(backend):
    """Find the values of the hyper-parameters with which your method is one that is known."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    ours = trained({title}(keep=0.0), model, rounds=3, backend=backend)
    fedavg = trained("fedavg", model, rounds=3, backend=backend)
    for name, value in fedavg.items():
        torch.testing.assert_close(ours[name], value)


def test_the_old_model_keeps_its_share():
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    ours, fedavg = trained({title}(keep=0.25), model, rounds=1), trained("fedavg", model, rounds=1)
    for name, old in model.state_dict().items():
        torch.testing.assert_close(ours[name][0], 0.25 * old + 0.75 * fedavg[name][0])


def test_bad_values_are_refused():
    with pytest.raises(InputError, match="--param keep: got 1.0"):
        {title}(keep=1.0)
'''


@dataclass(frozen=True)
class NewConfig:
    """Write the skeleton of an algorithm of your own, and a test that it passes."""

    what: Annotated[Literal["algorithm"], Option(positional=True)]
    """What to begin."""
    name: Annotated[str, Option(positional=True)]
    """Name of the class, such as Ditto; the files are ditto.py and test_ditto.py."""
    out: str = "."
    """Folder to write to."""


def new_command(config: NewConfig) -> int:
    """`feddwa new`."""
    title, module = config.name, config.name.lower()
    usable = title.isidentifier() and title.isascii() and not keyword.iskeyword(title) and not keyword.iskeyword(module)
    require(usable, "NAME", title, "a name that Python allows for a class, such as Ditto")
    folder = Path(config.out)
    files = {folder / f"{module}.py": ALGORITHM, folder / f"test_{module}.py": TEST}
    for path in files:
        if path.exists():
            raise InputError(f"{path}: is there already; give another name, or another folder by --out")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text.format(title=title, module=module, file=folder / f"{module}.py"), encoding="utf-8")
        print(f"wrote {path}")
    print(f"python -m pytest {folder / f'test_{module}.py'} tests it")
    return 0
