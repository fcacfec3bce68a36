"""Models that cannot be trained, or not as a stack: one line before training, and what to use instead works."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa.engine import Engine, SequentialTrainer, Settings, evaluate, evaluate_one_by_one, keys
from feddwa.engine.rows import repeat
from feddwa.engine.sequential import PlainClient
from feddwa.errors import InputError, InputWarning
from tests.conftest import ANYWHERE, NETWORKS, SIZES, small_data

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


class Alpha(Flat):
    def change(self, x):
        return F.alpha_dropout(x, 0.3, self.training)


class Caching(Flat):
    """Sets an attribute once: nothing that a stack could get wrong."""

    scale = None

    def change(self, x):
        if self.scale is None:
            self.scale = torch.ones(1)
        return x * self.scale


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.GRU(FEATURES, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        lengths = torch.full((len(x),), STEPS - 1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.layer(packed)[1][-1])


class Within(nn.Module):
    """A network whose encoder cannot be mapped."""

    def __init__(self, encoder: type[nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, x):
        return self.encoder(x)


STACK = (
    r", so it cannot be mapped over clients; use --backend sequential, which trains one client after another, or auto$"
)
READS = r" branches on the value of a tensor, or reads it"
UNMAPPED = {
    "branch": (Branching, "^model: Branching" + READS + STACK),
    "item": (lambda: Within(Reading), r"^model: encoder \(Reading\)" + READS + STACK),
    "mask": (Selecting, "^model: Selecting makes a tensor whose shape depends on values" + STACK),
    "packed": (lambda: Within(Packing), r"^model: encoder \(Packing\) packs sequences .*\(PackedSequence\)" + STACK),
    "counter": (
        Counting,
        "^model: forward changes the attribute calls, which a stack of clients shares; use --backend",
    ),
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


@pytest.mark.parametrize("name", UNMAPPED)
def test_auto_falls_back_to_the_plain_loop_and_says_so(name):
    make, _ = UNMAPPED[name]
    with pytest.warns(InputWarning, match="^model: .*; clients are trained one after another, which is slower$"):
        auto = feddwa.run(model=make(), dataset=clients(), rounds=2, batch_size=8, backend="auto", out=False)
    alone = feddwa.run(model=make(), dataset=clients(), rounds=2, batch_size=8, backend="sequential", out=False)
    assert all(torch.equal(value, alone.models[name]) for name, value in auto.models.items())


def test_auto_trains_a_stack_where_it_can():
    """Warnings are errors here."""
    runs = [
        feddwa.run(model=Recurrent(), dataset=clients(), rounds=2, batch_size=8, backend=name, out=False)
        for name in ("auto", "vectorised")
    ]
    assert all(torch.equal(value, runs[1].models[name]) for name, value in runs[0].models.items())


UNKEYED = {
    "noise": (Noisy, "^model: Noisy draws its own random numbers; use nn.Dropout instead$"),
    "inside": (lambda: Within(Noisy), r"^model: encoder \(Noisy\) draws its own random numbers"),
    "rrelu": (lambda: nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(24, 3)), "rrelu draws its own"),
}


@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", UNKEYED)
def test_draws_without_a_key_are_refused_on_both_backends(name, backend):
    make, message = UNKEYED[name]
    with pytest.raises(InputError, match=message) as refused:
        feddwa.run(model=make(), dataset=clients(), rounds=1, backend=backend, out=False)
    assert "\n" not in str(refused.value)


KEYED = {
    "transformer": Attentive,
    "stacked lstm": lambda: Recurrent(num_layers=2, dropout=0.3),
    "alpha": Alpha,
}


@pytest.mark.parametrize("name", KEYED)
def test_dropout_anywhere_is_the_same_on_both_backends(name):
    common = {"dataset": clients(), "rounds": 2, "lr": 0.1, "batch_size": 8, "out": False}
    results = [
        feddwa.run(model=KEYED[name]().double(), backend=backend, **common) for backend in ("vectorised", "sequential")
    ]
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


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_algorithm_trains_a_recurrent_network_on_both_backends(name):
    common = {"dataset": clients(), "rounds": 2, "lr": 0.1, "batch_size": 8, "participation": 0.67, "out": False}
    results = [
        feddwa.run(model=Recurrent().double(), algorithm=name, backend=backend, **common)
        for backend in ("vectorised", "sequential")
    ]
    assert results[0].summary["flops_per_client_round"] > 0
    for part, value in results[0].models.items():
        assert torch.allclose(value, results[1].models[part], rtol=1e-7, atol=1e-9), part


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
