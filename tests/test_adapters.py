"""Low-rank adapters on a frozen base: the arithmetic, every backend and algorithm, files for peft, bad input."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import feddwa
from benchmarks import networks
from feddwa import cli, models
from feddwa.algorithms import FedAvg, FedDWA
from feddwa.build import load_task, make_network
from feddwa.config import RunConfig
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer
from feddwa.engine.network import frozen, head_name, trainable
from feddwa.errors import InputError
from feddwa.experiment import run_tasks
from feddwa.flower.settings import FlowerConfig, from_run_config, to_run_config
from feddwa.models.adapters import Lora, LowRank, adapted, merged, read
from feddwa.results import runs
from tests import torchvision_ops
from tests.algorithms.conftest import difference, federation
from tests.algorithms.conftest import models as everybody
from tests.conftest import ANYWHERE, conv_net, small_data
from tests.engine.test_networks import SIZES as FEW
from tests.engine.test_networks import engine_of
from tests.test_trained_models import COLOURS, TINY, check_accuracy, test_samples

SIZES = (13, 20, 3, 10)
SMALL = {"adapter": "lora", "adapter_arg": ("rank=2", "alpha=4")}
ADAPT = ["--adapter", "lora", "--adapter-arg", "rank=2", "--adapter-arg", "alpha=4"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_lora(network: nn.Module, **options) -> nn.Module:
    """A network with adapters that add something."""
    torch.manual_seed(1)
    network = adapted(network, Lora(**{"rank": 2, "alpha": 4.0, **options}), head_name(network))
    for part in network.modules():
        if isinstance(part, LowRank):
            nn.init.normal_(part.lora_B.weight, std=0.3)
    return network


# The arithmetic, by NumPy.


def weight_of(part: LowRank) -> np.ndarray:
    """W + (alpha / r) B A."""
    base, a, b = (value.weight.detach().double().numpy() for value in (part.base_layer, part.lora_A, part.lora_B))
    return base + 4.0 / 2 * (b.reshape(len(b), 2) @ a.reshape(2, -1)).reshape(base.shape)


def test_a_linear_layer_adds_a_low_rank_product():
    x = torch.randn(5, 7, dtype=torch.float64)
    network = with_lora(nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 3)).double())
    part = network[0]
    expected = x.numpy() @ weight_of(part).T + part.base_layer.bias.detach().numpy()
    assert np.abs(part(x).detach().numpy() - expected).max() < 1e-12
    assert np.abs(part.weight.detach().numpy() - weight_of(part)).max() < 1e-12
    assert np.linalg.matrix_rank(weight_of(part) - part.base_layer.weight.detach().numpy()) == 2


@pytest.mark.parametrize("options", [{"stride": 2, "padding": 1}, {"padding": "same", "bias": False}])
def test_a_convolution_adds_a_low_rank_product(options):
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    network = with_lora(nn.Sequential(nn.Conv2d(3, 5, 3, **options), nn.Flatten(), nn.Linear(9, 2)).double())
    part, weight = network[0], weight_of(network[0])
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    step = options.get("stride", 1)
    bias = np.zeros(5) if part.base_layer.bias is None else part.base_layer.bias.detach().numpy()
    found = part(x).detach().numpy()
    for (n, o, i, j), value in np.ndenumerate(found):
        window = padded[n, :, i * step : i * step + 3, j * step : j * step + 3]
        assert abs((window * weight[o]).sum() + bias[o] - value) < 1e-12
    assert found.shape[2:] == ((3, 3) if step == 2 else (6, 6))


def test_the_gradients_are_those_of_the_product():
    """dL/dB = s G A^T and dL/dA = s B^T G, where G is the gradient of the whole weight."""
    network, x = (
        with_lora(nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)).double()),
        torch.randn(5, 7).double(),
    )
    network(x).square().sum().backward()
    part, head = network[0], network[2].weight.detach().numpy()
    a, b = (value.weight.detach().numpy() for value in (part.lora_A, part.lora_B))
    hidden = np.tanh(x.numpy() @ weight_of(part).T + part.base_layer.bias.detach().numpy())
    outputs = hidden @ head.T + network[2].bias.detach().numpy()
    whole = ((2 * outputs @ head) * (1 - hidden**2)).T @ x.numpy()  # G
    assert np.allclose(part.lora_B.weight.grad, 2 * whole @ a.T, rtol=1e-10)
    assert np.allclose(part.lora_A.weight.grad, 2 * b.T @ whole, rtol=1e-10)
    assert part.base_layer.weight.grad is None
    assert network[2].weight.grad is not None


def test_at_first_the_network_is_the_base_and_a_is_drawn_from_the_seed():
    def network(seed, **options):
        config = RunConfig(clients=4, model="mlp", seed=seed, **options).resolved()
        return make_network(config, load_task(config).dataset)

    first, base, x = network(3, **SMALL), network(3), torch.randn(4, 1, 8, 8)
    assert torch.equal(first(x), base(x))
    a = first.body.fc0.lora_A.weight
    assert a.abs().max() <= 1 / 8  # of Kaiming's uniform with a = sqrt(5) on 64 inputs
    assert 0.9 < a.std() / (1 / 8 / 3**0.5) < 1.1
    assert torch.equal(a, network(3, **SMALL).body.fc0.lora_A.weight)
    assert not torch.equal(a, network(4, **SMALL).body.fc0.lora_A.weight)
    assert not first.body.fc0.lora_B.weight.any()


def test_names_are_those_of_peft_and_only_adapters_and_the_head_are_trained():
    network = with_lora(models.make("digits-cnn", (1, 8, 8), 10))
    layers = [f"body.conv{i}.lora_{factor}.weight" for i in (0, 1) for factor in "AB"]
    assert list(trainable(network)) == [*layers, "head.weight", "head.bias"]
    assert [tuple(network.get_parameter(name).shape) for name in layers] == [
        (2, 1, 3, 3), (16, 2, 1, 1), (2, 16, 3, 3), (32, 2, 1, 1),
    ]  # fmt: skip
    assert set(frozen(network)) == {f"body.conv{i}.base_layer.{own}" for i in (0, 1) for own in ("weight", "bias")}


def test_targets_and_saved_layers_are_named_as_peft_names_them():
    pytest.importorskip("transformers")
    names = lambda **options: list(trainable(with_lora(networks.make("bert", tiny=True), **options)))  # noqa: E731
    query = "network.bert.encoder.layer.0.attention.self.query"
    head = ["network.classifier.weight", "network.classifier.bias"]
    assert names(targets=("query",)) == [f"{query}.lora_A.weight", f"{query}.lora_B.weight", *head]
    assert names(targets=("self.query",), save=("none",)) == [f"{query}.lora_A.weight", f"{query}.lora_B.weight"]
    both = names(targets=("query",), save=("head", "pooler"))
    assert [name for name in both if "lora" not in name] == ["network.bert.pooler.dense.weight",
                                                            "network.bert.pooler.dense.bias", *head]  # fmt: skip
    assert sum("lora_A" in name for name in names()) == 7  # of one layer six, and the pooler's


def test_layers_that_are_never_called_are_left_alone_and_weights_that_are_read_are_whole():
    """In evaluation mode torch's transformer reads the weights of its layers instead of calling them."""
    network = with_lora(networks.make("transformer", tiny=True)).eval()
    assert not any("self_attn" in name for name in trainable(network))
    x = torch.randn(3, 5, 4)
    with torch.no_grad():
        fast = network(x)
    assert torch.allclose(fast, network(x), atol=1e-6)  # with gradients layers are called
    assert torch.allclose(fast, merged(network)(x), atol=1e-6)


def test_a_layer_with_two_names_is_adapted_once():
    shared = nn.Linear(4, 4)
    network = with_lora(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2)))
    assert network[0] is network[2]
    x = torch.randn(3, 4)
    expected = network(x)
    assert torch.allclose(merged(network)(x), expected, atol=1e-6)
    assert network[0] is network[2] is shared


# Every backend and algorithm.

CASES = {
    "mlp": lambda: models.make("mlp", (1, 8, 8), 10),
    "digits-cnn": lambda: models.make("digits-cnn", (1, 8, 8), 10),
    "batchnorm": conv_net,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("algorithm", [FedAvg, FedDWA])
def test_a_stack_of_adapters_is_the_plain_loop(name, algorithm):
    def network():
        torch.manual_seed(0)
        return with_lora(CASES[name]())

    found = []
    for options in ({"sequential": True}, {"chunk": 3}):
        run = federation(algorithm(), network, small_data(SIZES), participation=0.75, **options)
        start = {key: value.clone() for key, value in frozen(run.engine.module).items()}
        for _ in range(3):
            run.step()
        found.append(everybody(run))
        assert all(torch.equal(value, frozen(run.engine.module)[key]) for key, value in start.items())
    assert difference(*found) < 1e-9
    begun = trainable(network())
    assert all((found[0]["model"][key] - value).abs().max() > 1e-4 for key, value in begun.items())


@pytest.mark.parametrize("name", ["transformer", "char-transformer", pytest.param("bert", marks=pytest.mark.slow)])
def test_a_transformer_with_adapters_is_the_plain_loop(name):
    """torch's TransformerEncoder, a causal one for the next character, a BERT of transformers; all with dropout."""
    if networks.NETWORKS[name].left_out:
        pytest.skip(networks.NETWORKS[name].left_out)
    plain = engine_of(name)
    engine = Engine(with_lora(plain.module), plain.data, Settings(2, 4, 0.1), 0, dtype=torch.float64)
    ids, (model, buffers) = torch.arange(len(FEW)), engine.initial()
    stack = {key: value.expand(len(FEW), *value.shape).clone() for key, value in model.items()}
    memory = {"buffers": {key: value.expand(len(FEW), *value.shape).clone() for key, value in buffers.items()}}
    both = [kind(engine, ids, 1).sgd(stack, memory)[0] for kind in (Trainer, SequentialTrainer)]
    assert difference({"model": both[0]}, {"model": both[1]}) < 1e-9
    assert both[0].keys() == trainable(engine.module).keys()
    assert all((both[0][key] - stack[key]).abs().max() > 1e-6 for key in stack if "lora_B" in key)


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_every_algorithm_trains_adapters_alone_and_stores_them(algorithm):
    """The models read back, adapters merged, give the evaluated accuracies; the base is in the file once."""
    result = feddwa.run(algorithm=algorithm, out="run", **TINY, **SMALL)
    trained = runs.read_models(Path("run"))
    for client, (x, y) in enumerate(test_samples("run")):
        with torch.no_grad():
            scores = trained.model(client)(x)
        assert torch.equal(result.model(client)(x), scores)
        check_accuracy(trained, client, scores, y)
    with safe_open("run/models.safetensors", "pt") as file:
        shapes = {name: file.get_tensor(name).shape for name in file.keys()}  # noqa: SIM118
    base = [shape for name, shape in shapes.items() if "base_layer" in name]
    assert len(base) == 2  # a weight and a bias, also of FedEM's three networks
    assert {shape[0] for shape in base} == {1}
    assert any("lora_B" in name for name in shapes)


def test_traffic_is_that_of_the_adapters_and_the_head():
    result = feddwa.run(algorithm="fedavg", out=False, **TINY, **SMALL)
    own = 4 * (2 * 64 + 64 * 2 + 64 * 10 + 10)  # A, B, and the head, in float32
    assert result.summary["bytes_up_per_client_round"] == result.summary["bytes_down_per_client_round"] == own
    bare = feddwa.run(algorithm="fedavg", out=False, adapter="lora", adapter_arg=("rank=2", "save=none"), **TINY)
    assert bare.summary["bytes_up_per_client_round"] == 4 * (2 * 64 + 64 * 2)
    head = bare.models["head.weight"]
    assert torch.equal(head[0], head[3])


def test_runs_with_other_adapters_share_no_program():
    options = {"clients": 4, "rounds": 2, "partition": "iid", "adapter": "lora", "model": "mlp"}
    configs = [RunConfig(adapter_arg=(f"alpha={alpha}",), out=f"a{alpha}", **options).resolved() for alpha in (1, 64)]
    task = load_task(configs[0])
    found = run_tasks(configs, [task, task])
    for config, result in zip(configs, found, strict=True):
        config = dataclasses.replace(config, out=f"alone-{config.out}")
        alone = run_tasks([config], [load_task(config)])[0]
        assert all(torch.equal(value, alone.models[name]) for name, value in result.models.items())
    assert not torch.equal(found[0].models["head.weight"], found[1].models["head.weight"])


def test_a_run_that_was_interrupted_goes_on():
    def stop(line):
        if line["round"] == 2:
            raise InterruptedError

    options = {**TINY, **SMALL, "rounds": 4}
    with pytest.raises(InterruptedError):
        feddwa.run(**options, out="stopped", observe=stop)
    resumed, whole = feddwa.resume("stopped"), feddwa.run(**options, out="whole")
    assert all(torch.equal(value, whole.models[name]) for name, value in resumed.models.items())


# Commands and files.


@pytest.fixture
def run(tmp_path):
    """A run of FedDWA on digits with adapters."""
    feddwa.run(out="run", model="digits-cnn", **TINY, **SMALL)
    return "run"


def test_the_commands_take_a_run_with_adapters(run, capsys):
    x, y = test_samples(run)[1]
    np.savez("new.npz", x=x.numpy(), y=y.numpy())
    assert cli.main(["predict", run, "new.npz", "--client", "1"]) == 0
    told = capsys.readouterr().err
    assert f"accuracy: {runs.read_models(Path(run)).card.accuracy[1]:.4g} %" in told
    assert cli.main(["adapt", run, "--data", "new.npz", "--epochs", "2", "-o", "newcomer"]) == 0
    assert cli.main(["export", "newcomer", "-o", "out", "--format", "peft"]) == 0
    assert cli.main(["report", run]) == 0
    assert cli.main(["run", "--config", f"{run}/config.toml", "--adapter-arg", "rank=1", "--out", "less"]) == 0
    assert runs.read_config(Path("less")).adapter_arg == ("rank=1", "alpha=4.0", "save=head")
    assert cli.main(["doctor", "--config", f"{run}/config.toml"]) == 0
    told = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "network digits-cnn with 6,492 parameters, 1,692 of them trained, on cpu" in told
    config = FlowerConfig(adapter="lora", adapter_arg=("targets=fc0,fc1", "rank=3"))
    assert from_run_config(to_run_config(config)) == config


@pytest.mark.parametrize("algorithm", ["gpfl", "fedem"])
def test_layers_that_a_method_adds_and_adapters_go_together_for_a_newcomer(algorithm, capsys):
    feddwa.run(algorithm=algorithm, out="run", **TINY, **SMALL)
    x, y = test_samples("run")[1]
    np.savez("new.npz", x=x.numpy(), y=y.numpy())
    assert cli.main(["adapt", "run", "--data", "new.npz", "--epochs", "2", "-o", "newcomer"]) == 0
    assert cli.main(["predict", "newcomer", "new.npz"]) == 0
    run, newcomer = (runs.read_models(Path(name)) for name in ("run", "newcomer"))
    base = [name for name in run.stack if "base_layer" in name]
    assert base
    assert all(torch.equal(newcomer.stack[name][0], run.stack[name][0]) for name in base)


def test_an_exported_network_is_one_without_adapters(run):
    assert cli.main(["export", run, "--client", "2", "-o", "two.safetensors"]) == 0
    values = load_file("two.safetensors")
    assert values.keys() == models.make("digits-cnn", (1, 8, 8), 10).state_dict().keys()
    result = feddwa.resume(run)
    rows = {name: value[2].double().numpy() for name, value in result.models.items()}
    product = rows["body.conv1.lora_B.weight"].reshape(32, 2) @ rows["body.conv1.lora_A.weight"].reshape(2, -1)
    expected = rows["body.conv1.base_layer.weight"] + 2 * product.reshape(32, 16, 3, 3)
    assert np.abs(values["body.conv1.weight"].numpy() - expected).max() < 1e-6
    again = feddwa.run(model="digits-cnn@two.safetensors", out=False, **{**TINY, "rounds": 1, "lr": 0.0})
    x = test_samples(run)[0][0]
    assert torch.equal(again.predict(0, x), result.predict(2, x))


def test_an_adapter_is_exported_as_peft_writes_it(run):
    assert cli.main(["export", run, "--client", "2", "--format", "peft", "-o", "two"]) == 0
    config = json.loads(Path("two/adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4.0)
    assert config["target_modules"] == ["body.conv0", "body.conv1"]
    assert config["modules_to_save"] == ["head"]
    values, rows = load_file("two/adapter_model.safetensors"), feddwa.resume(run).models
    prefix = "base_model.model."
    assert values.keys() == {prefix + name for name in rows if "base_layer" not in name}
    assert all(torch.equal(value, rows[name.removeprefix(prefix)][2]) for name, value in values.items())
    base = load_file("two/base_model.safetensors")
    assert base.keys() == {f"body.conv{i}.{own}" for i in (0, 1) for own in ("weight", "bias")}
    assert torch.equal(base["body.conv1.bias"], rows["body.conv1.base_layer.bias"][0])


def test_all_adapters_are_exported_beside_one_base(run, capsys):
    assert cli.main(["export", run, "--format", "peft", "-o", "all"]) == 0
    files = sorted(path.relative_to("all").as_posix() for path in Path("all").rglob("*.*"))
    own = [f"{client}/adapter_{file}" for client in range(4) for file in ("config.json", "model.safetensors")]
    assert files == sorted([*own, "base_model.safetensors", "index.json"])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft and transformers about each other
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("kind", ["cnn", "batchnorm", "bert"])
def test_peft_loads_an_exported_adapter_and_gives_its_outputs(kind, monkeypatch):
    torchvision_ops.declare()
    import peft

    from tests.test_libraries import TINY as BERT

    if kind == "bert":
        from transformers import AutoModelForSequenceClassification, BertConfig

        Path("bert").mkdir()
        Path("bert/config.json").write_text(json.dumps(BERT))
        rng = np.random.default_rng(0)
        owner = np.repeat(["a", "b"], 20)
        np.savez("tokens.npz", tokens=rng.integers(1, 30, (40, 8)), y=np.arange(40) % 2, client=owner)
        options = {"dataset": "tokens.npz", "model": "hf:bert", "rounds": 2, "lr": 0.5, "batch_size": 8}
        options["backend"] = "sequential"  # its mask branches on values
        base = AutoModelForSequenceClassification.from_config(BertConfig(**BERT, num_labels=2))
        x = torch.from_numpy(rng.integers(1, 30, (6, 8)))
    elif kind == "batchnorm":
        options, base = {**COLOURS, "rounds": 2}, models.make("resnet8-gkt", (3, 8, 8), 3)
        x = torch.randint(0, 255, (6, 3, 8, 8), dtype=torch.uint8)
    else:
        options, base = {**TINY, "model": "digits-cnn"}, models.make("digits-cnn", (1, 8, 8), 10)
        x = torch.randn(6, 1, 8, 8)
    result = feddwa.run(out="run", **options, **SMALL)
    assert cli.main(["export", "run", "--client", "1", "--format", "peft", "-o", "one"]) == 0
    unknown = base.load_state_dict(load_file("one/base_model.safetensors"), strict=False).unexpected_keys
    assert not unknown
    loaded = peft.PeftModel.from_pretrained(base, "one").eval()
    network = result.deployed(1)
    network.network = loaded
    assert torch.allclose(network(x), result.predict(1, x), atol=1e-5)
    with loaded.disable_adapter():
        assert not torch.allclose(network(x), result.predict(1, x), atol=1e-3)


# Bad input, in one line.


class Ambiguous(nn.Module):
    """Two layers whose names end alike."""

    def __init__(self, shape, classes):
        super().__init__()
        self.subhead, self.head = nn.Linear(64, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(torch.relu(self.subhead(x.flatten(1))))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--adapter", "ia3"], "--adapter: got 'ia3', must be one of lora"),
        (["--adapter-arg", "rank=2"], "--adapter-arg: needs an adapter; give --adapter lora, or leave it out"),
        ([*ADAPT[:2], "--adapter-arg", "rank=0"], "--adapter-arg rank: got 0, must be at least 1"),
        ([*ADAPT[:2], "--adapter-arg", "rank=65"], "--adapter-arg rank: got 65, must be at most 64: no target has"),
        ([*ADAPT[:2], "--adapter-arg", "rank=x"], "--adapter-arg rank: got 'x', must be a whole number"),
        ([*ADAPT[:2], "--adapter-arg", "alpha=nan"], "--adapter-arg alpha: got nan, must be a finite number above 0"),
        ([*ADAPT[:2], "--adapter-arg", "r=8"], "--adapter-arg r: lora has no such argument; valid: rank, alpha"),
        ([*ADAPT, "--adapter-arg", "targets=fc7"], "--adapter-arg targets: got 'fc7', must be names of linear and"),
        ([*ADAPT, "--adapter-arg", "targets=head"], "not trained in full: body.fc0"),
        ([*ADAPT, "--adapter-arg", "save=fc7"], "--adapter-arg save: got 'fc7', must be none, head, or layers of"),
        ([*ADAPT, "--model", "linear"], "--adapter lora: the network has no linear and no 2-d convolutional layer"),
        *(([*ADAPT, "--adapter-arg", "save=none", "--algorithm", name], told) for name, told in (
            ("fedper", "--param head: got 'last', must be names of layers: this network has no linear layer that is"),
            ("fedcp", "algorithm fedcp: needs a network whose outputs are those of its last linear layer, one that is"),
            ("gpfl", "algorithm gpfl: needs a network whose outputs are those of its last linear layer, one that is"),
        )),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_said_in_one_line(words, told, capsys):
    assert cli.main(["run", "--clients", "4", "--rounds", "1", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert not Path("runs").exists()


def test_convolutions_that_peft_adapts_in_another_way_are_no_targets():
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    assert [name for name, part in with_lora(network).named_modules() if isinstance(part, LowRank)] == ["0"]


def test_what_peft_cannot_hold_is_not_exported_to_it(capsys):
    feddwa.run(out="plain", **TINY)
    feddwa.run(out="fedem", algorithm="fedem", **TINY, **SMALL)
    feddwa.run(out="alike", model=Ambiguous, **TINY, **SMALL)
    capsys.readouterr()
    for name, told in (
        ("plain", "--format peft: the run trained whole networks; an adapter comes from --adapter lora"),
        ("fedem", "--format peft: fedem adds layers to the network, which peft cannot hold"),
        ("alike", "--format peft: peft would take layer subhead for head; give them unlike names"),
    ):
        assert cli.main(["export", name, "--client", "0", "--format", "peft", "-o", "out"]) == 2
        assert told in capsys.readouterr().err
        assert not Path("out").exists()


def test_entries_say_the_same_when_they_are_read_again():
    for entries in ((), ("rank=3", "targets=a,b.c", "save=none"), ("alpha=0.1", "save=head,x")):
        assert read(read(entries).entries).entries == read(entries).entries
    with pytest.raises(InputError, match="the only value of rank; it is given twice"):
        read(("rank=1", "rank=2"))
