"""What becomes of rate, batches and images: as torch has it, and alike in both backends."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa.algorithms import ALGORITHMS, L2C, PFedMe
from feddwa.engine import Engine, Settings, Trainer, augment, keys
from feddwa.engine.augment import BORDER
from feddwa.engine.engine import calls
from feddwa.engine.optimizers import PLAIN, SGD
from feddwa.engine.rate_schedule import RateSchedule
from feddwa.engine.rows import repeat
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.sides import network_of
from tests.algorithms.conftest import after
from tests.conftest import plain_net, small_data
from tests.engine.test_optimizers import SIZES, method, network, same

ROUNDS = 10
SCHEDULES = {
    "constant": (RateSchedule(rounds=ROUNDS), lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0)),
    "step": (RateSchedule("step", 0.3, 3, 0, ROUNDS), lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.3)),
    "exponential": (
        RateSchedule("exponential", 0.9, 1, 0, ROUNDS),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    ),
    "cosine": (
        RateSchedule("cosine", rounds=ROUNDS),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, ROUNDS),
    ),
}


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_torchs(name, warmup):
    ours, make = SCHEDULES[name]
    ours = dataclasses.replace(ours, warmup=warmup)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    if name == "cosine":
        make = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, ROUNDS - warmup)  # noqa: E731
    scheduler = make(optimiser)
    if warmup:
        rising = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / (warmup + 1), total_iters=warmup)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimiser, [rising, make(optimiser)], [warmup])
    for round in range(1, ROUNDS + 1):
        assert math.isclose(0.2 * ours.factor(round), optimiser.param_groups[0]["lr"], rel_tol=1e-12), round
        optimiser.step()
        scheduler.step()
    assert ours.factor(ROUNDS + 1) == ours.factor(ROUNDS)  # what is tuned after the last round


RECIPES = {
    "schedule": {"schedule": RateSchedule("cosine", rounds=4, warmup=1)},
    "steps": {"local_steps": 7, "optimizer": SGD(0.9)},
    "whole": {"drop_last": True},
    "images": {"augment": ("flip", "crop", "cutout"), "local_steps": 3},
}
QUICK = ("feddwa", "fedrod")


def federation(algorithm, recipe, sequential=False, **options):
    sizes = tuple(max(size, 25) for size in SIZES) if recipe.get("drop_last") else SIZES
    width = 4 if recipe.get("drop_last") else 10
    data = algorithm.split(small_data(sizes), np.random.default_rng(1))
    settings = Settings(1, width, 0.05, **recipe)
    module = network_of(algorithm, network(algorithm), 0)
    engine = Engine(module, data, settings, 0, dtype=torch.float64)
    return Federation(algorithm, engine, sequential=sequential, **{"participation": 0.6, **options})


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        pytest.param(name, recipe, marks=[] if name in QUICK else pytest.mark.slow)
        for name in ALGORITHMS
        for recipe in RECIPES
    ],
)
def test_both_backends_and_chunks_agree(name, recipe):
    own = RECIPES[recipe]
    algorithm, ways = method(name, own.get("optimizer", PLAIN)), ({}, {"sequential": True}, {"chunk": 2})
    runs = [federation(algorithm, own, **way) for way in ways]
    ends = [after(run, 2) for run in runs]
    for end, run in zip(ends[1:], runs[1:], strict=True):
        same(end, ends[0])
        same(run.memory, runs[0].memory)
        same(run.server, runs[0].server)


class Counting(Trainer):
    """Notes the batches of every row."""

    def _advance(self, work, constants, schedule):
        self.schedules = [*getattr(self, "schedules", []), schedule]
        return super()._advance(work, constants, schedule)


def trained(recipe, sizes=SIZES, split=None, **options):
    data = small_data(sizes)
    engine = Engine(plain_net(), data, Settings(1, 10, 0.05, **recipe), dtype=torch.float64)
    model, buffers = (repeat(each, len(sizes)) for each in engine.initial())
    trainer = Counting(engine, torch.arange(len(sizes)), 1)
    trainer.sgd(model, {"buffers": buffers}, **options)
    return trainer


def batches(schedule, row):
    """The samples of every batch of a row, in order."""
    found = []
    for epoch in schedule.epochs:
        own = epoch.order[row, : epoch.sizes[row]]
        found += [batch.tolist() for batch in own.split(schedule.width) if len(own)]
    return found


def test_local_steps_are_so_many_batches_of_freshly_shuffled_epochs():
    trainer = trained({"local_steps": 7})
    index = trainer.engine.data.splits["train"].index
    for row, size in enumerate(SIZES):
        found, own = batches(trainer.schedules[0], row), set(index[row, :size].tolist())
        assert len(found) == 7
        per_epoch = math.ceil(size / 10)
        epochs = [[*itertools.chain.from_iterable(found[at : at + per_epoch])] for at in range(0, 7, per_epoch)]
        assert all(set(epoch) == own for epoch in epochs[: 7 // per_epoch])
        assert all(len(epoch) == len(set(epoch)) for epoch in epochs)
        if len(own) > 5:
            assert epochs[0] != epochs[-1][: len(epochs[0])]
    assert len(trained({"local_steps": 7}, epochs=2).schedules[0].epochs) == 14  # two "epochs": FedDWA's look-ahead


def test_steps_in_place_of_epochs_are_counted():
    steps, epoch = trained({"local_steps": 4}), trained({})
    assert torch.equal(steps.flops[[1]], epoch.flops[[1]])  # 40 samples: four batches are its epoch
    assert steps.flops[2] == 4 * epoch.flops[2]


def test_whole_batches_alone():
    trainer = trained({"drop_last": True}, (23, 40, 32))
    assert [[len(batch) for batch in batches(trainer.schedules[0], row)] for row in range(3)] == [
        [10] * 2,
        [10] * 4,
        [10] * 3,
    ]
    with pytest.raises(InputError, match="--drop-last: client 2 has 5 samples"):
        trained({"drop_last": True})


def test_calls_of_rows_in_any_order_are_those_of_each_row():
    sizes, width = [10, 0, 3, 20, 10], 10
    index = torch.arange(100).reshape(5, 20)
    found = {row: [] for row in range(5)}
    for rows, samples, _ in calls(index, torch.arange(5), sizes, width):
        for row, own in zip(range(rows) if isinstance(rows, int) else rows.tolist(), samples, strict=True):
            found[row].append(own.tolist())
    assert {row: [*itertools.chain.from_iterable(own)] for row, own in found.items()} == {
        row: index[row, :size].tolist() for row, size in enumerate(sizes)
    }


def test_own_rates_follow_the_schedule():
    trainer = trained({"schedule": RateSchedule("step", 0.1, 1, rounds=5)})
    assert [dataclasses.replace(trainer, round=round).lr for round in (1, 2)] == pytest.approx([0.05, 0.005])
    assert dataclasses.replace(trainer, round=2).rate(0.3) == pytest.approx(0.03)
    frozen = {"schedule": RateSchedule("step", 1e-12, 1, rounds=5)}
    run = federation(PFedMe(personal_lr=0.5), frozen)
    end = after(run, 1)
    run = federation(PFedMe(personal_lr=0.5), frozen)
    run.round = 1  # from round 2 on nothing moves
    with pytest.raises(AssertionError):
        same(after(run, 1), end)


@pytest.mark.parametrize("shape", [(3, 9, 12), (1, 8, 8)])
def test_images_are_changed_alike_by_index_and_by_slices(shape):
    torch.manual_seed(0)
    x, black = torch.rand(30, *shape, dtype=torch.float64), torch.full((shape[0], 1, 1), -0.3, dtype=torch.float64)
    for names in itertools.chain(([name] for name in augment.DRAWS), [list(augment.DRAWS)]):
        changed = augment.stacked(names, x, black, keys.key(3, "x"))
        torch.testing.assert_close(changed, augment.plain(names, x, black, keys.key(3, "x")))
        assert not torch.equal(changed, x)


def test_images_are_changed_as_said():
    x, black, key = torch.arange(4 * 100.0).reshape(4, 1, 10, 10) + 1, torch.zeros(1, 1, 1), keys.key(1, "x")
    flipped = augment.stacked(["flip"], x, black, key)
    seen = [torch.equal(own, image) for own, image in zip(flipped, x, strict=True)]
    assert all(same or torch.equal(own, image.flip(-1)) for same, own, image in zip(seen, flipped, x, strict=True))
    many = augment.drawn(["flip", "crop"], key, 4000)
    assert abs(float((many["flip"][0] < 0.5).double().mean()) - 0.5) < 0.03
    assert set((many["crop"] * (2 * BORDER + 1)).long().unique().tolist()) == set(range(2 * BORDER + 1))
    cut = augment.stacked(["cutout"], x, black, key)
    assert all(0 < int((own == 0).sum()) <= 16 for own in cut)


def test_gradients_for_scoring_see_every_image_as_it_is():
    recipe = {"augment": ("flip", "crop"), "drop_last": True, "local_steps": 2}
    found = []
    for own in ({}, recipe):
        data = L2C().split(small_data((40, 40, 40)), np.random.default_rng(1))
        engine = Engine(plain_net(), data, Settings(1, 5, 0.05, **own), dtype=torch.float64)
        model, buffers = (repeat(each, 3) for each in engine.initial())
        found.append(Trainer(engine, torch.arange(3), 1).gradients(model, {"buffers": buffers}, "validation", "mixing"))
    same({"g": found[0]}, {"g": found[1]})


OPTIONS = {"rounds": 3, "clients": 4, "out": False, "participation": 0.5}
REFUSED = {
    "--momentum": {"momentum": 1.0},
    "--nesterov": {"nesterov": True},
    "--betas: goes": {"betas": "0.9,0.99"},
    "--betas: got": {"optimizer": "adam", "betas": "0.9"},
    "--optimizer adamw": {"optimizer": "adamw"},
    "--momentum: goes": {"optimizer": "adam", "momentum": 0.9},
    "--optimizer-state keep": {"optimizer_state": "keep"},
    "--lr-decay: goes": {"lr_decay": 0.5},
    "--lr-decay: got": {"lr_schedule": "exponential"},
    "--lr-step: got": {"lr_schedule": "step", "lr_decay": 0.5},
    "--lr-step: goes": {"lr_schedule": "cosine", "lr_step": 3},
    "--warmup": {"warmup": 3},
    "--clip-grad": {"clip_grad": 0.0},
    "--local-steps: stands": {"local_steps": 3, "epochs": 2},
    "--augment: got": {"augment": "flop"},
    "--augment: got 'flip,flip'": {"augment": "flip,flip"},
    "--drop-last: client": {"drop_last": True, "batch_size": 5000},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_do_not_go_together_are_refused(message):
    with pytest.raises(InputError) as error:
        feddwa.run(**{**OPTIONS, **REFUSED[message]})
    assert str(error.value).startswith(message), str(error.value)
    assert "\n" not in str(error.value)


def test_rows_of_numbers_are_not_changed_like_images():
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(3)]
    with pytest.raises(InputError, match="--augment flip: changes images"):
        feddwa.run(model=nn.Linear(3, 2), dataset=clients, augment="flip", rounds=1, out=False)


WHOLE = {
    "optimizer": "adam", "betas": "0.8,0.99", "optimizer_state": "keep", "lr_schedule": "step", "lr_decay": 0.5,
    "lr_step": 1, "warmup": 1, "clip_grad": 1.0, "local_steps": 3, "drop_last": True, "augment": "flip,crop",
}  # fmt: skip


def test_a_run_with_the_whole_recipe_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    given = {**OPTIONS, **WHOLE, "lr": 0.01}
    whole = feddwa.run(**{**given, "out": str(tmp_path / "whole")})

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(**{**given, "out": str(tmp_path / "part")}, observe=stop)
    again = feddwa.resume(tmp_path / "part")
    assert again.metrics[-1]["before"] == whole.metrics[-1]["before"]
    for name, value in whole.models.items():
        assert torch.equal(value, again.models[name])
    config = (tmp_path / "whole" / "config.toml").read_text()
    for key in WHOLE:
        assert f"{key} = " in config
    made_again = feddwa.run(feddwa.RunConfig(**{**given, "out": str(tmp_path / "again"), "backend": "sequential"}))
    for name, value in whole.models.items():
        torch.testing.assert_close(value, made_again.models[name], rtol=1e-3, atol=1e-4)


def test_federations_of_different_recipes_train_in_lockstep():
    from feddwa.build import load_task
    from feddwa.experiment import run_tasks

    common = {"rounds": 2, "clients": 4, "dtype": "float64"}
    configs = [
        feddwa.RunConfig(**common, **own).resolved()
        for own in (
            {"lr": 0.1},
            {"lr": 0.05},
            {"lr_schedule": "cosine"},
            {"momentum": 0.9},
            {"augment": "flip"},
            {"local_steps": 2},
        )
    ]
    task = load_task(configs[0])
    for config, found in zip(configs, run_tasks(configs, [task] * len(configs), written=False), strict=True):
        alone = run_tasks([config], [load_task(config)], written=False)[0]
        same({"m": found.models}, {"m": alone.models})
