"""Held-out clients are served as the NumPy reference serves them: models of the run, starts and training, to 1e-9."""

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from feddwa.algorithms import FedAvg, FedDWA, Local
from feddwa.config import RunConfig
from feddwa.data.federated import federate
from feddwa.data.task import Task
from feddwa.engine import Engine, Settings
from feddwa.engine.batches import Batches
from feddwa.federation import Federation
from feddwa.models.network import Network
from feddwa.results.recorder import SimulatedRounds
from feddwa.trained import store
from feddwa.trained.newcomers import ALONE, EPOCHS, HeldOut
from tests.oracles import newcomers, reference
from tests.oracles.test_oracles import BATCH, CLASSES, HIDDEN, INPUTS, LR, ROUNDS, SEED, Drawn, dataset, record
from tests.oracles.test_oracles import EPOCHS as LOCAL_EPOCHS

APART = np.array([1, 4])  # of seven clients
CASES = {
    "fedavg": (FedAvg(), reference.fedavg, {}, newcomers.fedavg),
    "feddwa": (FedDWA(), reference.feddwa, {"top_k": 5, "guidance": "ahead", "guidance_epochs": 1}, newcomers.feddwa),
    "local": (Local(), reference.local, {}, newcomers.fine_tuned),
}


def rounds_of(name, algorithm):
    """The rounds of five clients, two more being held out."""
    points, whole = dataset(7)
    task = Task(points, whole.hold_out(APART))
    options = {"rounds": ROUNDS, "epochs": LOCAL_EPOCHS, "batch_size": BATCH, "lr": LR, "seed": SEED, "device": "cpu"}
    config = RunConfig(algorithm=name, model="mlp", **options).resolved()
    torch.manual_seed(0)
    body = nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(INPUTS, HIDDEN), tanh=nn.Tanh()))
    data, settings = federate(points, task.partition, torch.device("cpu")), Settings(LOCAL_EPOCHS, BATCH, LR)
    engine = Engine(Network(body, HIDDEN, CLASSES), data, settings, SEED, dtype=torch.float64)
    card, held_out = store.card_of(config, points, engine), HeldOut.of(config, engine, task)
    return SimulatedRounds(Federation(algorithm, engine), card, held_out)


def of_newcomers(task, engine):
    """The reference's task with the newcomers' samples, and their orders by the library's keys."""
    data = engine.data

    def orders(purpose, split, rnd, i, epoch):
        index, _ = Batches(engine, torch.tensor([i]), rnd).order(split, purpose, epoch)
        return {(purpose, split, rnd, i, epoch): index[0, : data.splits[split].sizes[i]].numpy()}

    rows = {name: data.rows(name) for name in ("train", "test")}
    return dataclasses.replace(task, rows=rows, orders=Drawn(orders))


@pytest.mark.parametrize("name", CASES)
def test_held_out_clients_are_served_as_the_reference_serves_them(name):
    algorithm, oracle, hyper, serve = CASES[name]
    source = rounds_of(name, algorithm)
    members = record(source.federation)
    for _ in range(ROUNDS):
        source.federation.step()
    *_, last = oracle(members, **hyper)
    task = of_newcomers(members, source.held_out.engine)
    found = source.held_out.serve(source.trained())
    assert found.names == ("1", "4")
    for when in (*map(str, EPOCHS), ALONE):
        way, epochs = (newcomers.alone, EPOCHS[-1]) if when == ALONE else (serve, int(when))
        models = [way(task, i, ROUNDS + 1, last.personal, members.sizes, epochs) for i in range(len(APART))]
        losses = [reference.loss(task, model, task.rows["test"][i]) for i, model in enumerate(models)]
        np.testing.assert_allclose(found.scores[when].loss.numpy(), losses, rtol=1e-9)
        right = [
            np.mean(reference.forward(task, model, rows)[1].argmax(1) == task.y[rows])
            for model, rows in zip(models, task.rows["test"], strict=True)
        ]
        np.testing.assert_array_equal(found.scores[when].accuracy.numpy(), right)


def test_a_client_that_has_diverged_leaves_the_others_to_choose_from():
    """The mean of all models is lost with it, but not the start that is fine-tuned from another client's model."""
    source = rounds_of("local", Local())
    source.federation.step()
    trained = source.trained()
    for value in trained.stack.values():
        value[0] = torch.nan
    found = source.held_out.serve(trained)
    assert set(found.how) == {"fine-tuned from the client's model that fits its data best"}
    assert all(found.scores[when].loss.isfinite().all() for when in found.scores)
    average = dataclasses.replace(source.held_out, algorithm=FedAvg()).serve(trained)
    assert average.scores["0"].loss.isnan().all()


def test_the_references_of_newcomers_differ():
    """Two that agree by accident would test nothing, and neither would epochs that change nothing."""
    source = rounds_of("local", Local())
    members = record(source.federation)
    *_, last = reference.local(members)
    task = of_newcomers(members, source.held_out.engine)
    ways = (newcomers.alone, newcomers.fedavg, newcomers.fine_tuned, newcomers.feddwa)
    ends = [way(task, 0, ROUNDS + 1, last.personal, members.sizes, epochs) for way in ways for epochs in (1, 5)]
    apart = [np.abs(one - two).max() for place, one in enumerate(ends) for two in ends[:place]]
    assert min(apart) > 1e-3
