"""The data of a node: who its clients are, what they are called, and which paths a run may name."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from feddwa.build import make_engine
from feddwa.errors import InputError
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


def test_a_federation_on_shared_data_writes_who_has_what(own):
    config = FlowerConfig(dataset=own, partition="natural").resolved()
    node = (("dataset", own), ("num-partitions", 1), ("partition-id", 0))
    _describe(Path("run"), load_site(config, node).task)
    Path("run/config.toml").write_text("version = 1\n")
    assert read_run(Path("run")).partition.client_names == NAMES
