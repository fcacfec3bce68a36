"""What federations in lockstep compute together is what each of them computes alone."""

import pytest
import torch

from feddwa import mixing, updates
from feddwa.engine.fast.joint import JointCall, jointly
from feddwa.engine.fast.lockstep import _next_groups
from feddwa.engine.fast.worker import Worker
from feddwa.engine.rows import adjacent, concat

M, T = 4, 3


def stacks(close: float = 1.0) -> list[dict[str, torch.Tensor]]:
    """Models (m, *shape) of some federations, the rows of all one behind the other in memory."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (5, 7), "bias": (5,), "scale": ()}
    whole = {name: 1 + close * torch.randn(T * M, *shape, generator=generator) for name, shape in shapes.items()}
    return [{name: value[M * t : M * (t + 1)] for name, value in whole.items()} for t in range(T)]


def together(call, arguments):
    """The results of a call of every federation, from threads that take turns, and how often it was computed."""
    workers, served = [Worker(lambda own=own: call(*own)) for own in arguments], []
    while waiting := [worker for worker in workers if worker.run_to_request()]:
        for group in _next_groups(waiting):
            served.append(len(group))
            requests = [worker.request for worker in group]
            for worker, reply in zip(group, JointCall.serve(None, requests), strict=True):
                worker.reply = reply
    return [worker.result for worker in workers], served


@pytest.mark.parametrize("close", [1.0, 1e-6])
def test_distances_mixtures_and_products_of_all_federations_are_one_call(close):
    own = stacks(close)
    weights = [torch.rand(2, M, generator=torch.Generator().manual_seed(t)) for t in range(T)]
    found, served = together(mixing.mix, list(zip(weights, own, strict=True)))
    assert served == [T]
    for result, share, stack in zip(found, weights, own, strict=True):
        torch.testing.assert_close(result, mixing.mix(share, stack))
    for function in (mixing.squared_distances, mixing.inner_products, mixing.dots):
        pairs = [(own[t], own[(t + 1) % T]) for t in range(T)] if function is mixing.dots else [(x, x) for x in own]
        found, served = together(function, pairs)
        assert served == [T]
        for result, pair in zip(found, pairs, strict=True):
            torch.testing.assert_close(result, function(*pair), rtol=1e-12, atol=1e-12)


def test_federations_with_other_shapes_are_computed_by_themselves():
    own = stacks()
    own[1] = {name: value[:3] for name, value in own[1].items()}
    found, served = together(mixing.squared_distances, [(stack, stack) for stack in own])
    assert sorted(served) == [1, 2]
    assert [len(each) for each in found] == [M, 3, M]


def test_whose_updates_are_finite_is_told_for_every_federation():
    own = stacks()
    own[2] = {name: value.clone() for name, value in own[2].items()}
    own[2]["bias"][1, 0] = torch.nan
    found, served = together(updates.finite, [({"model": stack}, M) for stack in own])
    assert served == [T]
    assert [each.tolist() for each in found] == [[True] * M, [True] * M, [True, False, True, True]]


def test_who_is_in_an_earlier_round_goes_first():
    add = jointly(lambda value: value + 1)

    def task(steps):
        return lambda: [add(torch.zeros(2)) for _ in range(steps)]

    workers = [Worker(task(2)), Worker(task(1))]
    assert all(worker.run_to_request() for worker in workers)
    workers[1].round = 1
    assert _next_groups(workers) == [[workers[0]]]
    workers[0].round = 1
    assert _next_groups(workers) == [workers]
    for worker in workers:
        worker.stop()


def test_rows_that_are_neighbours_in_memory_are_not_copied():
    whole = torch.arange(24.0).reshape(6, 4)
    parts = [whole[:2], whole[2:3], whole[3:]]
    found = adjacent(parts)
    assert found is not None
    assert found.data_ptr() == whole.data_ptr()
    assert torch.equal(found, whole)
    assert concat([{"model": {"w": part}} for part in parts])["model"]["w"].data_ptr() == whole.data_ptr()
    rows = [whole[0].expand(1, 4), whole[1].expand(1, 4)]  # a row of its own has any stride
    assert torch.equal(adjacent(rows), whole[:2])
    assert adjacent([whole[2:], whole[:2]]) is None
    assert adjacent([whole[:, :2], whole[:, 2:]]) is None
    assert adjacent([whole[:2], whole[2:].clone()]) is None
