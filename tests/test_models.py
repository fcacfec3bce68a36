"""The networks: sizes to the parameter, cost, the head, and what they refuse."""

import dataclasses
import hashlib
import json
import re
import tomllib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import feddwa
from feddwa import cli, models
from feddwa.config import RunConfig
from feddwa.data.catalogue import DATASETS, defaults_of, own_defaults
from feddwa.data.dataset import Dataset
from feddwa.data.inputs import Inputs, inputs_of
from feddwa.errors import InputError
from feddwa.flower.settings import FlowerConfig, from_run_config, to_run_config
from feddwa.results.content import cell_name, settings


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def multiplications(module, shape):
    """Multiply-accumulates of a forward pass on one sample."""
    with FlopCounterMode(display=False) as counter:
        module.eval()(torch.zeros(1, *shape))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("cifar-cnn", (3, 32, 32), 10, 1_204_874),
        ("cifar-cnn", (3, 32, 32), 100, 1_251_044),
        ("emnist-cnn", (1, 28, 28), 62, 2_278_334),
        ("emnist-small", (1, 28, 28), 62, 18_506),
        ("resnet8", (3, 64, 64), 200, 90_392),
        ("resnet8-gkt", (3, 64, 64), 200, 22_936),
        ("resnet8-gkt", (3, 32, 32), 10, 10_586),
        ("fedavg-cnn", (1, 28, 28), 10, 582_026),  # PFLlib's numbers, as those of the next three
        ("fedavg-cnn", (3, 32, 32), 10, 878_538),
        ("fedavg-cnn", (3, 32, 32), 100, 924_708),
        ("fedavg-cnn", (3, 64, 64), 200, 5_694_600),
        ("lenet5", (1, 28, 28), 10, 44_426 + 2 * (6 + 16)),  # LeCun's, and scale and shift of BatchNorm
        ("conv-dropout", (3, 32, 32), 10, 1_626_442),  # pfl-research
        ("conv-dropout", (1, 28, 28), 62, 1_206_590),  # FedJAX
        ("har-cnn", (9, 128), 6, 2_253_958),  # PFLlib, on the nine signals of its files
        ("har-cnn", (6, 128), 6, 2_253_958 - 3 * 32 * 9),
        ("digits-mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
        ("digits-cnn", (1, 8, 8), 10, 6_090),
        ("mlp", (30,), 3, 30 * 64 + 64 + 64 * 3 + 3),
        ("linear", (5, 4), 2, 42),
    ],
)
def test_parameter_counts(name, shape, classes, expected):
    network = models.make(name, shape, classes)
    assert parameters(network) == expected
    assert network.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_cost_and_buffers_of_the_cifar_network():
    network = models.make("cifar-cnn", (3, 32, 32), 10)
    assert multiplications(network, (3, 32, 32)) == 5_077_376
    assert sum(buffer.numel() for buffer in network.buffers()) == 194
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.5]


@pytest.mark.parametrize(("side", "stages"), [(64, [32, 16, 8]), (32, [16, 8, 4])])
def test_spatial_sizes_of_resnet8(side, stages):
    body = models.make("resnet8", (3, side, side), 200).body
    x, seen = torch.zeros(1, 3, side, side), []
    for name, layer in body.named_children():
        x = layer(x)
        if name.startswith("stage"):
            seen.append(x.shape[-1])
    assert seen == stages


def test_initial_weights_of_resnet8_are_kaiming_normal():
    torch.manual_seed(0)
    weight = models.make("resnet8", (3, 32, 32), 200).body.stage3.branch[2].conv.weight  # (64, 64, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


def test_initial_weights_of_conv_dropout_are_xavier_uniform():
    torch.manual_seed(0)
    weight = models.make("conv-dropout", (3, 32, 32), 10).body.fc0.weight  # (128, 12544)
    bound = (6 / (12544 + 128)) ** 0.5
    assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


# What torch.manual_seed(0) makes at 7 classes: names and values of all tensors, to the bit. Published results begin so.
INITIAL = [
    ("cifar-cnn", (3, 32, 32), "4fd7998dd97f5ffb"),
    ("emnist-cnn", (1, 28, 28), "f94405714e904a7e"),
    ("emnist-small", (1, 28, 28), "79706e206c75c1f8"),
    ("resnet8", (3, 64, 64), "dd3fca5e3804511f"),
    ("resnet8-gkt", (3, 32, 32), "dfb8a1d635a2a30e"),
    ("fedavg-cnn", (1, 28, 28), "06e66a6fff280485"),
    ("lenet5", (3, 32, 32), "b681515508a39498"),
    ("conv-dropout", (1, 28, 28), "227e8ee2e1d05479"),
    ("digits-mlp", (1, 8, 8), "41a37f7cfb197494"),
    ("digits-cnn", (1, 8, 8), "6676a6f9a4879f21"),
    ("mlp", (30,), "0225912d4107059e"),
    ("linear", (5, 4), "759c7eb87270dc34"),
]


@pytest.mark.parametrize(("name", "shape", "expected"), INITIAL)
def test_initial_values_stay_what_they_were(name, shape, expected):
    torch.manual_seed(0)
    digest = hashlib.sha256()
    for key, value in models.make(name, shape, 7).state_dict().items():
        digest.update(key.encode() + value.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


SAMPLES = [
    Inputs.of((1, 8, 8)), Inputs.of((1, 28, 28)), Inputs.of((3, 32, 32)), Inputs.of((2, 40)), Inputs.of((12,), 9)
]  # fmt: skip


def samples(inputs, count=3):
    if inputs.kind == "tokens":
        return torch.randint(0, inputs.vocabulary, (count, *inputs.shape))
    return torch.rand(count, *inputs.shape)


@pytest.mark.parametrize("name", models.MODELS)
def test_every_network_is_a_body_and_a_linear_head(name):
    inputs = next(each for each in SAMPLES if models.MODELS[name].fits(each))
    network = models.make(name, inputs, 7).eval()
    assert isinstance(network.head, nn.Linear)
    x = samples(inputs)
    assert torch.equal(network.head(network.body(x)), network(x))
    assert list(network.state_dict())[-2:] == ["head.weight", "head.bias"]
    if name == "cifar-cnn":
        assert parameters(network.head) == 512 * 7 + 7


@pytest.mark.parametrize(
    ("dataset", "name"),
    [("digits", "digits-mlp"), ("cifar100", "cifar-cnn"), ("emnist", "emnist-cnn"), ("tiny-imagenet-32", "resnet8")],
)
def test_the_default_is_chosen_by_the_dataset(dataset, name):
    assert defaults_of(dataset).model == name


def test_every_dataset_has_a_default_that_fits_and_own_data_have_one_too():
    for info in DATASETS.values():
        inputs = Inputs.of(info.shape, vocabulary=info.classes if info.name == "shakespeare" else 0)
        assert models.make(info.defaults.model, inputs, info.classes).head.out_features == info.classes
    assert models.make(own_defaults("features", (17,)).model, (17,), 2).body.fc0.in_features == 17


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (3, 32, 32), "--model: unknown name 'resnet'; valid: cifar-cnn"),
        ("cifar-cnn", (1, 28, 28), "takes samples of shape (3, 32, 32), got (1, 28, 28); models that fit: emnist-cnn"),
        ("resnet8", (3, 4, 4), "takes colour images (3, H, W) of at least 8x8, got (3, 4, 4)"),
        ("digits-mlp", (64,), "takes samples of shape (1, 8, 8), got (64,); models that fit: mlp, linear"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, message):
    with pytest.raises(InputError) as refused:
        models.make(name, shape, 10)
    assert message in str(refused.value)


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 9, 40), (3, 31, 33), (2, 100, 64)])
def test_the_small_cnn_takes_images_of_any_size_and_channels(shape, norm):
    network = models.make("cnn", shape, 5, [f"norm={norm}", "width=6"])
    assert network(torch.rand(2, *shape)).shape == (2, 5)
    kinds = {"group": nn.GroupNorm, "batch": nn.BatchNorm2d, "none": ()}
    normalised = [part for part in network.modules() if isinstance(part, nn.GroupNorm | nn.BatchNorm2d)]
    assert len(normalised) == (0 if norm == "none" else sum(isinstance(p, nn.Conv2d) for p in network.modules()))
    assert all(isinstance(part, kinds[norm]) for part in normalised)
    assert parameters(network) < 200_000


@pytest.mark.parametrize("shape", [(1, 4), (3, 17), (9, 128), (2, 1)])
def test_the_network_for_series_takes_any_length(shape):
    assert models.make("cnn1d", shape, 4, ["width=8"])(torch.rand(2, *shape)).shape == (2, 4)


def test_hidden_layers_of_the_mlp_are_an_argument():
    body = models.make("mlp", (10,), 3, ["hidden=32,16", "dropout=0.2"]).body
    sizes = [(part.in_features, part.out_features) for part in body if isinstance(part, nn.Linear)]
    assert sizes == [(10, 32), (32, 16)]
    assert [part.p for part in body if isinstance(part, nn.Dropout)] == [0.2, 0.2]


def test_the_transformer_ignores_padding():
    network = models.make("transformer", Inputs.of((6,), 20), 3).eval()
    short = torch.tensor([[5, 7, 3, 0, 0, 0]])
    assert parameters(network) < 150_000
    other = models.make("transformer", Inputs.of((6,), 20), 3, ["padding=-1"]).eval()
    other.load_state_dict(network.state_dict())
    assert not torch.allclose(network(short), other(short))
    network.body.token.weight.data[0] += 1.0  # of the padding
    changed = network(short)
    network.body.token.weight.data[0] -= 1.0
    assert torch.allclose(changed, network(short), atol=1e-6)
    assert torch.isfinite(network(torch.zeros(1, 6, dtype=torch.int64))).all()  # padding alone


def test_the_lstm_for_characters_is_leafs():
    network = models.make("char-lstm", Inputs.of((80,), 80), 80)
    one_bias = parameters(network) - 2 * 4 * 256  # TensorFlow's LSTM has one for each gate, torch's has two
    assert (parameters(network), one_bias) == (819_920, 817_872)
    assert network(torch.randint(0, 80, (3, 80))).shape == (3, 80)


def test_networks_for_the_next_token_read_every_id_that_they_may_predict():
    """Of the text that a client has seen, a character may be missing which is to come."""
    for name in ("char-lstm", "char-transformer"):
        assert models.make(name, Inputs.of((5,), 7), 9).body.token.num_embeddings == 9
        assert models.make(name, Inputs.of((5,), 7), 2).body.token.num_embeddings == 7


def test_in_the_causal_transformer_no_state_depends_on_later_tokens():
    body = models.make("char-transformer", Inputs.of((6,), 9), 9, ["dim=8", "layers=3"]).body.double().eval()
    ids, seen = torch.randint(0, 9, (1, 6)), []
    body.norm.register_forward_hook(lambda _, inputs, output: seen.append(output[0]))  # (6, dim)
    body(ids)
    for place in range(6):
        other = ids.clone()
        other[0, place] = (ids[0, place] + 1) % 9
        body(other)
        changed = (seen[-1] - seen[0]).abs().amax(1) > 1e-9
        assert changed.tolist() == [later >= place for later in range(6)]


class Own(nn.Module):
    """A network of one's own with arguments of every kind."""

    def __init__(
        self, shape, classes, width: int, sizes: list[int] | None = None, rate=0.5, flag: bool = False, word="a"
    ):
        super().__init__()
        self.given = (width, sizes, rate, flag, word)
        self.head = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.head(x)


OWN = f"{__name__}:Own"


def test_arguments_of_own_code_are_typed_by_annotations_and_defaults():
    entries = ["width=3", "sizes=4,5", "rate=0.25", "flag=true", "word=1"]
    assert models.make(OWN, (2,), 2, entries).given == (3, [4, 5], 0.25, True, "1")
    assert models.make(OWN, (2,), 2, ["width=3"]).given == (3, None, 0.5, False, "a")


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        (OWN, [], ": needs the argument width; give --model-arg width=..."),
        (OWN, ["width=wide"], "--model-arg width: got 'wide', must be a whole number"),
        (OWN, ["width=3", "flag=1"], "--model-arg flag: got '1', must be true or false"),
        (OWN, ["width"], "--model-arg: got 'width', must be of the form KEY=VALUE"),
        (OWN, ["width=1", "width=2"], "the only value of width; it is given twice"),
        (OWN, ["depth=1"], "--model-arg depth: Own has no such argument; valid: width, sizes, rate, flag, word"),
        (OWN, ["classes=1"], "--model-arg classes: Own has no such argument"),
        ("cnn", ["norm=layer"], "--model-arg norm: got 'layer', must be one of group, batch, none"),
        ("mlp", ["hidden=0"], "--model-arg hidden: got (0,), must be widths of at least 1"),
        ("linear", ["width=1"], "--model-arg width: linear has no such argument; valid: none"),
        ("cifar-cnn", ["a=1"], "--model-arg a: cifar-cnn has no such argument; valid: none"),
    ],
)
def test_arguments_that_are_wrong_are_told_in_one_line(name, entries, message):
    with pytest.raises(InputError) as refused:
        models.make(name, (3, 32, 32) if "cnn" in name else (2,), 2, entries)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_vocabulary_below_the_datas_is_refused():
    assert models.make("transformer", Inputs.of((4,), 7), 2, ["vocabulary=9"]).body.token.num_embeddings == 9
    with pytest.raises(InputError, match="--model-arg vocabulary: got 5, must be at least 7, as in the data"):
        models.make("transformer", Inputs.of((4,), 7), 2, ["vocabulary=5"])


def test_inputs_are_those_of_the_data_and_survive_json():
    x = np.zeros(5, dtype=[("0", np.float32, (3, 8, 8)), ("ids", np.int64, (4,))])
    x["ids"][2, 1] = 6
    inputs = inputs_of(Dataset("several", x, np.array([0, 1, 0, 1, 0]), 3, 2))
    assert {name: (part.kind, part.shape, part.vocabulary) for name, part in inputs.parts.items()} == {
        "0": ("image", (3, 8, 8), 0), "ids": ("tokens", (4,), 7),
    }  # fmt: skip
    assert Inputs.from_json(json.loads(json.dumps(inputs.as_json()))) == inputs
    for each in (inputs, Inputs.of((4,), 7)):
        assert inputs_of(Dataset("x", each.blank(3), np.zeros(3, int), 2, 2)) == each


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "model"),
    [
        (np.float32, (3,), "features", "mlp"),
        (np.float32, (2, 9), "series", "cnn1d"),
        (np.uint8, (1, 8, 8), "image", "cnn"),
        (np.float32, (3, 7, 20), "image", "mlp"),
        (np.int64, (5,), "tokens", "transformer"),
        (np.float32, (2, 2, 2, 2), "features", "mlp"),
    ],
)
def test_own_data_have_a_kind_and_a_network_that_fits_it(dtype, shape, kind, model):
    inputs = inputs_of(Dataset("x", np.zeros((4, *shape), dtype), np.zeros(4, int), 2, 2))
    assert (inputs.kind, own_defaults(inputs.kind, inputs.shape).model) == (kind, model)
    assert models.make(model, inputs, 3)(samples(inputs)).shape == (3, 3)


@pytest.fixture
def tokens(tmp_path):
    """Sentences of twelve ids, filled up with 0, in which a word tells the class; two authors."""
    rng, y = np.random.default_rng(0), np.arange(120) % 2
    ids = rng.integers(5, 30, (120, 12))
    ids[:, 2:5] = 1 + y[:, None]
    ids[:, 8:] = np.where(rng.random((120, 4)) < 0.5, 0, ids[:, 8:])
    np.savez(tmp_path / "tokens.npz", tokens=ids, y=y, client=np.repeat(["ann", "ben"], 60))
    return str(tmp_path / "tokens.npz")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrod"])
def test_token_ids_train_from_the_shell(tokens, tmp_path, capsys, algorithm):
    out = tmp_path / "run"
    arguments = ["--dataset", tokens, "--algorithm", algorithm, "--rounds", "4", "--model-arg", "dim=16"]
    assert cli.main(["run", *arguments, "--model-arg", "layers=1", "--out", str(out)]) == 0
    assert "network transformer, batch size 10, rate 0.1 (for token ids (12,))" in capsys.readouterr().out
    stored = tomllib.loads((out / "config.toml").read_text())
    assert (stored["model"], stored["model_arg"]) == ("transformer", ["dim=16", "layers=1"])
    assert json.loads((out / "record.json").read_text())["summary"]["accuracy"]["last"] > 75
    assert feddwa.resume(out).models["body.token.weight"].shape == (2, 30, 16)


def test_arguments_stand_in_a_file_and_the_command_line_prevails(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.toml").write_text(
        'model = "mlp"\nmodel_arg = ["hidden=8", "dropout=0.1"]\nclients = 4\nrounds = 1\n'
    )
    assert cli.main(["run", "--config", "net.toml", "--model-arg", "hidden=5", "--out", "run"]) == 0
    stored = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert stored["model_arg"] == ["dropout=0.1", "hidden=5"]
    assert (
        cli.main(["compare", "--config", "net.toml", "--algorithms", "local", "fedavg", "--out", "all", "--quiet"]) == 0
    )
    assert tomllib.loads((tmp_path / "all" / "compare.toml").read_text())["model_arg"] == ["hidden=8", "dropout=0.1"]
    assert cli.main(["doctor", "--config", "net.toml"]) == 0
    assert "network mlp with 610 parameters" in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert cli.main(["run", "--config", "net.toml", "--model-arg", "depth=5", "--out", "bad"]) == 2
    assert "--model-arg depth: mlp has no such argument; valid: hidden, dropout" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()


def test_arguments_travel_to_the_nodes_of_a_federation():
    config = FlowerConfig(model="mlp", model_arg=("hidden=8,4", "word=a b"))
    assert from_run_config(to_run_config(config)) == config


def test_cells_of_results_are_named_as_before_unless_a_network_has_arguments():
    plain = RunConfig(model="mlp").resolved()
    assert "model_arg" not in settings(plain)
    assert cell_name(plain) != cell_name(dataclasses.replace(plain, model_arg=("hidden=8",)))
