"""The data of a node: who its clients are, what they are called, and which paths a run may name."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from feddwa.build import load_task, make_engine
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.flower.client import describe_node
from feddwa.flower.federate import _describe
from feddwa.flower.server import run
from feddwa.flower.settings import FlowerConfig
from feddwa.flower.site import Refusal, load_site, place
from feddwa.results.record import read_run

NAMES = ("hospital-1", "hospital-3", "hospital-7")


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 4))
    np.savez("own.npz", x=x, y=np.arange(60) % 2, client=np.array(NAMES)[np.arange(60) % 3])
    return "own.npz"


def test_own_data_of_nodes_are_their_owners_and_those_of_a_path_are_settled_before():
    assert FlowerConfig(dataset="own").resolved().partition == "natural"
    assert FlowerConfig().resolved().partition == "rotations"
    with pytest.raises(InputError, match="run config partition: must be given where dataset is a path"):
        run(None, FlowerConfig(dataset="/srv/own.npz").resolved(), simulated=False)


def test_a_file_called_own_is_not_taken_for_the_nodes_data(own):
    os.rename(own, "own")
    assert FlowerConfig(dataset="own").resolved().dataset == "own"


def test_clients_of_a_node_keep_their_names(own):
    site = load_site(FlowerConfig(dataset="own").resolved(), (("data", os.path.abspath(own)),))
    assert site.task.partition.client_names == NAMES
    config = FlowerConfig(dataset=own, partition="natural").resolved()
    node = {"dataset": own, "num-partitions": 2, "partition-id": 1}  # relative, as somebody may write it
    site = load_site(config, tuple(sorted(node.items())))
    assert [site.task.partition.client_name(number) for number in site.numbers.tolist()] == ["hospital-7"]
    data = place(make_engine(config, site.task).data, site.numbers, torch.tensor([4]), 6)
    assert [data.client_name(row) for row in (0, 4)] == ["0", "hospital-7"]
    with pytest.raises(Refusal, match="a run names a dataset"):
        load_site(config, (("dataset", "other.npz"), ("num-partitions", 2), ("partition-id", 1)))


def described(path, **options):
    return describe_node(FlowerConfig(dataset="own", **options).resolved(), (("data", os.path.abspath(path)),))


def classes_of(description):
    return json.loads(description["facts"]["samples"])["classes"]


def test_a_nodes_own_data_are_checked_as_those_of_a_run(own):
    """What no client can learn from is refused when the node joins, by the line that `feddwa run` would print."""
    x, owner = np.load(own)["x"], np.load(own)["client"]
    bad = {
        "all 60 samples are of one class, 0; there is nothing to classify": np.zeros(60, np.int64),
        "60 different labels in 60 samples are no classes": np.arange(60),
        "its targets are rows of 2 with a single 1": np.eye(2, dtype=np.float32)[np.arange(60) % 2],
    }
    for message, y in bad.items():
        np.savez("bad.npz", x=x, y=y, client=owner)
        for refuse in (described, lambda path: load_task(RunConfig(dataset=path).resolved())):
            with pytest.raises(InputError, match=message):
                refuse("bad.npz")
    np.savez("bad.npz", x=x, y=np.arange(60), client=owner)
    assert classes_of(described("bad.npz", loss="mse")) == 0
    assert classes_of(described("bad.npz", classes=",".join(map(str, range(60))))) == 60


def test_a_node_refuses_a_client_that_cannot_train(own):
    x, y, owner = np.load(own)["x"], np.load(own)["y"], np.load(own)["client"]
    tokens = np.arange(60 * 5).reshape(60, 5) % 9
    np.savez("tokens.npz", tokens=tokens, y=np.where(owner[:, None] == NAMES[1], -100, tokens), client=owner)
    with pytest.raises(InputError, match="client hospital-3 has no token to predict in its train samples"):
        described("tokens.npz", model="char-lstm", model_arg=("every=true",))
    np.savez("alone.npz", x=np.tile(x[:, None, :, None], (1, 1, 2, 8)), y=y, client=owner)
    with pytest.raises(InputError, match="--batch-size 5: client hospital-1 has 16 training samples, so a batch"):
        described("alone.npz", model="tests.flower.test_site:Normed", batch_size=5)


class Normed(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(int(np.prod(shape))))
        self.head = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_federation_on_shared_data_writes_who_has_what(own):
    config = FlowerConfig(dataset=own, partition="natural").resolved()
    node = (("dataset", own), ("num-partitions", 1), ("partition-id", 0))
    _describe(Path("run"), load_site(config, node).task)
    Path("run/config.toml").write_text("version = 1\n")
    assert read_run(Path("run")).partition.client_names == NAMES
