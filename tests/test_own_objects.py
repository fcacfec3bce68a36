"""Own data and modules as objects: with a run directory that other commands go on from, and without one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa import cli, objects
from feddwa.config_file import from_toml
from feddwa.data.dataset import Dataset
from feddwa.results.record import read_run


class Net(nn.Module):
    """A network that a run directory can name."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        """(B, 4) -> (B, 2)."""
        return self.head(torch.relu(self.body(x)))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))


def arrays(count=3, size=25):
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, size) for _ in range(count)]
    return [((rng.normal(size=(size, 4)) + y[:, None]).astype(np.float32), y) for y in labels]


def hospitals():
    return {f"hospital-{number}": entry for number, entry in enumerate(arrays())}


def as_dataset(data):
    """The same clients as a `Dataset` of the package."""
    from feddwa.data.own.clients import from_arrays

    return from_arrays(data)


def as_torch(data):
    from torch.utils.data import TensorDataset

    return {name: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in data.items()}


def as_frame(data):
    import pandas

    parts = []
    for name, (x, y) in data.items():
        frame = pandas.DataFrame(x, columns=list("abcd"))
        parts.append(frame.assign(ill=np.where(y, "yes", "no"), hospital=name))
    return pandas.concat(parts)


SMALL = {"rounds": 2, "lr": 0.1, "batch_size": 5}
FORMS = {
    "mapping": lambda: {"dataset": hospitals()},
    "dataset": lambda: {"dataset": as_dataset(hospitals())},
    "torch": lambda: {"dataset": as_torch(hospitals())},
    "frame": lambda: {"dataset": as_frame(hospitals()), "label": "ill", "client": "hospital"},
    "frames": lambda: {
        "dataset": {name: own.drop(columns="hospital") for name, own in as_frame(hospitals()).groupby("hospital")},
        "label": "ill",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_with_a_run_directory(form, capsys):
    """Everything that is done with a run afterwards is done from the directory alone."""
    result = feddwa.run(model=Net(), out="run", **FORMS[form](), **SMALL)
    assert result.summary["clients"] == 3
    assert result.partition.client_names == ("hospital-0", "hospital-1", "hospital-2")
    config = from_toml("run/config.toml", feddwa.RunConfig)
    assert config.partition == "natural"
    assert Path(config.dataset).parent == Path("cache").resolve()
    assert config.model.startswith("tests.test_own_objects:Net@")
    record = read_run(Path("run"))
    assert record.client_name(2) == "hospital-2"
    assert cli.main(["report", "run", "-o", "page.html"]) == 0
    torch.testing.assert_close(feddwa.resume("run").models, result.models, rtol=0, atol=0)
    again = feddwa.run(from_toml("run/config.toml", feddwa.RunConfig), out="again")
    torch.testing.assert_close(again.models, result.models, rtol=0, atol=0)


def test_data_are_stored_once_by_their_content():
    for out in ("one", "two"):
        feddwa.run(dataset=arrays(), model="linear", out=out, **SMALL)
    kept = [each for each in Path("cache").iterdir() if (each / "manifest.json").exists()]
    assert len(kept) == 1
    feddwa.run(dataset=arrays(count=2), model="linear", out="three", **SMALL)
    assert len(list(Path("cache").glob("own-*"))) == 2


@pytest.mark.slow
def test_a_run_goes_on_in_another_process():
    """A script with its own network, data, loss and metric is stopped; `feddwa resume` finds all of them."""
    script = Path("study.py")
    script.write_text(
        "import sys\n"
        "import torch, feddwa\n"
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))\n"
        "def smooth(outputs, targets):\n"
        "    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)\n"
        "def margin(outputs, targets):\n"
        "    return outputs.std()\n"
        "def stop(line):\n"
        "    if line['round'] == int(sys.argv[2]): sys.exit(3)\n"
        "if __name__ == '__main__':\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    data = [((x := torch.randn(20, 4, generator=g)), (x[:, 0] > 0).long()) for _ in range(3)]\n"
        "    feddwa.run(dataset=data, model=net, loss=smooth, metrics={'margin': margin}, rounds=3, lr=0.1,\n"
        "               out=sys.argv[1], observe=stop)\n"
    )
    for out, round, status in (("whole", "9", 0), ("cut", "2", 3)):
        assert subprocess.run([sys.executable, str(script), out, round], check=False).returncode == status
    subprocess.run([sys.executable, "-m", "feddwa", "resume", "cut"], check=True, capture_output=True)
    whole, cut = (read_run(Path(name)) for name in ("whole", "cut"))
    assert cut.finished
    assert cut.metrics["margin"].tolist() == whole.metrics["margin"].tolist()
    assert cut.config.loss == f"{script.resolve()}:smooth"
    assert [line["loss_before"] for line in cut.lines] == [line["loss_before"] for line in whole.lines]


def test_without_a_directory_any_object_will_do():
    """As in a notebook: classes and functions that no other process could find."""

    class Own(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.head = nn.Linear(4, width)

        def forward(self, x):
            return self.head(x)

    class Halved(feddwa.FedAvg):
        pass

    before = set(Path().rglob("*"))
    result = feddwa.run(
        dataset=arrays(), model=Own(2), algorithm=Halved(), loss=lambda o, t: nn.functional.cross_entropy(o, t),
        metrics={"size": lambda o, t: len(t)}, out=False, **SMALL,
    )  # fmt: skip
    assert result.path is None
    assert set(Path().rglob("*")) == before
    assert result.summary["algorithm"] == "Halved"
    assert result.summary["model"] == "Own"
    assert result.summary["metrics"]["size"]["last"] == 5
    assert vars(objects.HERE) == {}  # nothing is held beyond the run


def test_out_false_has_what_a_run_has():
    result = feddwa.run(
        dataset=arrays(), model=Net(), backend="sequential", dtype="float64", checkpoint_every=0, out=False,
        param=("top_k=2",), chunk=1, **SMALL,
    )  # fmt: skip
    assert result.models["head.weight"].dtype == torch.float64
    assert all((matrix > 0).sum(1).max() <= 2 for _, _, matrix in result.weights)


def test_named_data_without_a_directory():
    result = feddwa.run(rounds=1, clients=4, out=False)
    assert result.summary["dataset"] == "digits"
    assert not Path("runs").exists()


def test_arrays_are_divided_as_a_partition_says():
    result = feddwa.run(dataset=arrays(), model="linear", partition="iid", clients=5, out=False, **SMALL)
    assert result.summary["clients"] == 5


def test_a_function_that_returns_a_dataset():
    def make():
        return as_dataset(hospitals())

    result = feddwa.run(dataset=make, model="linear", out=False, **SMALL)
    assert result.summary["dataset"] == "make"


def notebook_class():
    """A class as an interactive session defines it."""
    return type("Cell", (Net,), {"__module__": "__main__", "__qualname__": "Cell"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": lambda: nn.Linear(4, 2)}, r"model: .*<lambda> must be a class or a function at the top level"),
        ({"model": notebook_class()}, r"model: Cell must be a class or a function at the top level of a module or scr"),
        ({"model": Net(), "loss": lambda o, t: o.sum()}, r"loss: .*<lambda> must be a class"),
        ({"model": nn.Linear(4, 2)}, r"model: a run directory cannot rebuild this Linear, whose class needs the "
         r"argument in_features.*; give a function .*\(model=make_net\), or out=False"),
        ({"model": nn.Sequential(nn.Linear(4, 2))}, r"model: a run directory cannot rebuild this Sequential, whose "
         r"class takes layers as arguments; give a function .*\(model=make_net\), or out=False"),
        ({"model": 3}, "model: got 'int', must be a name, an nn.Module, or a function that makes one"),
        ({"model": Net(hidden=3)}, r"--model .*Net@.*: the parameters do not fit what Net makes: .*--model-arg"),
        ({"metrics": {"m": lambda o, t: 1}}, r"metric: .*<lambda> must be .*; or take out=False, which writes nothing"),
        ({"dataset": 3}, "dataset: got 'int', must be a name, a path, a function or the data of clients"),
        ({"label": "y"}, "--label: is about files and tables, and the dataset is neither"),
    ],
)  # fmt: skip
def test_what_a_directory_cannot_name_is_one_line(options, message):
    with pytest.raises(feddwa.InputError, match=message) as refused:
        feddwa.run(out="run", **{"dataset": arrays(), **options}, **SMALL)
    assert "\n" not in str(refused.value)
    assert not Path("run").exists()


def test_nothing_is_written_so_nothing_can_be_tracked():
    with pytest.raises(feddwa.InputError, match="track: got 'csv', must be left out where out=False"):
        feddwa.run(rounds=1, out=False, track=["csv"])


def test_a_damaged_copy_of_the_data_is_named():
    feddwa.run(dataset=arrays(), model="linear", out="run", **SMALL)
    copy = Path(from_toml("run/config.toml", feddwa.RunConfig).dataset)
    (copy / "x.npy").write_bytes(b"nothing")
    with pytest.raises(feddwa.InputError, match=rf"{copy}: this copy of a dataset is damaged"):
        feddwa.resume("run")


def test_a_dataset_without_owners_is_dealt_out_evenly():
    whole = as_dataset(arrays())
    plain = Dataset("mine", whole.x, whole.y, whole.train_count, 2)
    result = feddwa.run(dataset=plain, model="linear", clients=4, out="run", **SMALL)
    assert result.summary["partition"] == "iid"
    assert "own-mine-" in result.summary["dataset"]
