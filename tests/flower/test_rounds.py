"""Nodes that fail, come late, leave, come back and join; servers and nodes that are stopped and started again."""

import dataclasses
import shutil
import time

import numpy as np
import pytest
import torch
from flwr.app import Error, Message

from feddwa import checkpoint, run
from feddwa.data.inputs import Inputs
from feddwa.errors import InputError
from feddwa.flower import client, node, server
from feddwa.flower.coordinator import Coordinator
from feddwa.flower.samples import LABEL, Samples
from feddwa.flower.settings import FlowerConfig
from tests.flower.grid import LocalGrid, blocks
from tests.flower.test_parity import federated, lines_of, models_of, same_lines, same_models

BAD = 1000 - 1  # holds clients 2 and 3


def federation(tmp_path, parts=3, clients=6, **options):
    config = FlowerConfig(clients=clients, out=str(tmp_path / "out"), wait=1.0, deadline=0.5, **options).resolved()
    grid = LocalGrid(config, blocks(parts, str(tmp_path / "nodes")))
    coordinator = Coordinator(grid, config)
    return grid, coordinator


def table(columns, classes):
    """The samples of a run on tables, as text."""
    return str(Samples(Inputs.of((columns,)), LABEL, classes, None))


def in_training(fault):
    return lambda message, reply: fault(message, reply) if message.metadata.message_type == "train" else reply


FAULTS = {
    "error 5: gone": lambda message, _: Message(Error(5, "gone"), reply_to=message),  # what is said of a dead node
    "late": lambda *_: None,
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_round_goes_on_without_a_node_and_the_node_comes_back(tmp_path, reason):
    grid, run_ = federation(tmp_path, min_nodes=3, rounds=3)
    run_.start()
    grid.faults[BAD] = in_training(FAULTS[reason])
    kept = {name: value[2:4].clone() for name, value in run_.state["model"].items()}
    outcome = run_.step()
    assert outcome.round.missing == {2: reason, 3: reason}
    assert outcome.round.cohort.ids.tolist() == outcome.round.evaluated.tolist() == [0, 1, 4, 5]
    assert all(torch.equal(value[2:4], kept[name]) for name, value in run_.state["model"].items())
    del grid.faults[BAD]
    assert run_.step().round.cohort.ids.tolist() == list(range(6))


def test_an_error_reply_may_bear_another_sender(tmp_path):
    """Flower puts the SuperLink's number for a node that is gone; the message it answers tells whose it is."""
    grid, run_ = federation(tmp_path, min_nodes=3)
    run_.start()

    def gone(message, _):
        reply = Message(Error(5, "gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    grid.faults[BAD] = in_training(gone)
    assert set(run_.step().round.missing) == {2, 3}


def test_who_is_offline_is_missing_and_keeps_its_row(tmp_path):
    grid, run_ = federation(tmp_path, min_nodes=2)
    run_.start()
    run_.step()
    grid.offline.add(BAD)
    kept = {name: value[2:4].clone() for name, value in run_.state["model"].items()}
    outcome = run_.step()
    assert outcome.round.missing == {2: "offline", 3: "offline"}
    assert all(torch.equal(value[2:4], kept[name]) for name, value in run_.state["model"].items())
    line, each = server.metric_lines(outcome, run_.registry.test)
    assert line["missing"] == {"offline": [2, 3]}
    assert line["evaluated"] == 4
    assert each["before"][2] is None


def test_waiting_for_nodes_is_bounded(tmp_path):
    grid, run_ = federation(tmp_path, min_nodes=3)
    grid.offline.add(BAD)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="2 of 3 nodes are there after 1 s"):
        run_.start()
    assert time.monotonic() - start < 20


def test_too_few_updates_leave_the_models_as_they_are(tmp_path):
    grid, run_ = federation(tmp_path, min_nodes=3, min_clients=5)
    run_.start()
    before = {name: value.clone() for name, value in run_.state["model"].items()}
    grid.faults[BAD] = in_training(FAULTS["late"])
    outcome = run_.step()
    assert all(torch.equal(value, before[name]) for name, value in run_.state["model"].items())
    line, _ = server.metric_lines(outcome, run_.registry.test)
    assert line["participants"] == 0
    assert run_.round == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["feddwa", "fedavg", "sfl", "fedfomo", "l2c", "clusterfl", "fedamp", "fedrod"])
def test_new_sites_join_from_the_initial_model(tmp_path, algorithm):
    """Own data: a federation of two sites, and a third one that comes after two rounds."""
    rng, nodes = np.random.default_rng(0), {}
    for number in range(3):
        y = rng.integers(0, 3, 40)
        np.savez(tmp_path / f"{number}.npz", x=rng.normal(size=(40, 4)) + 2 * np.eye(3, 4)[y], y=y)
        nodes[number + 1] = {"data": str(tmp_path / f"{number}.npz"), "memory": str(tmp_path / "memory")}
    own = {"dataset": "own", "classes": "0,1,2", "samples": table(4, 3)}
    config = FlowerConfig(algorithm=algorithm, **own, min_nodes=2, batch_size=8, lr=0.1)
    config = config.resolved()
    grid = LocalGrid(config, nodes)
    grid.offline.add(3)
    run_ = Coordinator(grid, config)
    run_.start()
    run_.step()
    run_.step()
    grid.offline.clear()
    outcome = run_.step()  # it is asked what it holds
    assert outcome.round.cohort.ids.tolist() == [0, 1]
    assert run_.registry.clients == 3
    if algorithm == "feddwa":
        for name, value in run_.probe.initial.items():
            assert torch.equal(run_.state["model"][name][2], value)
    outcome = run_.step()
    assert outcome.round.cohort.ids.tolist() == [0, 1, 2]
    assert not outcome.round.missing
    assert all(value.isfinite().all() for rows in run_.state.values() for value in rows.values())


@pytest.mark.slow
def test_another_key_cannot_take_over_rows(tmp_path):
    grid, run_ = federation(tmp_path, min_nodes=3)
    run_.start()
    run_.step()
    grid.nodes[5] = grid.nodes[BAD]  # another node, another key, the same claim
    outcome = run_.step()
    assert "rows that another key holds" in run_.nodes.refused[5]
    assert not outcome.round.missing
    assert 5 not in run_.nodes.online


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["feddwa", "fedrod", "l2c"])
def test_a_server_that_was_killed_goes_on_to_the_same_end(tmp_path, algorithm, monkeypatch):
    """Killed after the nodes had trained round 2, before it was saved: the round is repeated from the memory before."""
    options = {"algorithm": algorithm, "clients": 6, "rounds": 3, "participation": 0.5}
    config = FlowerConfig(**options, min_nodes=3, out=str(tmp_path / "out")).resolved()
    grid = LocalGrid(config, blocks(3, str(tmp_path / "nodes")))
    step = Coordinator.step

    def killed(self):
        outcome = step(self)
        if self.round == 2:
            raise KeyboardInterrupt
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            server.run(grid, config, simulated=False)
    assert len(lines_of(tmp_path / "out")) == 1
    again = LocalGrid(config, grid.nodes)
    server.run(again, config, simulated=False)
    assert not any(kind == "query" for _, kind in again.kinds)  # keys are known by the checkpoint
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines_of(tmp_path / "out"), reference.metrics)
    same_models(models_of(tmp_path / "nodes"), {**reference.models, **reference.buffers})


def test_a_run_goes_on_only_as_what_it_began_as(tmp_path, monkeypatch):
    config = FlowerConfig(clients=4, rounds=2, min_nodes=1, out=str(tmp_path / "out")).resolved()
    monkeypatch.setattr(Coordinator, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        server.run(LocalGrid(config, blocks(1, str(tmp_path / "nodes"))), config, simulated=False)
    other = FlowerConfig(clients=4, rounds=2, lr=0.5, min_nodes=1, out=str(tmp_path / "out")).resolved()
    with pytest.raises(InputError, match=r"lr was 0\.1 and is 0\.5"):
        server.run(LocalGrid(other, blocks(1, str(tmp_path / "nodes"))), other, simulated=False)
    from feddwa.experiment import resume

    with pytest.raises(InputError, match="is a federation's"):
        resume(tmp_path / "out")


@pytest.mark.slow
def test_memory_stays_on_the_nodes_disk_and_never_travels(tmp_path):
    """FedRoD's head and pFedMe's theta are in the node's files, and in no message."""
    for algorithm, part in (("fedrod", "head"), ("pfedme", "personal")):
        folder = tmp_path / algorithm
        _, _, grid = federated(folder, 2, algorithm=algorithm, clients=4, rounds=2)
        found = [checkpoint.latest(path) for path in folder.glob("nodes/*/*/*")]
        assert all(one is not None and one.round == 2 and part in one.tree for one in found)
        assert grid.bytes < 5 * 4 * 4 * 4810 * 1.2  # four clients: w down three times, w_i up twice
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("nodes/*/*/*"))


def test_a_lost_disk_is_noticed(tmp_path, caplog):
    _, run_ = federation(tmp_path, parts=2, clients=4, min_nodes=2, algorithm="fedrod")
    run_.start()
    run_.step()
    shutil.rmtree(tmp_path / "nodes" / "1")
    run_.step()
    assert "clients [2, 3] have lost their memory" in caplog.text


def test_node_errors_tell_neither_paths_nor_values(tmp_path, monkeypatch):
    _, run_ = federation(tmp_path, min_nodes=3)
    run_.start()

    def broken(*_):
        raise FileNotFoundError(2, "No such file", "/home/secret/patients.csv")

    monkeypatch.setattr(client, "take_part", broken)
    outcome = run_.step()
    assert set(outcome.round.missing.values()) == {"error 2: FileNotFoundError, see the node's log"}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"partition-id": 3, "num-partitions": 3}, "partition 3 of 3"),
        ({}, "must have data, or partition-id"),
    ],
)
def test_a_node_that_is_set_up_wrongly_says_so(tmp_path, config, reason):
    grid, run_ = federation(tmp_path, min_nodes=4)
    grid.nodes[1] = config
    with pytest.raises(RuntimeError, match=reason):
        run_.start()


def test_a_run_cannot_make_a_node_read_a_path(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.zeros((9, 2)), y=np.arange(9) % 3)
    config = FlowerConfig(dataset=str(path), clients=2, partition="iid", wait=0.5).resolved()
    run_ = Coordinator(LocalGrid(config, blocks(2, str(tmp_path))), config)
    with pytest.raises(RuntimeError, match="a run names a dataset"):
        run_.start()


def test_sites_with_other_classes_are_refused_unless_the_run_names_them(tmp_path):
    for name, labels in (("a", ["cat", "dog"]), ("b", ["dog", "horse"])):
        rows = "".join(f"{i / 9},{i % 5},{labels[i % 2]}\n" for i in range(20))
        (tmp_path / f"{name}.csv").write_text("u,v,label\n" + rows)
    nodes = {n + 1: {"data": str(tmp_path / f"{name}.csv"), "memory": str(tmp_path)} for n, name in enumerate("ab")}
    config = FlowerConfig(dataset="own", min_nodes=2, wait=0.5, batch_size=5).resolved()
    with pytest.raises(InputError, match=r"run config samples: must be given .* a node says '{\"classes\": 2"):
        Coordinator(LocalGrid(config, nodes), config).start()
    config = dataclasses.replace(config, samples=table(2, 2))
    with pytest.raises(RuntimeError, match="--classes names the classes"):
        Coordinator(LocalGrid(config, nodes), config).start()
    config = dataclasses.replace(config, classes="cat, dog, horse", samples=table(2, 3))
    run_ = Coordinator(LocalGrid(config, nodes), config)
    run_.start()
    assert not run_.step().round.missing
    assert not run_.registry.labels.any()  # label counts are not told
    config = FlowerConfig(dataset="own", min_nodes=2, classes="cat,horse", wait=0.5, samples=table(2, 2)).resolved()
    with pytest.raises(RuntimeError, match="the data have 1 that the run does not name"):
        Coordinator(LocalGrid(config, nodes), config).start()
    for own in nodes.values():
        own["data"] = str(tmp_path / "numbers.npz")
    np.savez(tmp_path / "numbers.npz", x=np.zeros((20, 2)), y=np.linspace(0, 1, 20))
    with pytest.raises(RuntimeError, match="the run names some, and the data's targets are numbers"):
        Coordinator(LocalGrid(config, nodes), config).start()


def test_a_node_refuses_what_is_not_its_own(tmp_path):
    config = FlowerConfig(clients=6).resolved()
    values = tuple(sorted(blocks(3, str(tmp_path))[1000].items()))
    with pytest.raises(node.Refusal, match="not those of this node"):
        node.make_node(config, values, (2, 3), 6)
    with pytest.raises(node.Refusal):
        client._name("../../etc")
