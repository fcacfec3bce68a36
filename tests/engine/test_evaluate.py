"""Every client's own model on its own test data."""

import pytest
import torch
from torch.nn import functional as F

from feddwa.engine import Engine, Settings, Trainer, evaluate
from feddwa.engine.fast import record
from feddwa.engine.rows import repeat
from feddwa.engine.score import SAMPLES_AT_ONCE
from tests.conftest import NETWORKS, SIZES, small_data


@pytest.mark.parametrize("at_once", [4096, 16])
@pytest.mark.parametrize("network", NETWORKS)
def test_scores_agree_with_a_loop_over_modules(network, at_once, monkeypatch):
    monkeypatch.setitem(SAMPLES_AT_ONCE, "cpu", at_once)
    engine = Engine(NETWORKS[network](), small_data(), Settings(2, 10, 0.1), dtype=torch.float64)
    parameters, buffers = engine.initial()
    everybody = torch.arange(len(SIZES))
    model, memory = Trainer(engine, everybody, 1).sgd(
        repeat(parameters, len(SIZES)), {"buffers": repeat(buffers, len(SIZES))}
    )
    scores = evaluate(engine, model, memory["buffers"], everybody)
    module, test = NETWORKS[network]().double().eval(), engine.data.splits["test"]
    for client in range(len(SIZES)):
        module.load_state_dict({name: value[client] for name, value in {**model, **memory["buffers"]}.items()})
        rows = test.index[client, : test.sizes[client]]
        with torch.no_grad():
            outputs = module(engine.data.x[rows].double())
        right = (outputs.argmax(1) == engine.data.y[rows]).double().mean()
        assert scores.accuracy[client] == pytest.approx(float(right), abs=1e-12)
        assert scores.loss[client] == pytest.approx(float(F.cross_entropy(outputs, engine.data.y[rows])), rel=1e-9)


def test_some_clients_only():
    engine = Engine(NETWORKS["plain"](), small_data(), Settings(), dtype=torch.float64)
    parameters, buffers = engine.initial()
    everybody = evaluate(engine, repeat(parameters, 8), repeat(buffers, 8), torch.arange(8))
    some = evaluate(engine, repeat(parameters, 2), repeat(buffers, 2), torch.tensor([6, 1]))
    assert some.accuracy.tolist() == everybody.accuracy[[6, 1]].tolist()


@pytest.mark.parametrize("network", NETWORKS)
def test_when_it_is_recorded_never_shows(network, monkeypatch):
    """Other models, and rows that share their memory, go through what was recorded of the first ones."""
    engine = Engine(NETWORKS[network](), small_data(), Settings(1, 10, 0.1))
    parameters, buffers = engine.initial()
    everybody, start = torch.arange(len(SIZES)), repeat(parameters, len(SIZES))
    trained, memory = Trainer(engine, everybody, 1).sgd(start, {"buffers": repeat(buffers, len(SIZES))})
    models = [(start, repeat(buffers, len(SIZES))), (trained, memory["buffers"])]
    seen = []
    for after in (10**9, 0):  # never, at once
        monkeypatch.setitem(record.RECORD_AFTER, "cpu", after)
        seen.append([evaluate(engine, *own, everybody) for own in models])
    for eager, recorded in zip(*seen, strict=True):
        assert torch.equal(eager.accuracy, recorded.accuracy)
        assert torch.equal(eager.loss, recorded.loss)
    assert not torch.equal(seen[1][0].loss, seen[1][1].loss)
