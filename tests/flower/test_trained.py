"""Trained models of a federation: each node exports those of its clients, and the server says where they are."""

import json

import pytest
from safetensors import safe_open

import feddwa
from feddwa.errors import InputError
from feddwa.results import runs
from tests.flower.test_parity import federated, same_lines, same_models


def test_nodes_keep_the_models_with_all_that_is_needed_to_use_them(tmp_path):
    federated(tmp_path, 2, algorithm="fedrod", clients=4, rounds=1)
    why = "has no models: each node of the federation keeps its clients' models"
    with pytest.raises(InputError, match=why):
        runs.read_models(tmp_path / "federated")
    last = json.loads((tmp_path / "federated/clients.jsonl").read_text().splitlines()[-1])["before"]
    files = sorted((tmp_path / "nodes").rglob("client-*.safetensors"), key=lambda file: file.name)
    for row, path in enumerate(files):
        with safe_open(path, "pt") as file:
            card = json.loads(file.metadata()["feddwa"])
        assert (card["network"], card["clients"], card["classes"]) == ("digits-mlp", [str(row)], 10)
        assert card["accuracy"] == pytest.approx([last[row]], abs=0.01)
    assert len(files) == 4


def test_adapters_alone_are_sent_and_merged_where_nodes_keep_models(tmp_path):
    adapter = {"model": "digits-mlp", "adapter": "lora", "adapter_arg": ("rank=2", "alpha=4")}
    options = {"algorithm": "feddwa", "clients": 4, "rounds": 2, "batch_size": 60, **adapter}
    lines, models, _ = federated(tmp_path, 2, **options)
    simulated = feddwa.run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, simulated.metrics)
    sent = 2 * 4 * (2 * 64 + 64 * 2 + 64 * 10 + 10)  # FedDWA's two models: A, B and the head, in float32
    assert lines[0]["bytes_up"] == simulated.metrics[0]["bytes_up"] == sent
    for client in range(4):
        expected = simulated.model(client).state_dict()
        same_models({name: value[client] for name, value in models.items()}, expected)
