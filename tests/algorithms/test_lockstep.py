"""Seeds trained as one stack: every federation ends where it ends alone."""

import pytest
import torch

from feddwa.algorithms import ALGORITHMS
from feddwa.engine.fast.lockstep import lockstep_engines, run_in_lockstep, stacked_engine
from feddwa.federation import Federation
from tests.algorithms.conftest import after, difference, federation
from tests.conftest import SIZES, conv_net, small_data

SEEDS = (0, 1, 2)
PART = 0.5  # of the clients take part


def alone(name, seed, **options):
    """A federation of this seed on data of its own; the second one has other sizes."""
    sizes = SIZES[::-1] if seed == 1 else SIZES
    made = federation(ALGORITHMS[name](), conv_net, small_data(sizes=sizes, seed=seed))
    made.engine.seed = seed
    return Federation(made.algorithm, made.engine, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stack_of_seeds_is_the_seeds(name):
    federations = [alone(name, seed, participation=PART) for seed in SEEDS]
    own = [each.engine for each in federations]
    stack, engines = stacked_engine(own), lockstep_engines(own)

    def run(each, engine):
        return lambda: after(Federation(each.algorithm, engine, PART), 2)

    calls = []
    advance = stack.advance
    stack.advance = lambda work, constants, schedule: calls.append(schedule.rows) or advance(work, constants, schedule)
    results = run_in_lockstep(stack, engines, [run(*pair) for pair in zip(federations, engines, strict=True)])
    for each, found in zip(federations, results, strict=True):
        assert difference(found, after(each, 2)) < 1e-9
    assert all(rows % len(SEEDS) == 0 for rows in calls)


def test_a_failure_of_one_stops_all():
    federations = [alone("fedavg", seed) for seed in SEEDS]
    own = [each.engine for each in federations]
    stack, engines = stacked_engine(own), lockstep_engines(own)
    rounds = []

    def run(engine, last):
        made = Federation(ALGORITHMS["fedavg"](), engine)
        for number in range(5):
            if number == last:
                raise OSError("no space left")
            made.step()
            rounds.append(number)

    with pytest.raises(OSError, match="no space"):
        run_in_lockstep(
            stack, engines, [lambda e=engine, n=n: run(e, n) for n, engine in zip((5, 2, 5), engines, strict=True)]
        )
    assert max(rounds) == 1


def test_federations_that_part_ways():
    """One has fewer rounds than the others: they go on without it."""
    federations = [alone("local", seed) for seed in SEEDS]
    own = [each.engine for each in federations]
    stack, engines = stacked_engine(own), lockstep_engines(own)
    found = run_in_lockstep(
        stack,
        engines,
        [
            lambda e=engine, n=n: after(Federation(ALGORITHMS["local"](), e), n)
            for n, engine in zip((1, 3, 3), engines, strict=True)
        ],
    )
    for rounds, each, end in zip((1, 3, 3), federations, found, strict=True):
        assert difference(end, after(each, rounds)) < 1e-9
    assert torch.is_tensor(next(iter(found[0]["model"].values())))


def test_models_are_scored_as_one_stack_and_stay_in_step():
    """One looks ahead and trains twice a round, the other once: nothing is scored before both have trained."""
    made = [alone("feddwa", seed) for seed in SEEDS[:2]]
    methods = ALGORITHMS["feddwa"](), ALGORITHMS["feddwa"](guidance="last")
    own = [each.engine for each in made]
    stack, engines = stacked_engine(own), lockstep_engines(own)
    rows, score = [], stack.score
    stack.score = lambda asked: rows.append(len(asked.sizes)) or score(asked)

    def run(method, engine):
        federation = Federation(method, engine)
        return [federation.step().after.loss, federation.step().after.loss, federation.scores.loss]

    found = run_in_lockstep(stack, engines, [lambda p=pair: run(*p) for pair in zip(methods, engines, strict=True)])
    assert rows == [2 * len(SIZES)] * 5
    for method, each, losses in zip(methods, made, found, strict=True):
        for loss, expected in zip(losses, run(method, each.engine), strict=True):
            torch.testing.assert_close(loss, expected, rtol=0, atol=1e-9)
