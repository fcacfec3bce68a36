"""--validation and --early-stop: who is held out, that nobody trains on them, what is measured, when a run ends."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feddwa
from feddwa import checkpoint
from feddwa.build import load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset
from feddwa.data.federated import HELD_OUT, federate
from feddwa.data.partition import Partition
from feddwa.engine import Scores
from feddwa.engine.engine import calls
from feddwa.errors import InputError
from feddwa.experiment import resume, run_tasks
from feddwa.results import metrics
from feddwa.results.early_stop import EarlyStop
from feddwa.results.record import read_run
from feddwa.results.runs import read_record
from tests.conftest import ANYWHERE

SMALL = {"clients": 4, "rounds": 3, "batch_size": 20, "dtype": "float64", "validation": 0.25}


def engine_of(algorithm="feddwa", **options):
    config = RunConfig(algorithm=algorithm, **{**SMALL, **options}).resolved()
    return config, make_engine(config, load_task(config))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.floats(0.01, 0.95),
    in_time=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_and_stratified(sizes, share, in_time, seed):
    rng = np.random.default_rng(seed)
    cuts = np.cumsum([0, *sizes])
    y = rng.integers(0, 3, cuts[-1] + len(sizes))
    dataset = Dataset("d", np.zeros((len(y), 1), dtype=np.float32), y, int(cuts[-1]), 3)
    train = [np.arange(a, b) for a, b in itertools.pairwise(cuts)]
    tests = [np.array([cuts[-1] + i]) for i in range(len(sizes))]
    data = federate(dataset, Partition(train, tests), torch.device("cpu"))
    draws = rng.integers(0, 2**62, (len(sizes), max(sizes) + 1))
    parted = data.hold_out(share, None if in_time else draws)
    for client, rows in enumerate(train):
        held, kept, test = (parted.rows(name)[client] for name in (HELD_OUT, "train", "test"))
        assert sorted([*held, *kept]) == rows.tolist()
        assert not set(held) & set(test)
        assert len(held) == min(round(share * len(rows)), max(len(rows) - 2, 0))
        if in_time:
            assert max(kept) < min(held, default=np.inf)
        else:
            for label in range(3):
                expected = len(held) * np.mean(y[rows] == label)
                assert abs((y[held] == label).sum() - expected) < 2
    counts = parted.label_counts()
    assert counts.sum() == sum(len(own) for own in parted.rows("train"))


def test_which_samples_are_held_out_depends_on_seed_and_client_alone():
    _, one = engine_of()
    _, again = engine_of(algorithm="local", participation=0.5)
    _, other = engine_of(seed=1, partition="iid")
    held = [engine.data.splits[HELD_OUT].index for engine in (one, again, other)]
    assert torch.equal(held[0], held[1])
    assert not torch.equal(held[0], held[2])


def test_of_classes_in_turn_each_is_held_out_by_somebody():
    """Not always the last one of a client that holds out one sample alone."""
    y = np.tile(np.arange(5), 40)
    dataset = Dataset("d", np.zeros((200, 1), dtype=np.float32), y, 160, 5)
    rows = np.arange(160).reshape(32, 5)
    data = federate(dataset, Partition([*rows], [np.array([160 + i]) for i in range(32)]), torch.device("cpu"))
    draws = np.random.default_rng(0).integers(0, 2**62, (32, 6))
    held = data.hold_out(0.2, draws).splits[HELD_OUT]
    assert held.sizes.tolist() == [1] * 32
    assert set(data.y[held.index.flatten()].tolist()) == set(range(5))


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_no_method_trains_on_held_out_or_test_samples(algorithm, monkeypatch):
    """In two rounds, steps of training read all samples of the splits that a method trains on, and no others."""
    config, engine = engine_of(algorithm, rounds=2)
    seen = set()

    def watched(index, noise, sizes, width):
        for rows, samples, key in calls(index, noise, sizes, width):
            seen.update(samples.flatten().tolist())
            yield rows, samples, key

    monkeypatch.setattr("feddwa.engine.engine.calls", watched)
    federation = make_federation(config, engine)
    federation.step()
    federation.step()
    held, test, *own = (
        {row for rows in engine.data.rows(name) for row in rows.tolist()}
        for name in (HELD_OUT, "test", "train", *({"validation", "second_half"} & set(engine.data.splits)))
    )
    assert not seen & (held | test)
    assert own[0] <= seen <= set.union(*own)


def test_both_backends_score_held_out_samples_alike_and_by_hand():
    config, engine = engine_of(metrics=("macro-f1",))
    federation = make_federation(config, engine)
    twin = make_federation(
        dataclasses.replace(config, backend="sequential"),
        make_engine(dataclasses.replace(config, backend="sequential"), load_task(config)),
    )
    for _ in range(2):
        one, other = federation.step(), twin.step()
        for left, right in zip((one.before, one.after), (other.before, other.after), strict=True):
            for name, values in left.named().items():
                torch.testing.assert_close(values, right.named()[name], rtol=0, atol=1e-9)
    model, _ = federation.personal(federation.all_clients())
    by_hand = []
    for client, rows in enumerate(engine.data.rows(HELD_OUT)):
        x, y = engine.data.batch(torch.from_numpy(rows), torch.float64)
        outputs = torch.func.functional_call(
            engine.module.eval(), {name: value[client] for name, value in model.items()}, x
        )
        by_hand.append(float((outputs.argmax(1) == y).double().mean()))
    torch.testing.assert_close(federation.scores.validation.accuracy, torch.tensor(by_hand, dtype=torch.float64))


def test_scores_go_through_names_and_back():
    some = Scores(
        torch.ones(2),
        torch.zeros(2),
        {"r2": torch.ones(2)},
        Scores(torch.zeros(2), torch.ones(2), {"r2": torch.zeros(2)}),
    )
    again = Scores.of(some.named())
    assert again.named().keys() == some.named().keys()
    assert torch.equal(again.validation.metrics["r2"], torch.zeros(2))
    assert Scores.of(Scores(torch.ones(1), torch.ones(1)).named()).validation is None


def test_means_are_over_the_clients_that_hold_samples_out():
    held = Scores(torch.tensor([1.0, torch.nan, 0.5, 0.0]), torch.tensor([1.0, torch.nan, 2.0, 3.0]))
    scores = Scores(torch.full((4,), 0.5), torch.ones(4), {}, held)
    line = metrics.final_line(scores, torch.ones(4), 3, validation_sizes=torch.tensor([3, 0, 1, 4]))
    assert line["validation"] == {"all": 50.0, "all_weighted": 43.75}
    assert line["loss_validation"] == 2.0
    assert metrics.client_line(4, scores, None, None)["validation"] == [100.0, None, 50.0, 0.0]


def test_a_run_without_small_shares_is_refused_in_one_line():
    with pytest.raises(
        InputError, match=r"--validation 0\.001: holds out nothing, as clients have 360 training samples"
    ):
        make_federation(*engine_of(validation=0.001))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 1.0}, "--validation: got 1.0, must be a share, from 0 to below 1"),
        ({"early_stop": 3}, "--early-stop: stops on validation data alone; give --validation"),
        ({"early_stop": 0, "validation": 0.1}, "--early-stop: got 0, must be at least 1"),
    ],
)
def test_bad_values_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        RunConfig(**options).checked()


def lines_of(scores, first=1):
    return [{"round": number, "validation": {"all": score}} for number, score in enumerate(scores, first)]


def test_patience_counts_evaluations_without_improvement():
    stop, due = EarlyStop(2), []
    for line in [*lines_of([10.0, 20.0, 20.0]), {"round": 4, "evaluated": 0}, *lines_of([25.0, 24.0, 25.0], 5)]:
        stop.add(line)
        due.append(stop.due)
    assert due == [False] * 6 + [True]
    assert (stop.best, stop.best_round) == (25.0, 4)


def test_losses_stop_a_run_whose_targets_are_no_classes():
    stop = EarlyStop(1)
    for loss in (3.0, 2.0, 2.5):
        stop.add({"round": 1, "validation": {"all": None}, "loss_validation": loss})
    assert stop.due


STOPS = {"clients": 4, "rounds": 40, "lr": 1.0, "validation": 0.25, "early_stop": 2, "epochs": 3}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped") / "run"
    return feddwa.run(algorithm="local", out=str(out), **STOPS), out


def test_an_early_end_is_a_finished_run_that_says_so(stopped):
    result, out = stopped
    ended = result.summary["rounds"]
    assert ended < 40
    assert len(result.metrics) == ended + 1
    content, run = read_record(out), read_run(out)
    assert content["stopped"]["round"] == ended
    assert run.finished
    assert run.sound
    assert "ended after round" in run.findings[-1].text
    values = [line["validation"]["all"] for line in result.metrics]
    best = max(range(len(values)), key=values.__getitem__)
    assert content["stopped"]["best_round"] == best == result.summary["validation"]["best_round"]
    assert values[ended - 1] == values[best + 2]  # two more evaluations, and the round that was under way
    assert result.summary["validation"]["test_at_best"] == result.metrics[best]["before"]["all"]
    assert content["series"]["validation.all"] == values
    assert run.metrics["validation accuracy"].tolist() == values


def test_a_run_that_was_killed_stops_where_it_would_have(stopped, tmp_path, monkeypatch):
    _, out = stopped
    other, save, count = tmp_path / "run", checkpoint.Writer.save, 0

    def killed(*arguments, **more):
        nonlocal count
        save(*arguments, **more)
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Writer, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(algorithm="local", out=str(other), **STOPS)
    monkeypatch.undo()
    resume(other)
    for name in ("metrics.jsonl", "clients.jsonl"):
        left, right = ([json.loads(line) for line in (path / name).read_text().splitlines()] for path in (out, other))
        assert [{**line, "seconds": 0} for line in left] == [{**line, "seconds": 0} for line in right]
    assert (out / "models.safetensors").read_bytes() == (other / "models.safetensors").read_bytes()
    assert read_record(out)["stopped"] == read_record(other)["stopped"]


def test_one_of_several_in_lockstep_ends_by_itself(stopped):
    config = RunConfig(algorithm="local", **STOPS).resolved()
    configs = [config, dataclasses.replace(config, seed=1, early_stop=None, rounds=30)]
    first, second = run_tasks(configs, [load_task(each) for each in configs], written=False)
    assert first.summary["stopped"] == stopped[0].summary["stopped"]
    assert second.summary["rounds"] == 30
