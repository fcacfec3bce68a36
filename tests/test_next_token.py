"""The next token at every position: loss, accuracy and perplexity over tokens, of which padding is none."""

import itertools
import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa import cli, models
from feddwa.build import load_task
from feddwa.config_file import from_toml
from feddwa.data.dataset import Dataset
from feddwa.data.federated import HELD_OUT, answers, federate
from feddwa.data.inputs import Inputs
from feddwa.data.labels import PADDING
from feddwa.data.partition import Partition
from feddwa.data.tokens import pack
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, evaluate, evaluate_one_by_one
from feddwa.engine.fast import program, record
from feddwa.engine.rows import repeat, tensors
from feddwa.engine.score import SAMPLES_AT_ONCE, samples_at_once
from feddwa.results.measure import ACCURACY
from feddwa.results.record import read_run
from feddwa.scoring import next_token, perplexity, token_accuracy
from feddwa.tune.trials import measure_of

V, L = 6, 5
SIZES = (7, 4, 3)  # training rows of three clients; two test rows each
TINY = {"char-lstm": ["embedding=3", "hidden=4"], "char-transformer": ["dim=8", "heads=2", "layers=1"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))


def rows(count, seed=0):
    """Token ids (count, L) and the token behind each, or padding from a place on; one row is padding alone."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, V, (count, L + 1))
    y = np.where(np.arange(L) < rng.integers(1, L + 1, count)[:, None], ids[:, 1:], PADDING)
    y[1] = PADDING
    return ids[:, :-1], y


def engine_of(module, dtype=torch.float64, batch=3):
    x, y = rows(sum(SIZES) + 6)
    y[-1, :2] = x[-1, 1:3]
    cuts = np.split(np.arange(len(x)), np.cumsum([*SIZES, 2, 2, 2])[:-1])
    data = federate(Dataset("text", x, y, sum(SIZES), V), Partition(cuts[:3], cuts[3:]), torch.device("cpu"))
    return Engine(module, data, Settings(1, batch, 0.5), loss=next_token, dtype=dtype)


def network(name):
    torch.manual_seed(0)
    return models.make(name, Inputs.of((L,), V), V, [*TINY[name], "every=true"])


def train(engine, kind, rounds=2):
    """All clients after some rounds of one epoch."""
    model, buffers = (repeat(values, len(SIZES)) for values in engine.initial())
    memory = {"buffers": buffers}
    for round in range(1, rounds + 1):
        model, memory = kind(engine, torch.arange(len(SIZES)), round).sgd(model, memory)
    return model


def scores_of(network, model, client, x):
    """Scores (n, L, V) in NumPy of a client's model."""
    own = {name: value[client] for name, value in model.items()}
    return torch.func.functional_call(network.double().eval(), own, (torch.from_numpy(x),)).detach().numpy()


def by_hand(scores, y):
    """Losses (k,) and right answers (k,) of the k tokens that are no padding, one after another."""
    losses, right = [], []
    for row, wanted in zip(scores, y, strict=True):
        for score, token in zip(row, wanted, strict=True):
            if token != PADDING:
                losses.append(math.log(sum(math.exp(s) for s in score)) - score[token])
                right.append(max(range(len(score)), key=score.__getitem__) == token)
    return np.array(losses), np.array(right)


def test_the_loss_is_the_mean_over_tokens_and_torchs_with_its_ignored_index():
    _, y = rows(8)
    outputs = torch.randn(8, L, V, dtype=torch.float64, requires_grad=True)
    loss = next_token(outputs, torch.from_numpy(y))
    assert loss.item() == pytest.approx(by_hand(outputs.detach().numpy(), y)[0].mean(), rel=1e-12)
    other = F.cross_entropy(outputs.transpose(1, 2), torch.from_numpy(y))
    assert loss.item() == pytest.approx(other.item(), rel=1e-12)
    mine, torchs = (torch.autograd.grad(each, outputs)[0] for each in (loss, other))
    assert torch.allclose(mine, torchs, rtol=1e-12)
    assert (mine[torch.from_numpy(y == PADDING)] == 0).all()


def test_padding_alone_has_no_loss_and_no_gradient():
    outputs = torch.randn(2, L, V, requires_grad=True)
    loss = next_token(outputs, torch.full((2, L), PADDING))
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, outputs)[0] == 0).all()


def test_perplexity_and_token_accuracy_of_known_probabilities():
    """Tokens of probability 1/2 and 1/8 have a perplexity of 4; the first is the likeliest, the second is not."""
    scores = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.125, 0.375, 0.5], [1.0, 0.0, 0.0]]]))
    targets = torch.tensor([[0, 0, PADDING]])
    assert perplexity(scores, targets) == pytest.approx(4)
    assert token_accuracy(scores, targets) == 50
    assert perplexity(scores[0, :2], targets[0, :2]) == pytest.approx(4)  # one token a sample
    assert token_accuracy(scores[0, :2], targets[0, :2]) == 50
    assert math.isnan(perplexity(scores, torch.full((1, 3), PADDING)))
    assert math.isnan(token_accuracy(scores, torch.full((1, 3), PADDING)))
    with pytest.raises(ValueError, match=r"needs scores \(n, L, V\) and tokens \(n, L\)"):
        perplexity(scores, targets[:, :2])


def test_answers_are_samples_or_tokens():
    assert answers(torch.tensor([3, 0])).tolist() == [1, 1]
    assert answers(torch.rand(2, 4)).tolist() == [1, 1]
    assert answers(torch.tensor([[3, PADDING], [PADDING, PADDING], [0, 1]])).tolist() == [1, 0, 2]


@pytest.mark.parametrize("name", TINY)
def test_a_stack_is_the_plain_loop_with_padding(name, monkeypatch):
    monkeypatch.setitem(SAMPLES_AT_ONCE, "cpu", 6)  # training rows are evaluated in parts
    engine = engine_of(network(name))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        stack = train(engine, Trainer)
        everybody, buffers = torch.arange(3), repeat(engine.initial()[1], 3)
        found = {split: evaluate(engine, stack, buffers, everybody, split) for split in ("train", "test")}
    alone = train(engine, SequentialTrainer)
    for (_, a), (_, b) in zip(tensors({"model": stack}), tensors({"model": alone}), strict=True):
        assert (a - b).abs().max() < 1e-9
    start = repeat(engine.initial()[0], 3)
    assert max(float((alone[each] - start[each]).abs().max()) for each in start) > 1e-2  # it has learned
    for split, scores in found.items():
        other = evaluate_one_by_one(engine, stack, buffers, everybody, split)
        assert torch.equal(scores.accuracy, other.accuracy)
        assert torch.allclose(scores.loss, other.loss, rtol=1e-9)
        for client, own in enumerate(engine.data.rows(split)):
            outputs = scores_of(network(name), stack, client, engine.data.x[own].numpy())
            losses, right = by_hand(outputs, engine.data.y[own].numpy())
            assert scores.accuracy[client].item() == pytest.approx(right.mean(), abs=1e-12)
            assert scores.loss[client].item() == pytest.approx(losses.mean(), rel=1e-9)


@pytest.mark.parametrize("name", TINY)
def test_recorded_steps_are_the_eager_ones(name, monkeypatch):
    eager = train(engine_of(network(name)), Trainer)
    for home in (record, program):
        monkeypatch.setitem(home.RECORD_AFTER, "cpu", 0)
    recorded = train(engine_of(network(name)), Trainer)
    assert all(torch.equal(eager[each], recorded[each]) for each in eager)


def test_a_step_is_on_the_mean_over_the_tokens_of_its_batch():
    """A table of scores by the token before, trained by hand: one full batch for each client."""
    engine = engine_of(nn.Embedding(V, V), batch=max(SIZES))
    table = engine.initial()[0]["weight"].numpy()
    trained = train(engine, Trainer, rounds=1)["weight"].numpy()
    for client, own in enumerate(engine.data.rows("train")):
        x, y = engine.data.x[own].numpy().ravel(), engine.data.y[own].numpy().ravel()
        gradient, count = np.zeros((V, V)), (y != PADDING).sum()
        for before, after in zip(x[y != PADDING], y[y != PADDING], strict=True):
            share = np.exp(table[before]) / np.exp(table[before]).sum()
            gradient[before] += (share - np.eye(V)[after]) / count
        assert np.abs(trained[client] - (table - 0.5 * gradient)).max() < 1e-12


def saved(**changed):
    """Own tokens of two authors in a file: each text goes round in its own direction."""
    rng, step = np.random.default_rng(0), np.repeat([1, V - 1], 40)
    ids = (rng.integers(0, V, 80)[:, None] + step[:, None] * np.arange(L + 1)) % V
    y = np.where(np.arange(L) < rng.integers(2, L + 1, 80)[:, None], ids[:, 1:], PADDING)
    np.savez("text.npz", **{"tokens": ids[:, :-1], "y": y, "client": np.repeat(["ann", "ben"], 40)} | changed)
    return "text.npz"


OPTIONS = ["--model-arg", "every=true", "--model-arg", "hidden=16", "--metric", "perplexity"]


def test_own_tokens_train_from_the_shell(capsys):
    command = ["run", "--dataset", saved(), "--algorithm", "fedper", "--model", "char-lstm", *OPTIONS]
    arguments = [*command, "--metric", "token-accuracy", "--rounds", "12", "--optimizer", "adam", "--lr", "0.03"]
    assert cli.main([*arguments, "--out", "run"]) == 0
    assert "token-accuracy" in capsys.readouterr().out
    last = json.loads(Path("run/clients.jsonl").read_text().splitlines()[-1])
    task = load_task(from_toml("run/config.toml", feddwa.RunConfig))
    tokens = np.array([(task.dataset.y[own] != PADDING).sum() for own in task.partition.test])
    weighted = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["before"]["all_weighted"]
    assert weighted == pytest.approx(float(tokens @ last["before"] / tokens.sum()), abs=0.02)
    assert tokens[0] != tokens[1]
    assert last["metrics_before"]["token-accuracy"] == pytest.approx(last["before"], abs=0.01)
    run = read_run(Path("run"))
    assert run.measure is ACCURACY
    assert run.last > 60  # where one direction for both is right half the time
    card = json.loads(Path("run/model.json").read_text())
    assert last["metrics_before"]["perplexity"] == pytest.approx(np.exp(card["loss"]).tolist(), rel=1e-5)
    assert feddwa.resume("run").models["body.lstm.weight_hh_l0"].shape == (2, 64, 16)
    capsys.readouterr()
    assert cli.main(["predict", "run", saved()]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"feddwa: the models give scores \(5, 6\) for a sample, .*as a tensor\n", told)


def test_both_backends_record_the_same_numbers():
    found = []
    for backend in ("vectorised", "sequential"):
        options = {"model": "char-transformer", "model_arg": ["every=true", *TINY["char-transformer"]]}
        found.append(feddwa.run(dataset=saved(), backend=backend, rounds=2, lr=0.1, out=False, **options))
    for one, two in zip(found[0].metrics, found[1].metrics, strict=True):
        assert one["loss_before"] == pytest.approx(two["loss_before"], rel=1e-4)


def test_a_module_of_ones_own_gives_scores_of_every_position():
    x, y = rows(30)
    clients = {"ann": (x[:15], y[:15]), "ben": (x[15:], y[15:])}
    result = feddwa.run(dataset=clients, model=nn.Embedding(V, V), rounds=2, lr=0.5, out=False)
    assert result.summary["accuracy"]["last"] is not None
    assert result.summary["loss"]["last"] < result.metrics[0]["loss_before"]


class TokensFirst(nn.Module):
    """The table of scores with the axis of the tokens before that of the positions, as torch's cross-entropy has it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(V, V)

    def forward(self, ids):
        return self.table(ids).transpose(1, 2)


@pytest.mark.parametrize("length", [L, V])  # V: as many positions as tokens
@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
def test_torchs_cross_entropy_counts_the_same_tokens(length, backend):
    ids = np.random.default_rng(0).integers(0, V, (40, length + 1))
    y = np.where(np.arange(length) < 1 + np.arange(40)[:, None] % length, ids[:, 1:], PADDING)
    options = {"dataset": [(ids[:20, :-1], y[:20]), (ids[20:, :-1], y[20:])], "backend": backend, "dtype": "float64"}
    found = []
    for model, loss in ((nn.Embedding(V, V), "next-token"), (TokensFirst(), "cross-entropy")):
        (next(model.parameters())).data = torch.arange(V * V).reshape(V, V).sin()
        found.append(feddwa.run(model=model.double(), loss=loss, rounds=2, lr=0.5, out=False, **options))
    for one, two in zip(found[0].metrics, found[1].metrics, strict=True):
        assert one["before"]["all"] == two["before"]["all"] is not None
        assert one["loss_before"] == pytest.approx(two["loss_before"], rel=1e-9)


def test_clients_are_weighted_by_tokens_where_samples_are_weighted():
    data = engine_of(nn.Embedding(V, V)).data.hold_out(0.3, None)
    for split, found in (("test", data.answers("test")), (HELD_OUT, data.validation_sizes)):
        assert found.tolist() == [int((data.y[own] != PADDING).sum()) for own in data.rows(split)]
    assert data.validation_sizes.tolist() != data.splits[HELD_OUT].sizes.tolist()


@pytest.mark.parametrize(("length", "samples"), [(1, 4096), (8, 4096), (9, 2048), (80, 409), (10**5, 1)])
def test_of_long_sequences_fewer_are_scored_at_once(length, samples):
    """A network has activations at every token: memory is bounded by tokens, not by sequences."""
    x = np.zeros((4, length), dtype=np.int64)
    data = federate(Dataset("text", x, np.arange(4) % 2, 2, 2), Partition([[0, 1]], [[2, 3]]), torch.device("cpu"))
    assert samples_at_once(data) == samples
    assert samples_at_once(replace(data, x=data.x.float())) == 4096


def test_texts_of_any_length_are_packed_without_waste_or_loss():
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, V, size) for size in (1, 9, 2, 30, 4, 1)]
    for length in (1, 7, 47, 60):
        x, y = pack(texts, length)
        assert x.shape == y.shape == (-(-47 // length), length)
        assert x.ravel()[:47].tolist() == np.concatenate(texts).tolist()
        pairs = [(a, b) for a, b in zip(x.ravel(), y.ravel(), strict=True) if b != PADDING]
        assert pairs == [pair for text in texts for pair in itertools.pairwise(text)]


@pytest.mark.parametrize(
    ("texts", "length", "message"),
    [
        ([[1, 2]], 0, "length: got 0, must be at least 1"),
        ([], 4, "texts: got 'no token behind another', must be a text of at least two tokens"),
        ([[1], [2]], 4, "texts: got 'no token behind another'"),
        ([[1, 2], []], 4, r"texts[1]: got 'float64 (0,)', must be token ids (k,), whole numbers from 0"),
        ([[1, -2]], 4, r"texts[0]: got 'int64 (2,)', must be token ids (k,), whole numbers from 0"),
        ([[[1, 2]]], 4, r"texts[0]: got 'int64 (1, 2)', must be token ids (k,)"),
    ],
)
def test_texts_that_cannot_be_packed_are_told(texts, length, message):
    with pytest.raises(feddwa.InputError) as refused:
        pack(texts, length)
    assert message in str(refused.value)


def test_searches_compare_token_accuracy():
    assert measure_of(engine_of(nn.Embedding(V, V))) is ACCURACY


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"model": "char-lstm"}, "gives one answer for a sample, the data have targets of shape (5,)"),
        ({}, {"model": "transformer"}, "char-lstm or char-transformer with --model-arg every=true predict a token"),
        ({"y": np.arange(80) % 3}, {}, "--model-arg every: got true, but the data have one target for a sample"),
        ({"y": np.full((80, L), -3)}, {}, "rows of it must be whole numbers from 0, and -100 where there is nothing"),
        ({"y": np.full((80, L), PADDING)}, {}, "rows of it must be whole numbers from 0, and -100 where there is"),
        ({"y": np.repeat([[1], [PADDING]], 40, axis=0).repeat(L, 1)}, {},
         "dataset: client ben has no token to predict in its train samples"),
        ({}, {"algorithm": "fedphp"}, "algorithm fedphp: needs a network whose outputs are those of its last linear"),
        ({}, {"algorithm": "gpfl"}, "one that is not frozen, with one vector of features for a sample"),
        ({}, {"model": nn.Embedding(V, 4)}, "model: gives 4 scores, must be at least 6, one per class"),
        ({}, {"model": nn.Linear(L, V)}, "model: does not take torch.int64 samples (5,)"),
        ({}, {"loss": "mse"}, "its targets have padding (-100), which is no number; the losses next-token and"),
        ({}, {"loss": "bce", "model": nn.Embedding(V, 1)}, "its targets have padding (-100), which is no number"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_one_line(changed, options, message):
    usual = {"model": "char-lstm", "model_arg": ["every=true", "hidden=4"], "rounds": 1}
    given = usual | options
    if "model" in options:
        del given["model_arg"]
    with pytest.raises(feddwa.InputError) as refused:
        feddwa.run(dataset=saved(**changed), out=False, **given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tokens_of_clients_in_memory_are_checked():
    x, y = rows(20)
    with pytest.raises(feddwa.InputError, match="got 'tokens from -7', must be tokens from 0, and -100 for padding"):
        feddwa.run(dataset=[(x, np.where(y == PADDING, -7, y))], model=nn.Embedding(V, V), rounds=1, out=False)
