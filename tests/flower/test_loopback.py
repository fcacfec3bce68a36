"""Real processes: a SuperLink with TLS, SuperNodes with registered keys, killed and restarted; parity all the same."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from feddwa import run
from feddwa.flower.credentials import make_node_key
from feddwa.flower.executor import Connection
from feddwa.flower.local import LocalFederation
from feddwa.flower.processes import free_port
from feddwa.flower.settings import FlowerConfig
from tests.flower.test_parity import lines_of, models_of, same_lines, same_models

pytestmark = [
    pytest.mark.timeout(900),  # two cores, perhaps busy ones; alone it takes about two minutes
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # Flower's, where it packs the app
]
PARITY = ("feddwa", "fedavg", "pfedme", "fedrod")
CLIENTS = 6
PAUSE = 5.0  # seconds before a node is started again: the SuperLink refuses it for up to a minute


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Of two nodes, with a SuperLink that remembers. All tests have it: starting one costs ten seconds of work."""
    folder = tmp_path_factory.mktemp("federation")
    with LocalFederation(folder / "try", 2, {"memory": str(folder / "memory")}, database=True) as running:
        yield running


def options(algorithm, rounds):
    return {"algorithm": algorithm, "clients": CLIENTS, "rounds": rounds}


def submit(federation, name, algorithm, rounds, **more):
    out = federation.folder / "runs" / name
    config = FlowerConfig(**options(algorithm, rounds), min_nodes=federation.nodes, out=str(out), **more).resolved()
    return federation.control.start(federation.app, config), out


def wait(federation, run_number, nurse=lambda: None):
    while (status := federation.control.status(run_number)).status != "finished":
        nurse()
        time.sleep(0.5)
    assert status.sub_status == "completed", "".join(federation.control.log(run_number))


def wait_for_lines(out, count):
    """The lines of metrics.jsonl, once there are so many."""
    while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_bytes().count(b"\n") < count:
        time.sleep(0.1)
    return lines_of(out)


def messages(federation, node):
    return (federation.processes.logs / f"node-{node}.log").read_text().count("Receiving: train message")


def memory_of(federation, out):
    name = json.loads((out / "federation.json").read_text())["federation"]
    return Path(federation.node_config["memory"]) / name


@pytest.mark.slow
def test_four_algorithms_over_tls_are_the_simulators(federation, tmp_path):
    """All at once: the nodes take the messages of four runs in turn."""
    runs = {name: submit(federation, name, name, rounds=2) for name in PARITY}
    references = {name: run(**options(name, 2), out=str(tmp_path / name)) for name in PARITY}
    for name, (number, out) in runs.items():
        wait(federation, number)
        reference = references[name]
        same_lines(lines_of(out), reference.metrics)
        same_models(models_of(memory_of(federation, out)), {**reference.models, **reference.buffers})
        assert not any("missing" in line for line in lines_of(out))


def start_uninvited(federation, name, key):
    """A SuperNode whose key nobody has registered, or that has none."""
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--isolation", "process"]
    command += ["--root-certificates", str(federation.certificates.authority), "--max-retries", "1"]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    if key is not None:
        make_node_key(federation.folder / key)
        command += ["--auth-supernode-private-key", str(federation.folder / key)]
    federation.processes.start(name, command, federation.folder)


def server_app(federation):
    """The process of the one ServerApp that runs; it is in no group with the SuperLink."""
    [found] = [process for process in federation.processes.descendants() if b"flwr-serverapp" in command_of(process)]
    return found


def command_of(process):
    with contextlib.suppress(OSError):  # it has ended since
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@pytest.mark.slow
def test_killed_nodes_and_superlinks_come_back_and_strangers_do_not_come_in(federation):
    uninvited = {"stranger": "unknown.key", "nobody": None}
    for name, key in uninvited.items():
        start_uninvited(federation, name, key)
    _, out = submit(federation, "killed", "fedrod", rounds=4, deadline=25.0)
    wait_for_lines(out, 1)
    while messages(federation, 1) < 2:  # round 2 has reached it
        time.sleep(0.02)
    federation.processes.signal("node-1", signal.SIGKILL)
    lines = wait_for_lines(out, 2)
    assert [sorted(clients) for clients in lines[1]["missing"].values()] == [[3, 4, 5]]
    assert lines[1]["participants"] == 3
    assert list((memory_of(federation, out) / "000003").glob("round-*"))  # what it remembers has outlived it

    def nurse():
        """As an operating system's service manager does: start it again, now and then, until it stays."""
        if "node-1" in federation.processes.ended():
            time.sleep(PAUSE)
            federation.start_node(1)

    nurse()
    predecessor = server_app(federation)
    os.kill(predecessor, signal.SIGSTOP)  # as if it took long to see that its SuperLink is gone
    federation.processes.signal("superlink", signal.SIGKILL)
    federation.start_superlink()
    again, _ = submit(federation, "killed", "fedrod", rounds=4, deadline=60.0)
    assert any("waiting for the end of the process" in piece for piece in federation.control.log(again))
    os.kill(predecessor, signal.SIGCONT)
    wait(federation, again, nurse)
    ended = lines_of(out)
    assert ended[:2] == lines  # it went on, and did not begin again
    assert [line["round"] for line in ended] == [1, 2, 3, 4, 5]
    assert ended[3]["participants"] == CLIENTS
    assert not any("missing" in line for line in ended[3:])
    assert "have lost their memory" not in "".join(federation.control.log(again))
    for name in uninvited:
        assert federation.processes.running.pop(name).wait(timeout=60) != 0
        assert "Failed to initialize the connection" in (federation.processes.logs / f"{name}.log").read_text()


def forks(federation):
    """The ClientApps at work: the children of the executor."""
    number = federation.processes.running["executor"].pid
    return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


@pytest.mark.slow
def test_a_client_app_that_dies_is_reported_at_once(federation):
    """The deadline is ten minutes; a fault in a library or a lack of memory kills a process without a word."""
    number, out = submit(federation, "dies", "fedavg", rounds=3, deadline=600.0)
    wait_for_lines(out, 1)
    while not (found := forks(federation)):
        time.sleep(0.005)
    os.kill(found[0], signal.SIGKILL)
    killed = time.monotonic()
    lines = wait_for_lines(out, 3)
    assert time.monotonic() - killed < 300
    wait(federation, number)
    lost = [(reason, clients) for line in lines for reason, clients in line.get("missing", {}).items()]
    assert [reason for reason, _ in lost] == ["error 2: the ClientApp died (signal 9)"]
    assert lost[0][1] in ([0, 1, 2], [3, 4, 5])
    assert not any("missing" in line for line in lines[2:])


@pytest.mark.slow
def test_nobody_takes_a_task_without_the_secret(federation):
    """The port of a node is open to all users of its machine; a task would hand them its message."""
    address, work = f"127.0.0.1:{federation.node_ports[0]}", AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    for secret in (None, b"a guess"):
        with (
            Connection(True, None, secret).acquiring(address) as client,
            pytest.raises(httpx.HTTPStatusError) as refused,
        ):
            client.AcquireTask(work)
        assert refused.value.response.status_code == httpx.codes.UNAUTHORIZED
    with Connection(True, None, federation.secret.read_bytes()).acquiring(address) as client:
        assert not client.AcquireTask(work).token  # there is none
    assert federation.secret.stat().st_mode & 0o077 == 0
