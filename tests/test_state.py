"""Rows of clients live on the device, in host memory or on disk: the run is the same."""

import os
from pathlib import Path

import pytest
import torch

import feddwa
from feddwa import checkpoint, row_location
from feddwa.build import load_task, make_engine, make_federation
from feddwa.engine.rows import difference, only, put, take, tensors
from feddwa.engine.stored import RowStore
from feddwa.errors import InputError
from feddwa.state import Placement
from tests.conftest import ANYWHERE
from tests.test_resume import Stop, same, stop_after, timeless

UNEVEN = {"partition": "dirichlet", "clients": 6, "batch_size": 100, "rounds": 3, "dtype": "float64", "device": "cpu"}
PARTIAL = {**UNEVEN, "participation": 0.5}
PARAMS = {"clusterfl": ("eps1=9", "eps2=0.01", "warmup=1"), "fedfomo": ("models=2",)}
ELSEWHERE = ("host", "disk")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    monkeypatch.chdir(tmp_path)


def rounds(state: str, **options):
    """All that a federation is after its rounds, what was scored, and what is stored elsewhere."""
    config = feddwa.RunConfig(state=state, **options).resolved()
    task = load_task(config)
    federation = make_federation(config, make_engine(config, task))
    told = [federation.step() for _ in range(config.rounds)]
    models, buffers = federation.personal(federation.all_clients())
    parts = {"server": federation.server, "memory": federation.memory, "end": {"model": models, "buffers": buffers}}
    found = {f"{side}/{name}": value for side, own in parts.items() for name, value in tensors(own)}
    found |= {f"{i}/{name}": v for i, each in enumerate(told) for name, v in each.before.named().items()}
    return found, federation.placement.stores


def assert_same(**options):
    whole, _ = rounds("device", **options)
    for state in ELSEWHERE:
        found, _ = rounds(state, **options)
        assert found.keys() == whole.keys()
        for name, value in whole.items():
            assert torch.allclose(found[name].double(), value.double(), rtol=1e-9, atol=1e-9, equal_nan=True), name


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_host_and_disk_do_what_the_device_does(algorithm):
    assert_same(**PARTIAL, algorithm=algorithm, param=PARAMS.get(algorithm, ()))


OPTIONS = {
    "everybody takes part": {"participation": 1.0},
    "blocks": {"chunk": 2, "eval": "central-mean", "metrics": ("macro-f1",)},
    "some are evaluated": {"eval_clients": 2, "eval_every": 2},
    "updates that do not count": {"fault": "dropout=0.3,nan=0.3,straggler=0.2"},
    "hostile clients": {"attack": "sign-flip=0.34", "defence": "median"},
    "an optimiser's state": {"optimizer": "adam", "optimizer_state": "keep", "lr": 0.01},
    "the last guidance": {"param": ("guidance=last",)},
}


@pytest.mark.parametrize("what", [pytest.param(what, marks=pytest.mark.slow) for what in OPTIONS])
def test_with_options(what):
    assert_same(**{**PARTIAL, "algorithm": "feddwa", **OPTIONS[what]})


@pytest.mark.slow
def test_batchnorm_of_its_own_lives_elsewhere_too():
    assert_same(**PARTIAL, algorithm="fedbn", model="tests.conftest:conv_net")
    _, stores = rounds("host", **PARTIAL, algorithm="feddwa", model="tests.conftest:conv_net", batchnorm="all-local")
    assert list(stores) == ["server/model", "memory/buffers", "memory/batchnorm"]


# Rows.

FEW = {"a": torch.arange(3.0), "b": torch.zeros((), dtype=torch.int64)}


def stack(*rows: int):
    return {"a": torch.arange(3.0) + 10 * torch.tensor(rows).unsqueeze(1), "b": torch.tensor(rows)}


def store(path: Path | None = None, in_memory: bool = False, clients: int = 5) -> RowStore:
    return RowStore({name: value.expand(clients, *value.shape) for name, value in FEW.items()}, path, in_memory)


def equal(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_are_read_as_they_were_written(in_memory):
    own = store(in_memory=in_memory)
    own.write(torch.tensor([1, 3]), stack(1, 3))
    own.write(torch.tensor([3]), stack(4))
    assert equal(dict(own.stack()), stack(0, 1, 0, 4, 0))
    assert equal(dict(take(own.stack(), torch.tensor([3, 3, 0]))), stack(4, 4, 0))
    assert torch.equal(only(own.stack(), ["b"])["b"], torch.tensor([0, 1, 0, 4, 0]))


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_is_put_is_seen_and_changes_nothing_that_is_there(in_memory):
    own = store(in_memory=in_memory)
    before = own.stack()
    twice = put(put(before, torch.tensor([1, 3]), stack(1, 3)), torch.tensor([3, 4]), stack(7, 8))
    assert equal(dict(twice), stack(0, 1, 0, 7, 8))
    assert equal(dict(take(take(twice, torch.tensor([4, 1, 0])), torch.tensor([1, 0]))), stack(1, 8))
    assert equal(dict(before), stack(0, 0, 0, 0, 0))
    zero = torch.zeros(5, 3)
    assert torch.equal(difference(before, before)["a"], zero)


def test_a_state_that_exchanges_its_parts_is_read_before_it_is_written():
    state = Placement("disk")
    parts = {part: {name: v.expand(5, *v.shape) for name, v in FEW.items()} for part in ("one", "two")}
    parts = state.place("server", parts, 5)
    parts = state.written_back("server", {**parts, "two": put(parts["two"], torch.tensor([2]), stack(9))})
    changed = put(parts["one"], torch.tensor([0]), take(parts["two"], torch.tensor([2])))
    parts = state.written_back("server", {"one": parts["two"], "two": changed})
    assert equal(dict(parts["one"]), stack(0, 0, 9, 0, 0))
    assert equal(dict(parts["two"]), stack(9, 0, 0, 0, 0))


@pytest.mark.parametrize("in_memory", [True, False])
def test_marked_states_can_be_gone_back_to(in_memory, tmp_path):
    path, marks = tmp_path / "rows", []
    own = store(path, in_memory)
    for number in range(6):
        own.write(torch.tensor([number % 5, (number + 1) % 5]), stack(number, number + 10))
        marks.append((own.mark(), dict(own.stack())))
    for mark, rows in marks[-3:]:
        again = store(path, in_memory)
        again.file.check(mark)
        again.adopt(mark)
        assert equal(dict(again.stack()), rows)
    assert path.stat().st_size <= (5 + 3 * 2) * own.width  # all rows, and what the last states have changed


def test_a_damaged_row_is_noticed(tmp_path):
    path = tmp_path / "rows"
    own = store(path)
    own.write(torch.tensor([1, 3]), stack(1, 3))
    mark = own.mark()
    with path.open("r+b") as file:
        file.seek(own.width + 2)
        file.write(b"x")
    with pytest.raises(ValueError, match="the row of client 3 is not what was written"):
        store(path).file.check(mark)
    os.truncate(path, 1)
    with pytest.raises(ValueError, match="the row of client 1 is not what was written"):
        store(path).file.check(mark)


# Where there is room.

GIB = 1 << 30


@pytest.mark.parametrize(
    ("needed", "found"),
    [(1, "device"), (2.6, "host"), (4.1, "disk")],  # of 10 GiB of the device and 8 of the host
)
def test_auto_takes_what_has_room_and_says_so(needed, found, monkeypatch, caplog):
    monkeypatch.setattr(row_location, "free_bytes", lambda device: 10 * GIB)
    monkeypatch.setattr(row_location, "host_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(row_location, "disk_bytes", lambda folder: 100 * GIB)
    bytes_ = int(needed * GIB)
    assert row_location.choose_location("auto", bytes_, torch.device("cuda"), None, 2 * bytes_) == found
    told = f"--state auto: {found}, because all clients' models and memories take {needed:.2g} GiB"
    assert (told in caplog.text) == (found != "device")


def test_what_has_no_room_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(row_location, "host_bytes", lambda: 1000)
    message = "--state device: .* and there is room for 4.7e-07 GiB; take --state disk"
    with pytest.raises(InputError, match=message):
        feddwa.run(out="run", **SMALL, state="device")
    assert not Path("run").exists()
    monkeypatch.setattr(row_location, "disk_bytes", lambda folder: 1000)
    for state, field in (("disk", "--state disk"), ("auto", "--clients")):
        with pytest.raises(InputError, match=f"{field}: all clients' models .*; take fewer"):
            feddwa.run(out="run", **SMALL, state=state)


# Checkpoints and models.

SMALL = {"clients": 12, "rounds": 5, "batch_size": 60, "participation": 0.25, "device": "cpu"}


@pytest.mark.parametrize("state", ELSEWHERE)
def test_a_resumed_run_is_the_run(state):
    whole = feddwa.run(out="whole", **SMALL, state=state)
    with pytest.raises(Stop):
        feddwa.run(out="cut", observe=stop_after(3), **SMALL, state=state)
    assert Path("cut/checkpoint/server%2Fmodel.rows").exists()
    same(feddwa.resume("cut"), whole)
    assert not Path("cut/checkpoint").exists()


@pytest.mark.parametrize("algorithm", ["feddwa", "fedavg", "fedrep"])
def test_models_come_out_as_they_do_from_the_device(algorithm):
    options = {**SMALL, "algorithm": algorithm, "model": "tests.conftest:conv_net", "chunk": 5, "rounds": 1}
    whole = feddwa.run(out="whole", **options)
    found = feddwa.run(out="found", state="disk", **options)
    assert Path("found/models.safetensors").read_bytes() == Path("whole/models.safetensors").read_bytes()
    unwritten = feddwa.run(out=False, state="host", **options)
    for result in (found, unwritten):
        for kind in ("models", "buffers"):
            parts = getattr(whole, kind)
            assert list(getattr(result, kind)) == list(parts)
            assert all(torch.equal(getattr(result, kind)[name], value) for name, value in parts.items())
        assert equal(result.model(7).state_dict(), whole.model(7).state_dict())


@pytest.mark.parametrize(("first", "then"), [("device", "disk"), ("disk", "host"), ("host", "device")])
def test_a_run_goes_on_elsewhere(first, then):
    whole = feddwa.run(out="whole", **SMALL)
    with pytest.raises(Stop):
        feddwa.run(out="cut", observe=stop_after(3), **SMALL, state=first)
    file = Path("cut/config.toml")
    file.write_text(file.read_text().replace(f'state = "{first}"', f'state = "{then}"'))
    found = feddwa.resume("cut")
    assert timeless("cut/metrics.jsonl") == timeless("whole/metrics.jsonl")
    assert all(torch.equal(value, found.models[name]) for name, value in whole.models.items())


def test_damaged_rows_of_the_last_checkpoint_leave_the_one_before(capsys):
    whole = feddwa.run(out="whole", **SMALL, state="disk")
    with pytest.raises(Stop):
        feddwa.run(out="cut", observe=stop_after(4), **SMALL, state="disk")
    ((name, mark),) = checkpoint.latest("cut/checkpoint").tree["rows"].items()
    ((_, before),) = checkpoint.latest("cut/checkpoint", below=4).tree["rows"].items()
    (fresh, *_) = sorted(set(mark["slots"].tolist()) - set(before["slots"].tolist()))
    assert name == "server/model"
    path = Path("cut/checkpoint/server%2Fmodel.rows")
    width = path.stat().st_size // (1 + max(mark["slots"].max(), before["slots"].max()).item())
    with path.open("r+b") as file:
        file.seek(fresh * width)
        file.write(b"damaged")
    same(feddwa.resume("cut"), whole)
    assert "round-000004" in (told := capsys.readouterr().err)
    assert "is not what was written" in told


def test_a_checkpoint_holds_what_a_round_has_changed():
    sizes = {}
    for state in ("device", "disk"):
        options = {**SMALL, "clients": 40, "participation": 0.05, "rounds": 3, "state": state}
        with pytest.raises(Stop):
            feddwa.run(out=state, observe=stop_after(3), **options)
        sizes[state] = sum(file.stat().st_size for file in Path(state, "checkpoint").iterdir())
    assert sizes["disk"] < 0.2 * sizes["device"]
