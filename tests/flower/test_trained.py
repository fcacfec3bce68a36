"""Trained models of a federation: each node exports those of its clients, and the server says where they are."""

import json

import pytest
from safetensors import safe_open

from feddwa.errors import InputError
from feddwa.results import runs
from tests.flower.test_parity import federated


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
