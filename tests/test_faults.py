"""Sick and slow clients: who is hit, what becomes of it, and that nobody else's model is touched."""

import json
import re

import pytest
import torch

import feddwa
from feddwa import updates
from feddwa.algorithms import ALGORITHMS, FedAvg, FedDWA, Local
from feddwa.config import RunConfig
from feddwa.engine import Cohort
from feddwa.engine.rows import take_parts, tensors
from feddwa.errors import InputError
from feddwa.faults import HEALTHY, Faults
from feddwa.federation import Federation
from feddwa.options.robustness import FAULTS
from tests.algorithms.conftest import equal
from tests.algorithms.conftest import federation as plain_federation
from tests.conftest import ANYWHERE, SIZES, conv_net, map_state, plain_net

N = len(SIZES)


def federation(algorithm, fault="", network=plain_net, lr=0.1, **options) -> Federation:
    return plain_federation(algorithm, network, lr=lr, faults=Faults(**RunConfig(fault=fault).faults), **options)


def everybody(round: int = 1, n: int = N) -> Cohort:
    return Cohort(torch.arange(n), torch.full((n,), 10), round, n)


def close(left, right) -> bool:
    """To rounding: stacks of other sizes are multiplied in another order."""
    pairs = zip(tensors(left), tensors(right), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-12) for (_, a), (_, b) in pairs)


def test_the_text_form():
    assert Faults(**RunConfig().faults) == HEALTHY
    assert RunConfig(fault=" dropout = 0.2, nan=1").faults == {"dropout": 0.2, "nan": 1.0}
    assert tuple(vars(HEALTHY)) == FAULTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fire=0.1", "--fault fire: no such fault; valid: dropout, straggler, nan, shape, as NAME=SHARE"),
        ("sign-flip=0.1", "--fault sign-flip: no such fault"),
        ("dropout", "--fault dropout: got '', must be a number"),
        ("dropout=much", "--fault dropout: got 'much', must be a number"),
        ("dropout=1.5", "--fault dropout: got 1.5, must be from 0 to 1"),
        ("nan=nan", "--fault nan: got nan, must be from 0 to 1"),
        ("nan=0.1,nan=0.2", "--fault nan: .* given once"),
        ("dropout=0.1,", "no such fault"),
    ],
)
def test_bad_requests_are_one_line(text, message):
    with pytest.raises(InputError, match=message):
        feddwa.RunConfig(fault=text).resolved()


def test_accidents_are_keyed_by_round_and_client():
    faults = Faults(dropout=0.3)
    drawn = torch.stack([faults.absent(0, everybody(round, 50)) for round in range(1, 201)])
    assert abs(float(drawn.double().mean()) - 0.3) < 0.02
    assert (drawn.double().mean(0) - 0.3).abs().max() < 0.15  # nobody is always hit
    some = Cohort(torch.tensor([3, 7, 20]), torch.ones(3), 5, 40)
    assert torch.equal(faults.absent(0, some), drawn[4][some.ids])  # whoever else was asked
    assert not torch.equal(faults.absent(1, everybody(1, 50)), drawn[0])


def test_the_deadline_is_when_the_fast_ones_have_answered():
    cohort = everybody(1, 40)
    assert [int(Faults(straggler=share).late(0, cohort).sum()) for share in (0, 0.1, 0.5, 1)] == [0, 4, 20, 40]
    slow = Cohort(torch.arange(40), torch.tensor([10] * 39 + [1000]), 1, 40)
    assert Faults(straggler=0.025).late(0, slow)[39]  # who has more to do needs longer


def test_updates_are_held_against_their_form():
    good = {"model": {"w": torch.ones(3, 2)}}
    expected = updates.signature(good)
    assert updates.mismatch(expected, updates.signature({"model": {"w": torch.zeros(9, 2)}})) is None
    for other in (
        {"model": {"w": torch.ones(3, 4)}},
        {"model": {"w": torch.ones(3, 2).double()}},
        {},
        {"x": {"w": good["model"]["w"]}},
    ):
        assert "missing, unasked for, or of another shape or type" in updates.mismatch(
            expected, updates.signature(other)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 2e12])
def test_one_bad_number_anywhere_is_found(dtype, value):
    message = {
        "a": {"w": torch.ones(5, 7, 3, dtype=dtype), "ids": torch.arange(5)},
        "b": {"v": torch.ones(5, dtype=dtype)},
    }
    assert updates.finite(message, 5).all()
    message["a"]["w"][2, 6, 1] = value
    message["b"]["v"][4] = value
    assert updates.finite(message, 5).tolist() == [True, True, False, True, False]
    assert updates.finite({}, 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("fault", ["nan=0.5", "shape=0.5", "dropout=0.5", "straggler=0.5"])
def test_whoever_is_missing_touches_nobody(name, fault):
    """The same round with the missing clients not invited at all has the same outcome for the server."""
    sick, well = federation(ALGORITHMS[name](), fault), federation(ALGORITHMS[name]())
    missing = 0
    for _ in range(2):
        result = sick.step()
        cohort, missing = result.cohort, missing + len(result.missing)
        well._cohort = lambda round, cohort=cohort: cohort
        if len(cohort) and not fault.startswith("straggler"):  # who is late has trained for itself
            well.step()
    if name == "local" and not fault.startswith(("dropout", "straggler")):
        assert not missing  # nothing is sent, nothing is refused
    else:
        assert missing
    assert sick.round == 2
    finite = [value.isfinite().all() for part, value in tensors(sick.server) if value.is_floating_point()]
    assert all(finite)
    if not fault.startswith("straggler"):
        assert close(sick.server, well.server)
        assert close(sick.memory, well.memory)


def test_a_dropped_client_keeps_its_model_and_is_drawn_again():
    run = federation(FedDWA(), "dropout=0.5", conv_net)
    seen, last = set(), take_parts(run.server, torch.arange(N))
    for _ in range(6):
        memory = run.memory
        result = run.step()
        for client, why in result.missing.items():
            one = torch.tensor([client])
            assert why == "dropout"
            assert equal(take_parts(run.server, one), take_parts(last, one))
            assert equal(take_parts(run.memory, one), take_parts(memory, one))
        last = run.server
        seen |= set(result.cohort.ids.tolist())
    assert seen == set(range(N))


@pytest.mark.slow
def test_who_is_late_has_trained_and_who_is_refused_has_not():
    for fault, moves in (("straggler=0.5", True), ("nan=0.5", False), ("shape=0.5", False)):
        run = federation(FedDWA(), fault, conv_net)
        before = run.memory
        gone = torch.tensor(sorted(run.step().missing))
        assert len(gone)
        assert equal(take_parts(run.memory, gone), take_parts(before, gone)) is not moves


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("fault", ["dropout=1", "nan=1"])
def test_a_round_without_anybody_is_a_pause(name, fault):
    run = federation(ALGORITHMS[name](), fault)
    server = run.server
    result = run.step()
    if name != "local" or fault == "dropout=1":
        assert len(result.cohort) == 0
        assert len(result.missing) == N
        assert result.info == {}
        assert equal(run.server, server)
    run.step()
    assert run.round == 2


@pytest.mark.parametrize("name", ANYWHERE)
def test_clients_that_diverge_are_refused_and_counted(name, tmp_path):
    """A rate at which nothing stays finite, without any fault asked for."""
    result = feddwa.run(algorithm=name, clients=4, rounds=2, batch_size=50, lr=1e30, out=str(tmp_path / "run"))
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    if name not in ("local", "pfedme"):
        assert result.summary["missing"] == {"not finite": 8}
        assert result.summary["accuracy"]["last"] is not None
    assert json.loads((tmp_path / "run" / "record.json").read_text())["summary"] == result.summary


def test_one_client_that_diverges_leaves_the_others_in_peace():
    """Client 3 has samples of another size of numbers; the round is that of the seven others."""
    good, bad = federation(FedAvg()), federation(FedAvg())
    rows = bad.engine.data.splits["train"].index[3, : SIZES[3]]
    bad.engine.data.x[rows] *= 1e200
    result = bad.step()
    assert result.missing == {3: "not finite"}
    good._cohort = lambda round: result.cohort
    good.step()
    assert equal(good.server, bad.server)


def test_a_model_of_nan_answers_nothing_rightly():
    run = federation(Local())
    run.memory = {
        **run.memory,
        "model": map_state(lambda v: torch.full_like(v, torch.nan), {"m": run.memory["model"]})["m"],
    }
    run._evaluate(run.all_clients().ids)
    scores = run.scores
    assert scores.accuracy.tolist() == [0.0] * N
    assert scores.loss.isnan().all()


def test_backends_agree_on_faults():
    fault = "dropout=0.2,nan=0.2,straggler=0.2"
    runs = [federation(FedDWA(top_k=3), fault, sequential=sequential) for sequential in (False, True)]
    for _ in range(3):
        results = [run.step() for run in runs]
        assert results[0].missing == results[1].missing
    for (_, a), (_, b) in zip(tensors(runs[0].server), tensors(runs[1].server), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_faults_in_python_and_in_the_table(tmp_path, capsys):
    from feddwa import cli

    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(4)]
    result = feddwa.run(model=torch.nn.Linear(3, 2), dataset=clients, rounds=3, fault="dropout=0.5", out=False)
    assert result.summary["missing"]["dropout"] > 0
    fault = "dropout=0.3,nan=0.2"
    assert cli.main(["run", "--clients", "8", "--rounds", "2", "--fault", fault, "--out", str(tmp_path / "r")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"warn feddwa: \d+ of \d+ updates did not count \(\d+ not finite\)", out)
    assert re.search(r"note feddwa: \d+ of \d+ updates did not count \(\d+ dropout\)", out)
