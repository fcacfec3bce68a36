"""The configuration: defaults, checks, and TOML that reads back to itself."""

import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.config_file import from_toml, to_toml
from feddwa.data.partition import PARTITIONS
from feddwa.defences import DEFENCES
from feddwa.errors import InputError


def test_defaults_depend_on_the_dataset():
    digits, cifar = RunConfig().resolved(), RunConfig(dataset="cifar10", partition="groups").resolved()
    assert (digits.model, digits.clients, digits.rounds, digits.batch_size, digits.lr) == (
        "digits-mlp",
        20,
        40,
        10,
        0.1,
    )
    assert (cifar.model, cifar.clients, cifar.rounds, cifar.batch_size, cifar.lr) == ("cifar-cnn", 20, 100, 20, 0.01)
    assert "groups.dominant_classes=3" in cifar.param  # the paper's number for this dataset
    assert RunConfig(dataset="cifar10", rounds=7, lr=0.5).resolved().rounds == 7


def test_a_natural_partition_has_as_many_clients_as_the_data():
    assert RunConfig(partition="natural").resolved().clients is None
    assert RunConfig(partition="natural", clients=3).resolved().clients == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resolving_tells_every_hyper_parameter_and_is_final(algorithm):
    config = RunConfig(algorithm=algorithm).resolved()
    parts = {algorithm: ALGORITHMS[algorithm](), **{name: DEFENCES[name]() for name in config.defences}}
    own = {f"{name}.{key}" for name, part in parts.items() for key in dataclasses.asdict(part)}
    assert {entry.split("=")[0] for entry in config.param} == own | {"rotations.groups"}
    assert config.make_algorithm() == ALGORITHMS[algorithm]()
    assert config.resolved() == config


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_partitions_parameters_survive_the_file(partition, tmp_path):
    config = RunConfig(dataset="cifar100", partition=partition).resolved()
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert from_toml(tmp_path / "config.toml", RunConfig).resolved() == config


@given(
    st.builds(
        RunConfig,
        dataset=st.sampled_from(["digits", "cifar10", 'daten/kürbis 😀 "x" \\.csv']),
        clients=st.none() | st.integers(2, 10**6),
        participation=st.floats(0.5, 1),
        lr=st.none() | st.just("auto") | st.floats(0, 1e6),
        model=st.just("mlp"),
        model_arg=st.sampled_from([(), ("hidden=8,4", "dropout=0.5")]),
        adapter=st.sampled_from([None, "lora"]),
        seed=st.integers(0, 2**63 - 1),
        chunk=st.none() | st.integers(1, 10),
        backend=st.sampled_from(["vectorised", "sequential", "auto"]),
        partition=st.sampled_from(["rotations", "label-permutation"]),
        param=st.sampled_from([(), ("top_k=3",), ("feddwa.guidance=last", "groups=2")]),
    )
)
def test_toml_reads_back_to_itself(config):
    resolved = config.resolved()
    kept = tomllib.loads(to_toml(resolved))
    kept |= {key: tuple(kept[key]) for key in ("param", "model_arg", "adapter_arg", "metrics", "track", "callbacks")}
    assert kept.pop("version") == 1
    assert RunConfig(**kept) == resolved
    assert "out" not in tomllib.loads(to_toml(dataclasses.replace(resolved, out="runs/x")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "magic"}, "--algorithm: unknown name 'magic'; valid: local, fedavg"),
        ({"model": "big"}, "--model: unknown name 'big'; valid: cifar-cnn"),
        ({"partition": "fair"}, "--partition: unknown name 'fair'; valid: pathological, groups"),
        ({"device": "tpu"}, "--device: unknown name 'tpu'; valid: auto, cpu, cuda"),
        ({"backend": "fast"}, "--backend: unknown name 'fast'; valid: vectorised, sequential, auto"),
        ({"dtype": "int8"}, "--dtype: unknown name 'int8'; valid: float32"),
        ({"clients": 0}, "--clients: got 0, must be at least 1"),
        ({"rounds": 0}, "--rounds: got 0, must be at least 1"),
        ({"epochs": 0}, "--epochs: got 0, must be at least 1"),
        ({"batch_size": 0}, "--batch-size: got 0, must be at least 1"),
        ({"chunk": 0}, "--chunk: got 0, must be at least 1"),
        ({"participation": 0}, "--participation: got 0.0, must be above 0 and at most 1"),
        ({"participation": 1.5}, "--participation: got 1.5, must be above 0 and at most 1"),
        ({"participation": float("nan")}, "--participation: got nan, must be above 0"),
        ({"participation": 0.01}, "--participation: got 0.01, must be at least 1/20"),
        ({"lr": -0.1}, "--lr: got -0.1, must be a finite number, 0 or more"),
        ({"lr": float("nan")}, "--lr: got nan, must be a finite number"),
        ({"lr": float("inf")}, "--lr: got inf, must be a finite number"),
        ({"seed": -1}, "--seed: got -1, must be from 0"),
        ({"seed": 2**63}, "--seed: got 9223372036854775808, must be at most 9,223,372,036,854,775,807"),
        ({"rounds": "3"}, "--rounds: got '3', must be a whole number"),
        ({"rounds": 2.5}, "--rounds: got 2.5, must be a whole number"),
        ({"epochs": None}, "--epochs: got None, must be a whole number"),
        ({"dataset": 3}, "--dataset: got 3, must be a string"),
        ({"param": "top_k=3"}, "--param: got 'top_k=3', must be a list of strings"),
        ({"param": ("top_k",)}, "--param: got 'top_k', must be of the form KEY=VALUE"),
        ({"param": ("top_k=0",)}, "--param top_k: got 0, must be at least 1"),
        ({"param": ("top_k=few",)}, "--param top_k: got 'few', must be a whole number"),
        ({"param": ("k=3",)}, "valid for feddwa: top_k, guidance, guidance_epochs"),
        ({"param": ("fedavg.k=3",)}, "--param fedavg.k=3: fedavg is not part of this run; valid: feddwa, rotations"),
        (
            {"partition": "dirichlet", "param": ("alpha=-1",)},
            "--param alpha: got -1.0, must be a finite number above 0",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(options, message):
    with pytest.raises(InputError) as refused:
        RunConfig(**options).resolved()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_two_have_must_say_whose():
    both = {"algorithm": "fedamp", "partition": "dirichlet"}
    with pytest.raises(InputError, match=r"fedamp and dirichlet both have it; write fedamp\.alpha="):
        RunConfig(**both, param=("alpha=1",)).resolved()
    config = RunConfig(**both, param=("fedamp.alpha=2", "dirichlet.alpha=3")).resolved()
    assert {"fedamp.alpha=2.0", "dirichlet.alpha=3.0"} <= set(config.param)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "not a TOML file"),
        ("rounds = \xe9".encode("latin-1"), "not a TOML file"),
        ("round = 3", "unknown name 'round'; valid: label, client"),
        ("rounds = '3'", "rounds: got '3', must be a whole number"),
        ("rounds = [3]", "rounds: got [3], must be a whole number"),
        ("lr = true", "lr: got True, must be a number"),
        ("param = 'top_k=3'", "param: got 'top_k=3', must be a list of strings"),
        ("param = [3]", "param: got [3], must be a list of strings"),
        ("[rounds]\na = 1", "rounds: got {'a': 1}, must be a whole number"),
    ],
)
def test_bad_files_are_refused_by_name(text, message, tmp_path):
    file = tmp_path / "c.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as refused:
        from_toml(file, RunConfig)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"--config {file}: ")


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(InputError, match=r"--config .*: (No such file|Is a directory)"):
            from_toml(path, RunConfig)
