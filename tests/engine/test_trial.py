"""Models that cannot be trained, or not as a stack: one line before training, and what to use instead works."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa.algorithms import ALGORITHMS
from feddwa.engine import Engine, SequentialTrainer, Settings, evaluate, evaluate_one_by_one, keys
from feddwa.engine.rows import repeat
from feddwa.engine.sequential import PlainClient
from feddwa.errors import InputError
from tests.conftest import NETWORKS, SIZES, small_data

STEPS, FEATURES = 6, 4


def clients(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sequences (STEPS, FEATURES) whose first feature tells the class."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, 40) for _ in range(count)]
    noise = [rng.normal(size=(40, STEPS, FEATURES)) for _ in range(count)]
    return [((x + 3 * np.eye(FEATURES)[y][:, None]).astype("float32"), y) for x, y in zip(noise, labels, strict=True)]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(FEATURES, 8, batch_first=True, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Flat(nn.Module):
    """A linear layer; its descendants do to its input what cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(STEPS * FEATURES, 3)

    def forward(self, x):
        return self.head(self.change(x.flatten(1)))


class Branching(Flat):
    def change(self, x):
        return 2 * x if x.sum() > 0 else x


class Reading(Flat):
    def change(self, x):
        return x * x.max().item()


class Selecting(Flat):
    def change(self, x):
        return torch.cat([x[x[:, 0] > 0], x[x[:, 0] <= 0]])


class Counting(Flat):
    calls = 0

    def change(self, x):
        self.calls += 1
        return x / self.calls


class Noisy(Flat):
    def change(self, x):
        return x + 0.1 * torch.randn_like(x)


class Caching(Flat):
    """Sets an attribute once: nothing that a stack could get wrong."""

    scale = None

    def change(self, x):
        if self.scale is None:
            self.scale = torch.ones(1)
        return x * self.scale


STACK = r'; use backend="sequential", which trains one client after another$'
UNMAPPED = {
    "lstm": (Recurrent, "model: nn.LSTM has no rule for many clients, so it cannot be mapped over clients" + STACK),
    "gru": (lambda: Recurrent(nn.GRU), "model: nn.GRU has no rule" + ".*" + STACK),
    "rnn": (lambda: Recurrent(nn.RNN), "model: nn.RNN has no rule" + ".*" + STACK),
    "branch": (Branching, "model: branches on the value of a tensor" + ".*" + STACK),
    "item": (Reading, "model: branches on the value of a tensor, or reads it" + ".*" + STACK),
    "mask": (Selecting, "model: makes a tensor whose shape depends on values" + ".*" + STACK),
    "counter": (Counting, "model: forward changes the attribute calls, which a stack of clients shares" + STACK),
}


@pytest.mark.parametrize("name", UNMAPPED)
def test_what_cannot_be_mapped_is_refused_at_once_and_runs_one_by_one(name):
    make, message = UNMAPPED[name]
    rounds = []
    with pytest.raises(InputError, match=message) as refused:
        feddwa.run(model=make(), dataset=clients(), rounds=1, observe=rounds.append, out=False)
    assert "\n" not in str(refused.value)
    assert not rounds
    result = feddwa.run(
        model=make(), dataset=clients(), rounds=4, lr=0.2, batch_size=8, backend="sequential", out=False
    )
    assert result.summary["loss"]["last"] < result.metrics[0]["loss_before"]


UNKEYED = {
    "attention": (Attentive, r"model: nn.MultiheadAttention with dropout 0.1 draws its own .* self_attn.dropout"),
    "stacked lstm": (
        lambda: Recurrent(num_layers=2, dropout=0.3),
        "model: the dropout inside nn.LSTM draws its own random numbers; use nn.Dropout instead",
    ),
    "noise": (Noisy, "model: forward draws its own random numbers; use nn.Dropout instead"),
    "alpha": (lambda: nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(24, 3)), "alpha_dropout draws its own"),
}


@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", UNKEYED)
def test_draws_without_a_key_are_refused_on_both_backends(name, backend):
    make, message = UNKEYED[name]
    with pytest.raises(InputError, match=message) as refused:
        feddwa.run(model=make(), dataset=clients(), rounds=1, backend=backend, out=False)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention, mapped on a CPU
def test_a_transformer_with_keyed_dropout_is_the_same_on_both_backends():
    """As the message says: without the attention's own dropout, with the layers' nn.Dropout."""
    results = []
    for backend in ("vectorised", "sequential"):
        model = Attentive().double()
        model.encoder.layers[0].self_attn.dropout = 0.0
        results.append(
            feddwa.run(model=model, dataset=clients(), rounds=2, lr=0.1, batch_size=8, backend=backend, out=False)
        )
    for name, value in results[0].models.items():
        assert torch.allclose(value, results[1].models[name], rtol=1e-8, atol=1e-10), name


def test_an_attribute_that_is_set_once_is_no_reason_to_refuse():
    feddwa.run(model=Caching(), dataset=clients(), rounds=1, out=False)


def test_the_trial_leaves_no_trace():
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    generator, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    feddwa.run(model=model, dataset=clients(), rounds=1, out=False)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_recurrent_layers_have_the_gradients_of_autograd():
    """Also at parameters that are not the module's own, as most algorithms ask for."""
    module = Recurrent().double()
    x, y = torch.randn(5, STEPS, FEATURES, dtype=torch.float64), torch.arange(5) % 3
    moved = {name: value.detach() + 0.1 for name, value in module.named_parameters()}
    batch = feddwa.data.federated.Batch(x, y)
    found = PlainClient(copy.deepcopy(module), F.cross_entropy, keys.key(0, "test")).gradient(moved, batch)
    module.load_state_dict(moved)
    F.cross_entropy(module(x), y).backward()
    for name, value in module.named_parameters():
        assert torch.allclose(found[name], value.grad, rtol=1e-12), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_a_recurrent_network_one_by_one(name):
    result = feddwa.run(
        model=Recurrent(),
        dataset=clients(),
        algorithm=name,
        rounds=2,
        lr=0.1,
        batch_size=8,
        participation=0.67,
        backend="sequential",
        out=False,
    )
    assert all(value.isfinite().all() for value in result.models.values())
    assert result.summary["flops_per_client_round"] > 0


@pytest.mark.parametrize("network", NETWORKS)
def test_evaluation_one_by_one_is_that_of_the_stack(network):
    engine = Engine(NETWORKS[network](), small_data(), Settings(1, 10, 0.1), dtype=torch.float64)
    parameters, buffers = (repeat(row, len(SIZES)) for row in engine.initial())
    ids = torch.tensor([6, 1, 3])
    model, memory = SequentialTrainer(engine, torch.arange(len(SIZES)), 1).sgd(parameters, {"buffers": buffers})
    own = [{name: value[ids] for name, value in rows.items()} for rows in (model, memory["buffers"])]
    stack, alone = evaluate(engine, *own, ids), evaluate_one_by_one(engine, *own, ids)
    assert torch.equal(stack.accuracy, alone.accuracy)
    assert torch.allclose(stack.loss, alone.loss, rtol=1e-12)
