"""Bad input everywhere: whatever is asked or read, the answer is a result or one clear line. Never a traceback, a hang.

How many cases were tried is printed at the end of the tests (tests/conftest.py).
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feddwa
from feddwa import checkpoint, cli
from feddwa.algorithms import ALGORITHMS
from feddwa.config import BACKENDS, RunConfig
from feddwa.config_file import from_toml
from feddwa.data.files import Tree
from feddwa.data.own import load_own
from feddwa.data.partition import PARTITIONS
from feddwa.errors import InputError
from feddwa.params import fields_of
from feddwa.results import runs
from tests.conftest import FUZZED

SRC = Path(feddwa.__file__).parent
MANY = settings(
    max_examples=int(os.environ.get("FEDDWA_FUZZ", "60")), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip
WEIRD = st.sampled_from(
    ["", "0", "-1", "1", "2", "0.5", "nan", "inf", "-inf", "1e400", "9" * 20, "true", "none", "a,b", "=", "../..", "é"]
)
SLOW = (
    "guidance_epochs",
    "inner_steps",
    "mixing_steps",
    "tune_epochs",
    "adapt_steps",
)  # work that one may well ask for


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Sixty labelled points, three owners: a round of anything on it takes no time."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    y = np.arange(60) % 3
    np.savez(path, x=(rng.normal(size=(60, 6)) + y[:, None]).astype(np.float32), y=y, client=np.arange(60) // 20)
    return path


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory) -> Path:
    """A run that is done."""
    folder = tmp_path_factory.mktemp("fuzzed")
    feddwa.run(dataset=str(tiny), partition="iid", clients=3, rounds=2, out=str(folder / "run"), device="cpu")
    return folder / "run"


@pytest.fixture(scope="module")
def cut(tiny, tmp_path_factory) -> Path:
    """A run that was interrupted after two rounds."""
    folder = tmp_path_factory.mktemp("fuzzed")

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(
            dataset=str(tiny), partition="iid", clients=3, rounds=3, out=str(folder / "run"), observe=stop, device="cpu"
        )
    return folder / "run"


@contextlib.contextmanager
def one_line():
    """It works, or it is bad input that is said in one line."""
    try:
        yield
    except InputError as error:
        if "\n" in str(error):
            raise


def call(arguments: list[str]) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = cli.main(arguments)
    return status, errors.getvalue()


def params() -> st.SearchStrategy[str]:
    known = {key for kind in (*ALGORITHMS.values(), *PARTITIONS.values()) for key in fields_of(kind)} - set(SLOW)
    names = st.sampled_from(sorted(known)) | st.sampled_from(["", "feddwa.top_k", "iid.", "magic"])
    return st.builds("{}={}".format, names, WEIRD)


def options() -> st.SearchStrategy[dict[str, str]]:
    numbers = ("clients", "participation", "batch-size", "lr", "seed", "chunk", "checkpoint-every")
    faults = st.sampled_from(["dropout=1", "nan=0.5", "random=0.4,scaled=0.4", "dropout", "x=1", "dropout=2", ""])
    chosen: dict[str, st.SearchStrategy[str]] = {
        "algorithm": st.sampled_from([*ALGORITHMS]) | WEIRD,
        "partition": st.sampled_from([*PARTITIONS]) | WEIRD,
        "model": st.sampled_from(["mlp", "linear", "cifar-cnn"]) | WEIRD,
        "dtype": st.sampled_from(["float32", "float64", "bfloat16", "int8"]),
        "backend": st.sampled_from([*BACKENDS, "fast"]),
        "batchnorm": st.sampled_from(["local", "mean", "all-local", "none"]),
        "fault": faults,
        **dict.fromkeys(numbers, WEIRD),
    }
    return st.lists(st.sampled_from([*chosen]), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: chosen[name] for name in names})
    )


@MANY
@given(given_options=options(), given_params=st.lists(params(), max_size=2))
def test_any_options_run_or_are_one_line(given_options, given_params, tiny, tmp_path_factory, monkeypatch):
    FUZZED["command line"] += 1
    folder = tmp_path_factory.mktemp("cli")
    monkeypatch.chdir(folder)
    usual = {"dataset": str(tiny), "partition": "iid", "clients": "3", "rounds": "1", "device": "cpu", "out": "run"}
    flags = [f"--{name}={value}" for name, value in (usual | given_options).items()]
    status, errors = call(["run", *flags, *(f"--param={entry}" for entry in given_params)])
    assert status in (0, 1, 2), errors
    if status == 1:  # it ran, and nothing came of it
        assert re.fullmatch(r"feddwa: failed: .+: (nothing was trained|the loss is no finite number).+\n", errors), (
            errors
        )
        assert (folder / "run" / "record.json").exists()
    if status == 2:
        assert re.fullmatch(r"feddwa: .+\n", errors), errors
        assert "--" in errors or "algorithm" in errors or "partition" in errors or "model" in errors, errors
        assert not (folder / "run" / "metrics.jsonl").exists()
    shutil.rmtree(folder)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.text(max_size=5))


@MANY
@given(values=st.dictionaries(st.sampled_from([*fields_of(RunConfig), "version", "colour"]), VALUES, max_size=4))
def test_any_python_values_resolve_or_are_one_line(values):
    FUZZED["configurations"] += 1
    unknown = not values.keys() <= fields_of(RunConfig).keys()
    with pytest.raises(TypeError, match="unexpected keyword") if unknown else one_line():
        RunConfig(**values).resolved()


@MANY
@given(
    text=st.text(max_size=60)
    | st.lists(
        st.builds(
            "{} = {}".format, st.sampled_from([*fields_of(RunConfig), "version", "colour"]),
            st.sampled_from(["1", "-1", "1.5", "true", '"x"', '"\\u0000"', "[]", '["a=1"]', "nan", "{}", "1979-05-27"]),
        )
    ).map("\n".join)
)  # fmt: skip
def test_any_configuration_file_is_read_or_is_one_line(text, tmp_path_factory):
    FUZZED["configuration files"] += 1
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InputError):
        from_toml(path, RunConfig).resolved()


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """The bytes cut, flipped, with something put in, or others altogether."""
    place, some = st.integers(0, max(0, len(data) - 1)), st.binary(max_size=12)
    return st.one_of(
        place.map(lambda p: data[:p]),
        st.tuples(place, st.integers(1, 255)).map(
            lambda c: data[: c[0]] + bytes([data[c[0]] ^ c[1]]) + data[c[0] + 1 :]
        ),
        st.tuples(place, some).map(lambda c: data[: c[0]] + c[1] + data[c[0] :]),
        st.binary(max_size=80),
        st.sampled_from([b"", b"{}\n", b"[]\n", b"null\n", b'{"round": "x"}\n', b"\xff\xfe"]),
    )


@MANY
@given(data=st.data(), which=st.sampled_from(["finished", "cut"]))
def test_any_run_directory_is_continued_or_is_one_line(data, which, finished, cut, tmp_path_factory):
    FUZZED["run directories"] += 1
    folder = tmp_path_factory.mktemp("directory") / "run"
    shutil.copytree(finished if which == "finished" else cut, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    victim = data.draw(st.sampled_from(files), label="file")
    if data.draw(st.booleans(), label="removed"):
        victim.unlink()
    else:
        victim.write_bytes(data.draw(damaged(victim.read_bytes())))
    with contextlib.redirect_stderr(io.StringIO()), one_line():
        assert feddwa.resume(folder).summary["accuracy"]
    shutil.rmtree(folder.parent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3),
    max_leaves=8,
)


@MANY
@given(
    about=JSON
    | st.fixed_dictionaries({"version": st.just(checkpoint.VERSION), "round": JSON, "shapes": JSON, "facts": JSON}),
    tensor=st.fixed_dictionaries({"dtype": st.sampled_from(["F32", "I64", "X9"]), "shape": JSON, "data_offsets": JSON}),
)
def test_any_checkpoint_is_read_or_a_warning(about, tensor, tmp_path_factory):
    """With the right sum: what a stranger could put there."""
    FUZZED["checkpoints"] += 1
    header = json.dumps({"__metadata__": {"feddwa": json.dumps(about)}, "x": tensor}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(16)
    folder, told = tmp_path_factory.mktemp("checkpoint"), []
    (folder / f"round-000003-{hashlib.sha256(content).hexdigest()}.safetensors").write_bytes(content)
    found = checkpoint.latest(folder, told.append)
    assert (found is None) == (len(told) == 1)


def arrays() -> st.SearchStrategy[np.ndarray]:
    kinds = st.sampled_from(["f4", "f8", "u1", "i8", "?", "U3", "c8", "M8[s]", "S2"])
    shapes = st.lists(st.integers(0, 5), max_size=4)
    return st.builds(lambda kind, shape, fill: np.full(shape, fill).astype(kind), kinds, shapes, st.integers(0, 3))


@MANY
@given(content=st.dictionaries(st.sampled_from(["x", "y", "client", "z"]), arrays()), data=st.data())
def test_any_npz_is_data_or_is_one_line(content, data, tmp_path_factory):
    FUZZED["npz"] += 1
    path = tmp_path_factory.mktemp("npz") / "data.npz"
    np.savez(path, **content)
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    read_own(path)


COLUMNS = st.lists(st.integers(0, 3), min_size=4, max_size=4).flatmap(
    lambda n: st.sampled_from(
        [
            n,
            [float(v) for v in n],
            [str(v) for v in n],
            [None, *n[1:]],
            [[v] for v in n],
            [b"x"] * 4,
            [float("nan")] * 4,
        ]
    )
)


@MANY
@given(
    content=st.dictionaries(st.sampled_from(["label", "client", "a", "image", "img"]), COLUMNS, min_size=1),
    data=st.data(),
)
def test_any_parquet_is_data_or_is_one_line(content, data, tmp_path_factory):
    FUZZED["Parquet"] += 1
    path = tmp_path_factory.mktemp("parquet") / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table(content), path)
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    read_own(path)


def read_own(path: Path) -> None:
    with one_line():
        dataset = load_own(path)
        assert len(dataset.x) == len(dataset.y)


# Archives and pickles.


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_outside_of_an_archive_stay_where_they_are(kind, tmp_path):
    """Archives are read in memory: nothing is ever unpacked, and names that lead outside are not listed."""
    names = ["../evil", "a/../../evil", "good/file", "/tmp/feddwa-evil"]
    path = tmp_path / "inside" / f"archive.{kind}"
    path.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
    else:
        with tarfile.open(path, "w") as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 1
                tar.addfile(info, io.BytesIO(b"x"))
            link = tarfile.TarInfo("good/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    tree = Tree(path)
    assert "good/file" in tree.names
    assert not [name for name in tree.names if ".." in name or "link" in name]
    assert [tree.read(name) for name in tree.names] == [b"x"] * len(tree.names)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {path}
    assert not Path("/tmp/feddwa-evil").exists()


def test_nothing_is_pickled():
    """The readers of pickles are those of CIFAR's files and of torch's files of parameters: they build arrays only."""
    loaders = re.compile(r"\bimport pickle|torch\.load|joblib|allow_pickle=True|weights_only")
    users = [path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if loaders.search(path.read_text())]
    assert sorted(users) == ["data/originals.py", "models/weights.py"]
    assert re.findall(r"torch\.load\(.*\)", (SRC / "models/weights.py").read_text()) == [
        'torch.load(file, map_location="cpu", weights_only=True)'
    ]
    text = (SRC / "data/originals.py").read_text()
    assert "class _ArraysOnly(pickle.Unpickler)" in text
    assert not re.search(r"pickle\.(load|loads|dump|dumps|Pickler)\b", text)


def test_the_directory_of_the_fuzzers_is_a_real_run(finished, cut):
    """What they damage is sound before."""
    assert runs.read_record(finished) is not None
    assert runs.unfinished(cut)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        copy = cut.parent / "copy"
        shutil.copytree(cut, copy)
        assert len(feddwa.resume(copy).metrics) == 4
    assert errors.getvalue() == ""
