"""Networks of torchvision, timm and transformers by name: built for the data, trained, resumed, started from files."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import feddwa
from feddwa import cli, models
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.inputs import Inputs
from feddwa.engine.network import head_name
from feddwa.errors import InputError
from feddwa.models import weights
from tests import torchvision_ops

RNG = np.random.default_rng(0)
TOKENS = Inputs.of((8,), 30)
TINY = {  # a BERT of 5,000 parameters
    "model_type": "bert", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def libraries():
    torchvision_ops.declare()


@pytest.fixture
def bert(tmp_path):
    """The path of a config.json."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "config.json"


@pytest.fixture
def images(tmp_path):
    """Two clients with grey images of 32x32."""
    y = np.arange(40) % 2
    x = RNG.integers(0, 120, (40, 1, 32, 32)).astype(np.uint8)
    x[y == 1, :, :16] += 120
    np.savez(tmp_path / "images.npz", x=x, y=y, client=np.repeat(["left", "right"], 20))
    return tmp_path / "images.npz"


@pytest.mark.parametrize(
    ("name", "shape", "head"),
    [
        ("torchvision:resnet18", (3, 32, 32), "fc"),
        ("torchvision:resnet18", (1, 40, 32), "fc"),
        ("torchvision:mobilenet_v3_small", (2, 32, 32), "classifier.3"),
        ("timm:vit_tiny_patch16_224", (1, 32, 48), "head"),
        ("timm:resnet10t.c3_in1k", (4, 32, 32), "fc"),
    ],
)
def test_classes_channels_and_size_are_adapted(name, shape, head):
    pytest.importorskip(name.partition(":")[0])
    module = models.make(name, shape, 5).eval()
    assert module(torch.zeros(2, *shape)).shape == (2, 5)
    assert head_name(module) == head


def test_a_transformer_for_images_takes_their_size():
    pytest.importorskip("torchvision")
    module = models.make("torchvision:vit_b_16", (3, 32, 32), 3, ["dropout=0.1"])
    assert (module.image_size, module.encoder.dropout.p) == (32, 0.1)
    with pytest.raises(InputError, match=r"its images: got '32x48', must be square: --resize N"):
        models.make("torchvision:vit_b_16", (3, 32, 48), 3)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("torchvision:resnt18", [], "torchvision has no network resnt18; like it: resnet18"),
        ("timm:vit_tinny_patch16_224", [], "timm has no network vit_tinny_patch16_224; like it: vit_tiny_patch16_224"),
        ("torchvision:resnet18", ["depth=3"], "--model-arg depth: resnet18 has no such argument; valid: zero_init"),
        ("torchvision:resnet18", ["groups=many"], "--model-arg groups: got 'many', must be a whole number"),
        ("timm:vit_tiny_patch16_224", ["embed_dim=7"], "--model timm:vit_tiny_patch16_224: cannot be made for images"),
        ("hf:no/such/folder", [], "there is no such file or folder; must be a config.json"),
    ],
)
def test_what_is_misspelt_is_told_in_one_line(name, entries, message):
    pytest.importorskip({"hf": "transformers"}.get(name.partition(":")[0], name.partition(":")[0]))
    with pytest.raises(InputError) as refused:
        models.make(name, (3, 32, 32), 4, entries)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_samples_of_another_kind_are_refused(bert):
    pytest.importorskip("torchvision")
    with pytest.raises(InputError, match=r"its samples: got 'features \(5,\)', must be images \(C, H, W\)"):
        models.make("torchvision:resnet18", (5,), 2)
    with pytest.raises(InputError, match=r"its samples: got 'images \(3, 8, 8\)', must be token ids"):
        models.make(f"hf:{bert}", (3, 8, 8), 2)


def test_a_package_that_is_missing_or_broken_is_one_line_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"--model timm:x: the package timm is not installed: pip install timm"):
        models.find("timm:x")
    monkeypatch.delitem(sys.modules, "timm")
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    message = r"the package timm cannot be imported \(operator torchvision::nms does not exist\): pip install --force"
    with pytest.raises(InputError, match=message):
        models.find("timm:x")


def test_whatever_a_constructor_raises_is_one_line(tmp_path):
    """A library may import another one, which is broken, no sooner than it makes a network."""
    (tmp_path / "nets.py").write_text("def late(shape):\n    raise ModuleNotFoundError('no requirements\\nat all')\n")
    with pytest.raises(InputError, match=r"cannot be made for .*: ModuleNotFoundError: no requirements\\nat all"):
        models.make(f"{tmp_path}/nets.py:late", (3, 8, 8), 2)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_pretrained_weights_from_a_file_without_their_head(tmp_path, capsys, suffix):
    pytest.importorskip("torchvision")
    weights.tell_once.cache_clear()
    whole = models.make("torchvision:resnet18", (3, 32, 32), 7)
    file = tmp_path / f"resnet{suffix}"
    state = {name: value.contiguous() for name, value in whole.state_dict().items()}
    save_file(state, file) if suffix == ".safetensors" else torch.save({"state_dict": state}, file)
    name = f"torchvision:resnet18@{file}"
    module = models.make(name, (3, 32, 32), 2)
    told = capsys.readouterr().err
    assert "new initial values for fc.weight, fc.bias" in told
    assert torch.equal(module.layer4[0].conv1.weight, whole.layer4[0].conv1.weight)
    assert module.fc.out_features == 2
    grey = models.make(name, (1, 32, 32), 7)
    assert "new initial values for conv1.weight" in capsys.readouterr().err
    assert torch.equal(grey.fc.weight, whole.fc.weight)
    models.make(name, (3, 32, 32), 2)
    assert capsys.readouterr().err == ""  # told once


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda file: file.write_bytes(b"not weights"), "cannot be read as plain tensors"),
        (lambda file: torch.save({"epoch": 3}, file), "holds no parameters by name"),
        (lambda file: torch.save({"fc0.weight": torch.zeros(2, 2)}, file), "the parameters do not fit what mlp makes"),
        (lambda file: torch.save(torch.nn.Linear(2, 2), file), "cannot be read as plain tensors"),
    ],
)
def test_files_that_hold_no_such_weights(tmp_path, content, message):
    content(tmp_path / "weights.pt")
    with pytest.raises(InputError) as refused:
        models.make(f"mlp@{tmp_path / 'weights.pt'}", (4,), 2)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(
        InputError, match=r"must be a file of parameters \(\.safetensors, \.pt, \.pth, \.bin\) that exists"
    ):
        models.find(f"mlp@{tmp_path / 'weights.txt'}")


def test_a_network_for_tokens_from_a_configuration_or_a_folder(bert, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    weights.tell_once.cache_clear()
    ids = torch.randint(1, 30, (2, 8))
    module = models.make(f"hf:{bert}", TOKENS, 3, ["num_hidden_layers=2"]).eval()
    assert module(ids).shape == (2, 3)
    assert len(module.model.bert.encoder.layer) == 2
    padded = torch.cat([ids[:, :4], torch.zeros(2, 4, dtype=torch.int64)], 1)
    assert torch.allclose(module(padded), module(padded, attention_mask=(padded != 0).long()))
    folder = tmp_path / "trained"
    made = transformers.AutoModelForSequenceClassification.from_config(
        transformers.AutoConfig.from_pretrained(bert, num_labels=4)
    )
    made.save_pretrained(folder)
    again = models.make(f"hf:{folder}", TOKENS, 2)
    assert torch.equal(again.model.bert.embeddings.word_embeddings.weight, made.bert.embeddings.word_embeddings.weight)
    assert "new initial values for classifier.bias, classifier.weight" in capsys.readouterr().err
    from_file = models.make(f"hf:{bert}@{folder / 'model.safetensors'}", TOKENS, 4)
    assert torch.equal(from_file.model.classifier.weight, made.classifier.weight)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (Inputs.of((8,), 99), "the data have token ids up to 98, must be below its vocab_size 32"),
        (Inputs.of((17,), 9), "the data have 17 tokens a sample, must be at most 16"),
    ],
)
def test_tokens_beyond_the_embeddings_are_refused(bert, inputs, message):
    with pytest.raises(InputError, match=message):
        models.make(f"hf:{bert}", inputs, 2)


def trained_and_resumed(out, **options):
    """Two rounds, interrupted after the first and resumed, are those of a run in one go."""

    def stop(line):
        raise KeyboardInterrupt

    options |= {"rounds": 2, "algorithm": "fedavg", "batch_size": 8}
    whole = feddwa.run(out=str(out / "whole"), **options)
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out=str(out / "cut"), observe=stop, **options)
    resumed = feddwa.resume(out / "cut")
    assert from_toml(out / "cut" / "config.toml", RunConfig).model == options["model"]
    for name, value in whole.models.items():
        assert torch.allclose(resumed.models[name], value, atol=1e-6), name
    return whole


def test_a_small_timm_network_trains_and_resumes(images, tmp_path):
    pytest.importorskip("timm")
    arguments = ("embed_dim=12", "depth=1", "num_heads=2")
    model = {"model": "timm:vit_tiny_patch16_224", "model_arg": arguments, "backend": "sequential"}
    whole = trained_and_resumed(tmp_path, dataset=str(images), **model)
    assert whole.models["head.weight"].shape == (2, 2, 12)


@pytest.mark.slow
def test_resnet18_trains_and_resumes(images, tmp_path):
    pytest.importorskip("torchvision")
    trained_and_resumed(tmp_path, dataset=str(images), model="torchvision:resnet18", lr=0.01)


def test_a_tiny_bert_trains_and_resumes(bert, tmp_path):
    y = np.arange(60) % 2
    tokens = RNG.integers(3, 30, (60, 8))
    tokens[:, 0] = 1 + y
    np.savez(tmp_path / "tokens.npz", tokens=tokens, y=y, client=np.repeat(["a", "b"], 30))
    trained_and_resumed(tmp_path, dataset=str(tmp_path / "tokens.npz"), model=f"hf:{bert}")


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2"])
def test_networks_for_tokens_are_trained_as_a_stack_as_one_by_one(bert, tmp_path, kind):
    """With padding in some clients' sequences and in none of others', and with their usual dropout."""
    bert.write_text(json.dumps({**TINY, "model_type": kind}))
    tokens, y = RNG.integers(3, 30, (60, 8)), np.arange(60) % 2
    tokens[:, 0], tokens[:25:3, 5:] = 1 + y, 0
    np.savez(tmp_path / "tokens.npz", tokens=tokens, y=y, client=np.repeat(["a", "b"], 30))
    options = {"dataset": str(tmp_path / "tokens.npz"), "model": f"hf:{bert}", "dtype": "float64", "lr": 0.1}
    stack, alone = (
        feddwa.run(**options, backend=backend, rounds=2, batch_size=8, algorithm="local", out=False)
        for backend in ("vectorised", "sequential")
    )
    for name, value in stack.models.items():
        assert (value - alone.models[name]).abs().max() < 1e-9, name
    assert any((value[0] - value[1]).abs().max() > 1e-4 for value in stack.models.values())  # of a and of b
    for one, two in zip(stack.metrics, alone.metrics, strict=True):
        assert one["loss_before"] == pytest.approx(two["loss_before"], abs=1e-6)


@pytest.fixture
def sentences(tmp_path):
    """Two clients with sequences in which the next token is known from the last one, some of them padded."""
    whole = np.random.default_rng(1).integers(3, 30, (60, 9))
    whole[:, 1:] = (whole[:, :1] + np.arange(1, 9)) % 27 + 3
    tokens, y = whole[:, :-1].copy(), whole[:, 1:].copy()
    tokens[::3, 5:], y[::3, 5:] = 0, -100
    np.savez(tmp_path / "sentences.npz", tokens=tokens, y=y, client=np.repeat(["a", "b"], 30))
    return tmp_path / "sentences.npz"


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_language_models_are_trained_as_a_stack_as_one_by_one(bert, sentences, kind):
    arguments = ("every=true", *(("is_decoder=true",) if kind == "bert" else ()))
    bert.write_text(json.dumps({**TINY, "model_type": kind}))
    options = {"dataset": str(sentences), "model": f"hf:{bert}", "model_arg": arguments, "dtype": "float64"}
    stack, alone = (
        feddwa.run(**options, backend=backend, lr=0.5, rounds=3, batch_size=8, algorithm="local", out=False)
        for backend in ("vectorised", "sequential")
    )
    for name, value in stack.models.items():
        assert (value - alone.models[name]).abs().max() < 1e-9, name
    assert stack.metrics[-1]["loss_before"] < stack.metrics[0]["loss_before"]


def test_language_models_that_cannot_be_are_refused(bert, sentences):
    def refused(kind, arguments=("every=true",), classes=30):
        bert.write_text(json.dumps({**TINY, "model_type": kind}))
        with pytest.raises(InputError) as error:
            models.make(f"hf:{bert}", TOKENS, classes, arguments)
        return str(error.value).removeprefix(f"--model hf:{bert}: ")

    assert refused("bert") == "it sees the tokens that it is to predict; an encoder needs the argument is_decoder=true"
    assert refused("gpt2", classes=40) == "the targets have token ids up to 39, must be below its vocab_size 32"
    assert "no language model, which every=true asks for, with a DistilBertConfig" in refused("distilbert")


def test_an_adapter_of_a_language_model_trains(bert, sentences):
    bert.write_text(json.dumps({**TINY, "model_type": "llama"}))
    options = {"dataset": str(sentences), "model": f"hf:{bert}", "model_arg": ("every=true",), "adapter": "lora"}
    found = feddwa.run(**options, adapter_arg=("save=none", "rank=4"), lr=1.0, rounds=4, batch_size=8, out=False)
    own = {name for name, value in found.models.items() if not torch.equal(value[0], value[1])}
    assert own
    assert all("_proj" in name for name in own)  # the embedding and the head are the base's
    assert found.metrics[-1]["loss_before"] < found.metrics[0]["loss_before"] - 0.05


def test_a_mask_that_masks_nothing_changes_no_output(bert):
    """Under vmap it is kept, alone it is left out."""
    module, x = models.make(f"hf:{bert}", TOKENS, 2).double().eval(), torch.from_numpy(RNG.integers(1, 30, (3, 4, 8)))
    with torch.no_grad():
        mapped = torch.vmap(module)(x)
        assert torch.equal(mapped, torch.stack([module(each) for each in x]))
        without = torch.stack([module.model(input_ids=each).logits for each in x])
    torch.testing.assert_close(mapped, without, rtol=0, atol=1e-15)


def test_from_the_command_line(images, tmp_path, capsys, monkeypatch):
    pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    options = [
        "--dataset",
        str(images),
        "--rounds",
        "1",
        "--model",
        "timm:vit_tiny_patch16_224",
        "--backend",
        "sequential",
    ]
    arguments = ["--model-arg", "embed_dim=12", "--model-arg", "depth=1", "--model-arg", "num_heads=2"]
    assert cli.main(["run", *options, *arguments, "--out", "run"]) == 0
    stored = from_toml("run/config.toml", RunConfig)
    assert (stored.model, stored.model_arg) == ("timm:vit_tiny_patch16_224", ("embed_dim=12", "depth=1", "num_heads=2"))
    assert "batch size 20, rate 0.01 (for images (1, 32, 32))" in capsys.readouterr().out
    assert cli.main(["list", "models", "timm:vit_tiny_patch16_224"]) == 0
    assert "depth=12" in capsys.readouterr().out
