"""Optimisers: torch's arithmetic in every algorithm, and a state that stays with its model."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from feddwa.algorithms import ALGORITHMS, SCAFFOLD, FedAvg, FedBN, FedDWA, FedNova, PerFedAvg
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, keys
from feddwa.engine.optimizers import PLAIN, SGD, Adam
from feddwa.engine.rows import repeat, tensors
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.sides import network_of
from tests.algorithms.conftest import after
from tests.conftest import conv_net, map_state, plain_net, small_data

OPTIMIZERS = {
    "momentum": SGD(0.9),
    "nesterov": SGD(0.9, nesterov=True, weight_decay=0.01, clip=0.5),
    "decay": SGD(weight_decay=0.1),
    "adam": Adam(beta1=0.8, weight_decay=0.01),
    "adamw": Adam(weight_decay=0.1, decoupled=True, clip=1.0),
}
TORCH = {  # the same as people write them, with clipping before the step
    "momentum": (lambda p: torch.optim.SGD(p, 0.05, 0.9), None),
    "nesterov": (lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.01), 0.5),
    "decay": (lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1), None),
    "adam": (lambda p: torch.optim.Adam(p, 0.05, (0.8, 0.999), weight_decay=0.01), None),
    "adamw": (lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1), 1.0),
}
SIZES = (23, 40, 5, 32, 20)  # full batches and short ones, full ones, less than one, ...


def network(algorithm):
    """Without BatchNorm, which FedBN is about."""
    return conv_net() if isinstance(algorithm, FedBN) else plain_net()


def method(name, optimizer):
    """A method whose arithmetic goes with the optimiser: SCAFFOLD's option II does with plain SGD alone."""
    return SCAFFOLD(option="I") if name == "scaffold" and optimizer != PLAIN else ALGORITHMS[name]()


def federation(algorithm, optimizer=PLAIN, keep=False, dtype=torch.float64, **options):
    data = algorithm.split(small_data(SIZES), np.random.default_rng(1))
    module = network_of(algorithm, network(algorithm), 0)
    engine = Engine(module, data, Settings(1, 10, 0.05, optimizer, keep), 0, dtype=dtype)
    return Federation(algorithm, engine, **{"participation": 0.6, **options})


def same(left, right, tolerance=1e-9):
    for (name, a), (other, b) in zip(tensors(left), tensors(right), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("trainer", [Trainer, SequentialTrainer])
def test_a_round_is_a_loop_with_torchs_optimiser(name, trainer):
    """A plain loop that uses nothing of the engine but the batch order."""
    engine = Engine(plain_net(), small_data(SIZES), Settings(2, 10, 0.05, OPTIMIZERS[name]), dtype=torch.float64)
    model, buffers = (repeat(each, len(SIZES)) for each in engine.initial())
    found, _ = trainer(engine, torch.arange(len(SIZES)), 1).sgd(model, {"buffers": buffers})
    make, clip = TORCH[name]
    for client, size in enumerate(SIZES):
        module = plain_net().double()
        optimiser = make(module.parameters())
        for epoch in range(2):
            key = keys.key(0, "train/train", 1, torch.tensor([client]), epoch)
            order = keys.permutations(key, torch.tensor([size]))[0]
            for batch in engine.data.splits["train"].index[client][order].split(10):
                optimiser.zero_grad()
                F.cross_entropy(module(engine.data.x[batch].double()), engine.data.y[batch]).backward()
                if clip:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimiser.step()
        for key, value in module.named_parameters():
            torch.testing.assert_close(found[key][client], value.detach(), rtol=1e-9, atol=1e-9)


QUICK = ("feddwa", "fedrod", "pfedme")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(name, optimizer, marks=[] if name in QUICK and optimizer != "decay" else pytest.mark.slow)
        for name in ALGORITHMS
        for optimizer in OPTIMIZERS
    ],
)
def test_both_backends_agree_and_keep_the_same_states(name, optimizer):
    """Unequal sizes, partial participation, states that clients keep."""
    own, keep = OPTIMIZERS[optimizer], name != "fednova"  # which knows what a gradient adds where a state begins anew
    if not keep and isinstance(own, Adam):
        return
    if name == "fedcp" and isinstance(own, Adam):  # as long as both heads are equal its gate's gradient is rounding
        own = dataclasses.replace(own, eps=1e-3)  # errors, of which Adam would make steps
    runs = [federation(method(name, own), own, keep, sequential=way) for way in (False, True)]
    same(*(after(run, 2) for run in runs))
    same(*(run.memory for run in runs))
    same(*(run.server for run in runs))
    models = {part.split(":")[1] for part in runs[0].memory if part.startswith("optimizer:")}
    assert models == set(ALGORITHMS[name].optimized if keep and optimizer != "decay" else ())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_agrees_with_the_twin_as_well(name):
    runs = [federation(FedAvg(), OPTIMIZERS[name], dtype=torch.float32, sequential=way) for way in (False, True)]
    same(*(after(run, 3) for run in runs), tolerance=1e-3)


def test_a_state_is_reset_or_kept():
    reset, kept = (federation(FedAvg(), SGD(0.9), keep, participation=1.0) for keep in (False, True))
    same(after(reset, 1), after(kept, 1))  # the first round begins without a state
    assert set(reset.memory) == {"buffers"}
    assert set(kept.memory) == {"buffers", "optimizer:model:momentum"}
    with pytest.raises(AssertionError):
        same(after(reset, 1), after(kept, 1))


def test_absent_clients_keep_their_state_and_a_copy_of_it_goes_on_alike():
    whole, first, second = (federation(FedDWA(), Adam(), True) for _ in range(3))
    after(whole, 1)
    absent = sorted(set(range(5)) - set(whole._cohort(1).ids.tolist()))
    steps = whole.memory["optimizer:model:count"]["steps"]
    assert not steps[absent].any()
    assert steps.sum() == sum(-(-SIZES[client] // 10) for client in whole._cohort(1).ids.tolist())
    after(first, 1)
    second.server, second.memory = (map_state(torch.clone, state) for state in (first.server, first.memory))
    second.round = 1
    for (_, a), (_, b) in zip(tensors(after(second, 2)), tensors(after(whole, 2)), strict=True):
        assert torch.equal(a, b)


def started(settings):
    engine = Engine(plain_net(), small_data(SIZES), settings, dtype=torch.float64)
    model, buffers = (repeat(each, len(SIZES)) for each in engine.initial())
    return Trainer(engine, torch.arange(len(SIZES)), 1), model, {"buffers": buffers}


def test_a_continued_training_goes_on_with_the_state_and_another_starts_anew():
    settings = Settings(1, 10, 0.05, SGD(0.9))
    trainer, model, memory = started(settings)
    local, _ = trainer.sgd(model, memory)
    ahead, _ = trainer.sgd(local, memory, purpose="guidance", continued=True)
    anew, _ = trainer.sgd(local, memory, purpose="guidance")
    fresh, _ = started(settings)[0].sgd(local, memory, purpose="guidance")
    same({"model": anew}, {"model": fresh})
    with pytest.raises(AssertionError):
        same({"model": ahead}, {"model": anew})


def test_nothing_continues_what_was_not_trained():
    trainer, model, memory = started(Settings(1, 10, 0.05, SGD(0.9)))
    with pytest.raises(InputError, match=r"continued: got 'model', must be a model that was trained before"):
        trainer.sgd(model, memory, continued=True)


def test_two_models_of_a_client_must_have_names_of_their_own():
    trainer, model, memory = started(Settings(1, 10, 0.05, SGD(0.9), True))
    with pytest.raises(InputError, match="is not declared"):
        trainer.sgd(model, memory)
    memory |= {"optimizer:model:momentum": model}
    trainer.sgd(model, memory)
    with pytest.raises(InputError, match="two models under this name"):
        trainer.sgd({name: value + 1 for name, value in model.items()}, memory)


def test_adaptation_of_perfedavg_is_plain():
    """As its inner step: of the run's optimiser only the meta step knows."""
    plain, adam = federation(PerFedAvg(), PLAIN), federation(PerFedAvg(), Adam(), True)
    same(after(plain, 0), after(adam, 0))


def own_step(client, state, batch):
    return state


def test_a_step_that_takes_no_optimiser_is_refused():
    trainer, model, memory = started(Settings(optimizer=Adam()))
    with pytest.raises(InputError, match="own_step, a step of this algorithm, takes none"):
        trainer.train(own_step, {"model": model}, memory)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "keep", "message"),
    [
        (SCAFFOLD(), SGD(0.9), False, "--param option: got 'II', must be I unless"),
        (FedNova(), Adam(), False, "--optimizer: got 'adam', must be sgd"),
        (FedNova(), SGD(0.9), True, "--optimizer: got 'sgd with a state that is kept'"),
    ],
)
def test_methods_that_count_gradients_refuse_what_they_cannot_count(algorithm, optimizer, keep, message):
    with pytest.raises(InputError) as error:
        federation(algorithm, optimizer, keep)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_shared_models_of_apfl_and_ditto_are_fedavgs_under_any_optimiser():
    """Clipping and states of the personal model leave the shared one alone."""
    own = OPTIMIZERS["nesterov"]
    shared, *others = (federation(ALGORITHMS[name](), own, True) for name in ("fedavg", "apfl", "ditto"))
    after(shared, 2)
    for run in others:
        after(run, 2)
        same({"model": run.server["model"]}, {"model": shared.server["model"]})


def test_a_whole_model_does_not_go_on_with_the_state_of_its_body():
    trainer, model, memory = started(Settings(1, 10, 0.05, SGD(0.9)))
    head = {name: value for name, value in model.items() if name.startswith("3.")}
    body = {name: value for name, value in model.items() if name not in head}
    trained, _ = trainer.sgd(body, memory, fixed=head)
    whole, _ = trainer.sgd({**trained, **head}, memory, purpose="tune")
    anew, _ = started(trainer.engine.settings)[0].sgd({**trained, **head}, memory, purpose="tune")
    same({"model": whole}, {"model": anew})
