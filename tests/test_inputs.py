"""Networks with several inputs: batches as mappings (keyword arguments) and as tuples (positional arguments)."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa.build import load_task
from feddwa.config_file import from_toml
from feddwa.data.own.clients import from_arrays
from feddwa.experiment import run_tasks
from feddwa.objects import named


class TwoInputs(nn.Module):
    """Measurements and words of a sample, joined; BatchNorm and dropout on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(9, 3)

    def forward(self, values, words):
        """(B, 4) and (B, 6) -> (B, 3)."""
        joined = torch.cat([self.norm(values), self.words(words).mean(1)], 1)
        return self.head(self.dropout(torch.relu(joined)))


class Encoded(nn.Module):
    """The interface of a model of transformers: named inputs, an object with logits."""

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask=None):
        """(B, 6) twice -> logits (B, 3)."""
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        return self.Output(self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1)))


def clients(form=dict, sizes=(23, 40, 12, 31)):
    """Clients of unequal sizes whose class shows in both inputs."""
    rng = np.random.default_rng(0)
    found = []
    for size in sizes:
        y = rng.integers(0, 3, size)
        values = (rng.normal(size=(size, 4)) + y[:, None]).astype(np.float32)
        words = rng.integers(0, 3, (size, 6)) + 3 * y[:, None]
        found.append(({"words": words, "values": values} if form is dict else (values, words), y))
    return found


def network():
    torch.manual_seed(0)
    return TwoInputs()


SMALL = {"rounds": 2, "lr": 0.1, "batch_size": 5, "dtype": "float64"}


@pytest.mark.parametrize(
    ("form", "algorithm"), [(dict, "feddwa"), (tuple, "feddwa"), (dict, "fedrod"), (tuple, "perfedavg")]
)
def test_vectorised_is_sequential(form, algorithm):
    found = [
        feddwa.run(dataset=clients(form), model=network(), algorithm=algorithm, backend=backend, out=False, **SMALL)
        for backend in ("vectorised", "sequential")
    ]
    for name, value in found[0].models.items():
        torch.testing.assert_close(value, found[1].models[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[0].buffers, found[1].buffers, rtol=1e-9, atol=1e-9)
    assert found[0].summary["flops_per_client_round"] == found[1].summary["flops_per_client_round"] > 0


def test_keywords_and_positions_are_the_same_inputs():
    by_name, by_place = (
        feddwa.run(dataset=clients(form), model=network(), out=False, rounds=4, lr=0.2, batch_size=5)
        for form in (dict, tuple)
    )
    torch.testing.assert_close(by_name.models, by_place.models)
    assert by_name.summary["accuracy"]["last"] > 60


def test_the_order_of_a_mapping_does_not_matter_to_the_network():
    turned = [({name: x[name] for name in reversed(x)}, y) for x, y in clients()]
    models = [feddwa.run(dataset=each, model=network(), out=False, **SMALL).models for each in (clients(), turned)]
    torch.testing.assert_close(*models)


def test_chunks_and_partial_participation_change_nothing():
    whole, parts = (
        feddwa.run(dataset=clients(), model=network(), participation=0.75, chunk=chunk, out=False, **SMALL)
        for chunk in (None, 2)
    )
    torch.testing.assert_close(whole.models, parts.models, rtol=1e-9, atol=1e-9)


def test_a_model_that_returns_an_object_with_logits():
    ids = [(x["words"], y) for x, y in clients()]
    data = [({"input_ids": x, "attention_mask": np.ones_like(x)}, y) for x, y in ids]
    result = feddwa.run(dataset=data, model=Encoded(), rounds=8, lr=1.0, batch_size=5, out=False)
    assert result.summary["accuracy"]["last"] > 80


def test_images_of_bytes_are_scaled_beside_other_inputs():
    images = np.full((8, 1, 4, 4), 255, np.uint8)
    data = from_arrays([((images, np.zeros((8, 2), np.float32)), np.arange(8) % 2)])
    assert data.x.dtype["0"].shape == (1, 4, 4)
    assert data.inputs == ("0", "1")
    seen = []

    class Peek(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(18, 2)

        def forward(self, image, more):
            seen.append(image.dtype)
            if not torch._C._functorch.is_batchedtensor(image):
                assert float(image.max()) == 1.0
            return self.head(torch.cat([image.flatten(1), more], 1))

    feddwa.run(dataset=data, model=Peek(), rounds=1, batch_size=4, out=False)
    assert set(seen) == {torch.float32}


def test_a_run_directory_is_resumed_and_seeds_run_in_lockstep(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    options = {"model": TwoInputs, "dataset": clients(), **SMALL, "rounds": 3}
    whole = feddwa.run(out="whole", **options)
    seen = []

    def stop(line):
        seen.append(line)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out="cut", observe=stop, **options)
    again = feddwa.resume("cut")
    torch.testing.assert_close(again.models, whole.models, rtol=0, atol=0)
    assert Path("cut/metrics.jsonl").read_text().count("\n") == 4
    with named({"model": TwoInputs, "dataset": clients()}, written=True) as plain:
        configs = [feddwa.RunConfig(**plain, **SMALL, seed=s, out=f"lock{s}").resolved() for s in (0, 1)]
    stacked = run_tasks(configs, [load_task(config) for config in configs])
    for config, result in zip(configs, stacked, strict=True):
        alone = feddwa.run(dataclasses.replace(config, out=f"alone{config.seed}"))
        torch.testing.assert_close(result.models, alone.models, rtol=1e-9, atol=1e-9)
    assert "lockstep" in stacked[0].summary


@pytest.mark.slow
def test_nodes_of_flower_train_the_same_models(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from tests.flower.test_parity import federated, same_lines, same_models

    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    metrics = {"hits": count_hits}
    given = {"model": TwoInputs, "dataset": clients(), "algorithm": "feddwa", "metrics": metrics, **SMALL}
    reference = feddwa.run(**given, out=str(tmp_path / "simulated"))
    config = from_toml(tmp_path / "simulated" / "config.toml", feddwa.RunConfig)
    plain = {name: getattr(config, name) for name in ("model", "dataset", "clients", "partition", "metrics")}
    node = {"dataset": config.dataset, "references": f"{config.model},{config.metrics[0].partition('=')[2]}"}
    lines, models, _ = federated(tmp_path, 2, node=node, algorithm="feddwa", **plain, **SMALL)
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-9)
    assert [line["metrics_before"] for line in lines] == [line["metrics_before"] for line in reference.metrics]


def count_hits(outputs, targets):
    return (outputs.argmax(1) == targets).sum()


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (lambda: clients(), nn.Linear(4, 3),
         r"model: does not take the inputs words: torch.int64 \(6,\), values: torch.float32 \(4,\): "),
        (lambda: [(({"values": np.zeros((4, 2)), "words": np.zeros((3, 2))}), np.arange(4) % 2)], TwoInputs(),
         r"clients\[0\]: got {'values': 4, 'words': 3}, must be as many samples of every input"),
        (lambda: [({"a": np.zeros((4, 2))}, np.arange(4) % 2), ({"b": np.zeros((4, 2))}, np.arange(4) % 2)],
         TwoInputs(), r"clients: got .*'a'.* must be samples of one shape"),
        (lambda: [(({}, np.arange(4) % 2))], TwoInputs(), r"clients\[0\]: got 'no input', must be one input or more"),
        (lambda: clients(), None, r"--model: must be given, because the data have several inputs \(words: token ids"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(data, model, message):
    with pytest.raises(feddwa.InputError, match=message) as refused:
        feddwa.run(dataset=data(), model=model, rounds=1, out=False)
    assert "\n" not in str(refused.value)
