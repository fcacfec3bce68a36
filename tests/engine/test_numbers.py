"""Numbers of a step as tensors, one for each row: the same arithmetic, and one program for all of them."""

import numpy as np
import pytest
import torch

from feddwa.algorithms import FedAvg, FedProx, PFedMe
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Engine, Settings
from feddwa.engine.engine import Epoch, Schedule
from feddwa.engine.fast.lockstep import lockstep_engines, run_in_lockstep, stacked_engine
from feddwa.engine.numbers import numbers, template, with_numbers
from feddwa.engine.optimizers import SGD, Adam
from feddwa.engine.rows import repeat
from feddwa.engine.steps import SGDStep
from feddwa.federation import Federation
from feddwa.sides import network_of
from tests.algorithms.conftest import after, equal
from tests.conftest import conv_net, plain_net, small_data
from tests.engine.test_optimizers import SIZES, method, same


def test_a_template_has_the_structure_and_the_numbers_travel_beside_it():
    step = ProximalStep(0.1, 0.0, optimizer=SGD(0.9, weight_decay=0.01))
    assert numbers(step) == {"rate": 0.1, "optimizer.momentum": 0.9, "optimizer.weight_decay": 0.01}
    assert template(step) == ProximalStep(1.0, 0.0, optimizer=SGD(1.0, weight_decay=1.0))  # no strength: no such term
    assert template(step) == template(ProximalStep(0.3, 0.0, optimizer=SGD(0.5, weight_decay=1.0)))
    assert template(step) != template(ProximalStep(0.1, 1.0, optimizer=SGD(0.9, weight_decay=0.01)))
    assert with_numbers(template(step), numbers(step)) == step
    assert template(own := lambda: None) is own
    assert numbers(own) == {}


def lifting(engine):
    """An engine that lifts the numbers of every step."""
    advance = engine.advance
    engine.advance = lambda work, constants, schedule: advance(work, constants, schedule.lifted())
    return engine


LATER = ("apfl", "fedala", "fedas", "fedcp", "fedphp", "gpfl", "pfedgraph", "scaffold")


def engine_of(algorithm, lr, optimizer, seed=0, network=plain_net, dtype=torch.float64):
    data = algorithm.split(small_data(SIZES, seed), np.random.default_rng(1))
    module = network_of(algorithm, network(), seed)
    return Engine(module, data, Settings(1, 10, lr, optimizer), seed, dtype=dtype)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(0.9, True, 0.01, clip=0.5), Adam(weight_decay=0.1, decoupled=True)])
@pytest.mark.parametrize(
    "name",
    [
        *("fedavg", "fedprox", "pfedme", "perfedavg", "fedrod"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in LATER),
    ],
)
def test_lifted_numbers_compute_the_same(name, optimizer):
    ends = []
    for change in (lambda engine: engine, lifting):
        algorithm = method(name, optimizer)
        engine = change(engine_of(algorithm, 0.05, optimizer))
        ends.append(after(Federation(algorithm, engine, 0.6), 3))
    same(*ends)


def test_half_precision_rounds_the_rate_to_float32():
    ends = []
    for change in (lambda engine: engine, lifting):
        engine = change(engine_of(FedAvg(), 0.0123, SGD(), dtype=torch.bfloat16))
        ends.append(after(Federation(FedAvg(), engine), 2))
    for name, value in ends[0]["model"].items():
        torch.testing.assert_close(value, ends[1]["model"][name], rtol=0.02, atol=0.02)


def test_a_schedule_of_rates_records_one_program():
    engine = engine_of(FedAvg(), 0.1, SGD())
    model, buffers = engine.initial()
    work = {"model": {n: v.expand(5, *v.shape) for n, v in model.items()}, "buffers": dict(buffers)}
    split = engine.data.splits["train"]
    epoch = Epoch(split.index, torch.zeros(5, dtype=torch.int64), split.sizes)
    for rate in (0.1, 0.05, 0.01):
        engine.advance(work, {}, Schedule(SGDStep(rate), [epoch], 5, 10).lifted())
    assert len(engine.programs) == 1
    engine.advance(work, {}, Schedule(SGDStep(0.1), [epoch], 5, 10))
    assert len(engine.programs) == 2  # constant numbers stay inside a program of their own


TRIALS = [
    (FedProx(mu=0.1), 0.1, SGD(0.9)),
    (FedProx(mu=1.0), 0.03, SGD(0.5)),
    (FedProx(mu=0.3), 0.1, SGD(0.9)),
    (FedProx(mu=0.0), 0.1, SGD(0.9)),  # has no such term: a stack of its own
]


def in_lockstep(trials, rounds, network=plain_net):
    """(ends of the trials trained in lockstep, rows of every stack that was trained)."""
    engines = [engine_of(*trial, network=network) for trial in trials]
    stack, members, rows = stacked_engine(engines), lockstep_engines(engines), []
    advance = stack.advance
    stack.advance = lambda work, constants, schedule: rows.append(schedule.rows) or advance(work, constants, schedule)
    tasks = [
        lambda trial=trial, engine=engine: after(Federation(trial[0], engine, 0.6), rounds)
        for trial, engine in zip(trials, members, strict=True)
    ]
    return run_in_lockstep(stack, members, tasks), rows


def test_federations_that_differ_in_numbers_are_one_stack():
    found, rows = in_lockstep(TRIALS, 2)
    assert rows == [9, 3, 9, 3]
    for (algorithm, lr, optimizer), end in zip(TRIALS, found, strict=True):
        same(end, after(Federation(algorithm, engine_of(algorithm, lr, optimizer), 0.6), 2))


def test_federations_with_the_same_numbers_have_them_in_their_program_bit_for_bit():
    trials = [(PFedMe(), 0.05, SGD())] * 2
    found, _ = in_lockstep(trials, 2, conv_net)
    alone = after(Federation(PFedMe(), engine_of(*trials[0], network=conv_net), 0.6), 2)
    for end in found:
        same(end, alone)
    assert equal(*found)


def test_numbers_do_not_change_what_a_step_costs():
    engine = engine_of(FedAvg(), 0.1, SGD())
    model, buffers = engine.initial()
    for rate in (0.1, 0.2):
        cost = engine.step_flops(SGDStep(rate), {"model": repeat(model, 1), "buffers": repeat(buffers, 1)}, {}, 10)
    assert cost == next(iter(engine.flops.values()))
    assert len(engine.flops) == 1
