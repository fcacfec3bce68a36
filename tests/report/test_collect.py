"""The numbers of a report."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feddwa
from feddwa.report import collect, facts
from feddwa.results.findings import Finding
from feddwa.results.methods import by_method
from feddwa.results.record import read
from feddwa.results.weights import Weights
from tests.conftest import ROUNDS


@pytest.fixture(scope="module")
def methods(runs):
    return by_method(read([runs]))


def decode(frame, clients):
    """The matrix (N, N) of a frame, as explorer.js has it."""
    cohort = frame["cohort"] or list(range(clients))
    out = np.zeros((clients, clients))
    for i, (places, codes) in enumerate(frame["rows"]):
        for place, code in zip(places or range(len(codes)), codes, strict=True):
            out[cohort[i], cohort[place]] = np.sign(code) * code**2 / 255**2
    return out


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.booleans())
def test_a_frame_keeps_the_weights_to_half_a_step(seed, m, everybody):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.full(m, 0.3), m) * rng.choice([1, 1, 0], (m, m))
    cohort = np.arange(m) if everybody else np.sort(rng.permutation(2 * m)[:m])
    clients = m if everybody else 2 * m
    back = decode(collect._frame(Weights(1, cohort, matrix), clients), clients)
    whole = np.zeros((clients, clients))
    whole[np.ix_(cohort, cohort)] = matrix
    assert np.abs(np.sqrt(back) - np.sqrt(whole)).max() <= 0.5 / 255 + 1e-12


def test_negative_weights_keep_their_sign():
    back = decode(collect._frame(Weights(1, np.arange(2), np.array([[-16.0, 17.0], [0.0, 1.0]])), 2), 2)
    assert back == pytest.approx(np.array([[-16, 17], [0, 1]]), abs=0.02)


def test_of_a_crowd_the_strongest_partners_are_kept():
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.full(200, 0.1), 200)
    back = decode(collect._frame(Weights(1, np.arange(200), matrix), 200), 200)
    assert ((back != 0).sum(axis=1) <= collect.PARTNERS).all()
    assert (back[np.arange(200), matrix.argmax(axis=1)] == back.max(axis=1)).all()


def test_the_flow_knows_which_rounds_have_weights(methods):
    """A published run has P of some rounds; a round without any participant has none."""
    run = methods[0].runs[0]
    some = dataclasses.replace(run, weights=[run.weights[0], run.weights[4]])
    found = collect.collect([dataclasses.replace(methods[0], runs=[some])])["runs"][0]
    assert found["rounds"] == [1, 5]
    assert [len(part) for part in found["flow"]] == [2, 2, 2]


def test_the_flow_of_weight():
    groups = np.array([0, 0, 1, 1])
    matrix = np.array([[0.5, 0.3, 0.2, 0], [0, 1, 0, 0], [0, 0, 0.25, 0.75], [0.25, 0.25, 0.25, 0.25]])
    own, kin, rest = collect.flow([Weights(1, np.arange(4), matrix)], groups)[0]
    assert (own, kin, rest) == pytest.approx((2.0 / 4, 1.3 / 4, 0.7 / 4))
    assert collect.flow([Weights(1, np.arange(4), matrix)], None)[0] == pytest.approx([0.5, 0, 0.5])


def test_clusters_are_those_who_listen_to_the_same():
    pairs = np.kron(np.eye(3), np.full((2, 2), 0.5))
    shuffle = np.array([0, 2, 4, 1, 3, 5])  # clients 0 and 3, 1 and 4, 2 and 5 belong together
    found = collect.clusters([Weights(1, np.arange(6), pairs[np.ix_(np.argsort(shuffle), np.argsort(shuffle))])], 6)
    assert len(set(found)) == 3
    alone = collect.clusters([Weights(1, np.arange(6), np.eye(6))], 6)
    assert alone.tolist() == list(range(6))
    together = collect.clusters([Weights(1, np.arange(6), np.full((6, 6), 1 / 6))], 6)
    assert together.tolist() == [0] * 6
    assert collect.clusters([Weights(1, np.arange(1), np.eye(1))], 1).tolist() == [0]


def test_the_demo_finds_its_groups(methods):
    found = {run["seed"]: run["clusters"] for run in collect.collect(methods)["runs"] if run["method"] == 0}
    assert methods[0].name == "FedDWA"
    assert found[0] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_curves_bands_and_gains_agree_with_the_runs(methods):
    numbers = collect.collect(methods)
    assert numbers["clients"] == 8
    for method, line in zip(methods, numbers["methods"], strict=True):
        curves = np.array([run.curve for run in method.runs])
        mean, low, high = line["curves"]["accuracy"]
        assert mean == pytest.approx(curves.mean(axis=0), abs=1e-6)
        assert low == pytest.approx(curves.min(axis=0), abs=1e-6)
        assert high == pytest.approx(curves.max(axis=0), abs=1e-6)
        losses = np.array([[each["loss_before"] for each in run.lines] for run in method.runs])
        assert line["curves"]["loss"][0] == pytest.approx(losses.mean(axis=0), abs=1e-6)
        spent = [run.spent("bytes") for run in method.runs]
        assert line["spent"]["bytes"] == pytest.approx(np.mean(spent, axis=0))
    local = {run.config.seed: run for method in methods if method.name == "Local" for run in method.runs}
    for run, record in zip(numbers["runs"], [run for method in methods for run in method.runs], strict=True):
        assert len(run["frames"]) == ROUNDS
        alone = local[record.config.seed]
        if alone is record:
            assert run["gain"] is None
        else:
            assert run["gain"] == pytest.approx(record.scores[-1] - alone.scores[-1], abs=0.01)


def test_rounds_are_left_out_where_there_would_be_too_much(methods, monkeypatch):
    monkeypatch.setattr(collect, "CELLS", 6 * ROUNDS * 64 // 2)
    numbers = collect.collect(methods)
    assert numbers["step"] == 2
    assert [frame["round"] for frame in numbers["runs"][0]["frames"]] == [1, 3, 5, 6]


def test_runs_of_different_lengths_stand_side_by_side(methods):
    short = methods[0].runs[1]
    cut = type(short)(short.path, short.config, short.lines[:3], short.scores[:3], short.weights[:2], None, False)
    method = type(methods[0])("FedDWA", [methods[0].runs[0], cut])
    line = collect.collect([method])["methods"][0]
    mean = line["curves"]["accuracy"][0]
    assert len(mean) == ROUNDS + 1
    assert mean[-1] == pytest.approx(methods[0].runs[0].curve[-1], abs=0.01)


# In words.


def test_the_headline_counts_who_gained(methods):
    gain = np.concatenate(
        [
            run.scores[-1] - alone.scores[-1]
            for run, alone in zip(methods[0].runs, next(m for m in methods if m.name == "Local").runs, strict=True)
        ]
    )
    alone = next(method.last for method in methods if method.name == "Local")
    assert facts.headline(methods) == (
        f"FedDWA leads with {methods[0].last:.1f} %: {gain.mean():+.1f} points over training alone "
        f"(Local, {alone:.1f} %); {(gain > 0.05).sum()} of 16 clients gained by joining, in 2 seeds."
    )
    behind = [f"{each.name} {each.last:.1f} % ({each.last - methods[0].last:+.1f} points)" for each in methods[1:]]
    assert facts.story(methods)[0] == f"Behind FedDWA: {behind[0]}, {behind[1]}."


def _ranked(runs, tmp_path, **accuracy):
    """The real runs of seed 0, with every client's accuracy after the last round changed to something else."""
    for name, value in accuracy.items():
        path = shutil.copytree(runs / "0" / name, tmp_path / name)
        *lines, last = (path / "clients.jsonl").read_text().splitlines()
        clients = json.dumps({**json.loads(last), "before": [value - 1.0, value + 1.0] * 4})
        (path / "clients.jsonl").write_text("\n".join([*lines, clients]) + "\n")
        *lines, last = (path / "metrics.jsonl").read_text().splitlines()
        changed = json.loads(last)
        changed["before"]["all"] = value
        (path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(changed)]) + "\n")
    return by_method(read([tmp_path]))


def test_the_headline_is_about_the_best_whichever_it_is(runs, tmp_path):
    methods = _ranked(runs, tmp_path, feddwa=80.0, local=70.0, fedavg=90.0)
    assert facts.headline(methods) == (
        "FedAvg leads with 90.0 %: +20.0 points over training alone (Local, 70.0 %); 8 of 8 clients gained by joining."
    )
    assert facts.story(methods)[0] == "Behind FedAvg: FedDWA 80.0 % (-10.0 points), Local 70.0 % (-20.0 points)."
    assert facts.story(methods)[1] == "With FedAvg nobody lost by joining; the largest gain is 20.0 points."
    assert [card.value for card in facts.cards(methods)][:3] == ["90.0 %", "+20.0 points", "8 of 8"]
    assert all("FedAvg" in card.label for card in facts.cards(methods)[:-1])  # the last is what guessing has
    assert not any("FedDWA" in sentence for sentence in (facts.headline(methods), *facts.story(methods)[1:]))


def test_where_local_is_best_joining_did_not_pay(runs, tmp_path):
    methods = _ranked(runs, tmp_path, feddwa=80.0, local=90.0, fedavg=70.0)
    assert facts.headline(methods) == (
        "Local leads with 90.0 %: joining did not pay; with FedDWA, the best of the others, it is 80.0 %, "
        "and 0 of 8 clients gained by joining."
    )


def test_methods_that_are_level_lead_together(runs, tmp_path):
    assert facts.headline(_ranked(runs, tmp_path, feddwa=80.0, fedavg=80.02)) == (
        "FedAvg and FedDWA lead with 80.0 %, mean over all clients."
    )


def test_means_over_different_seeds_are_not_passed_over(runs):
    methods = by_method(read([runs / "0", runs / "1" / "feddwa"]))
    told = "Unequal seeds (*): without seed 1: Local, FedAvg. Differences are over common seeds."
    assert told in facts.warnings(methods)


def test_unequal_rounds_are_told(methods):
    def cut(run):
        return dataclasses.replace(run, lines=run.lines[:4], scores=run.scores[:4])

    short = dataclasses.replace(methods[1], runs=[cut(run) for run in methods[1].runs])
    told = f"Unequal rounds: {methods[0].name} 6, {short.name} 3. Numbers are those after each one's last."
    assert told in facts.warnings([methods[0], short])
    assert not any("Unequal rounds" in each for each in facts.warnings(methods))


def test_the_level_of_guessing_stands_beside_the_results(methods):
    share = methods[0].runs[0].partition.test_counts
    best = 100 * (share / share.sum(axis=1, keepdims=True)).mean(axis=0).max()
    assert facts.guessing(methods) == pytest.approx(best)
    assert f"{best:.1f} %" in [card.value for card in facts.cards(methods)]


def test_reasons_of_one_kind_share_a_sentence(methods):
    texts = [f"training has diverged: the loss grew from 2.3 to {number}; lower --lr" for number in (7, 8)]
    failed = []
    for method, text in zip(methods, texts, strict=False):
        run = dataclasses.replace(method.runs[0])
        run.__dict__["findings"] = [Finding("error", text)]
        failed.append(dataclasses.replace(method, runs=[run]))
    names = f"{failed[0].name} and {failed[1].name}"
    assert facts.headline(failed) == f"{names}: training has diverged; lower --lr."
    assert facts.warnings(failed)[:2] == [f"{each.name}: {text}" for each, text in zip(failed, texts, strict=True)]


def test_who_was_missing_is_known_round_by_round(tmp_path):
    feddwa.run(clients=6, rounds=4, fault="dropout=0.4", out=str(tmp_path / "run"))
    record = read([tmp_path / "run"])[0]
    found = collect._presence(record)
    missing = [line.get("missing", {}).get("dropout", []) for line in record.lines[:-1]]
    assert found["missing"] == {"dropout": [len(each) for each in missing]}
    assert [a + b for a, b in zip(found["counted"], found["missing"]["dropout"], strict=True)] == [6] * 4
    assert found["last"] == record.lines[-2].get("missing", {})


def test_without_local_nothing_is_claimed(runs):
    methods = by_method(read([runs / "0" / "feddwa"]))
    assert facts.headline(methods).startswith("FedDWA: ")
    assert "no run of Local" in facts.story(methods)[0]
    assert next(card.value for card in facts.cards(methods)).endswith(" %")


def test_local_alone_is_told_as_it_is(runs):
    story = facts.story(by_method(read([runs / "0" / "local"])))
    assert story == [
        "In the last round of Local a client's new model was all its own.",
        "With Local a client sent and received 0 B in a round.",
    ]


def test_groups_are_told_where_there_are_any(methods, absent):
    assert any("of the 2 groups" in sentence for sentence in facts.story(methods))
    assert facts.headline(by_method(read([absent]))).startswith("FedDWA: ")


def test_a_warning_that_seeds_share_is_told_once(methods):
    run = methods[0].runs[0]
    alone = [Weights(each.round, each.cohort, np.eye(len(each.cohort), dtype=np.float32)) for each in run.weights]
    twice = [dataclasses.replace(each, weights=alone) for each in methods[0].runs]
    told = facts.warnings([dataclasses.replace(methods[0], runs=twice)])
    assert [each.partition(":")[0] for each in told] == ["FedDWA, seeds 0, 1"]
    assert "weights close to the identity" in told[0]
    assert facts.warnings([dataclasses.replace(methods[0], runs=twice[:1])])[0].startswith("FedDWA: weights close")
