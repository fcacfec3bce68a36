"""Events for TensorBoard, read with TensorBoard's own reader."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa import tensorboard
from feddwa.errors import InputError

SMALL = {"clients": 4, "rounds": 3, "param": ("groups=2",), "participation": 0.5}
installed = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="the extra tensorboard is missing")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("board") / "run"
    feddwa.run(out=str(out), tensorboard=True, **SMALL)
    return out


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0, "histograms": 0, "images": 0}).Reload()


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_are_those_of_the_metrics(run):
    found = events(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracy = [(event.step, event.value) for event in found.Scalars("accuracy before training/all")]
    assert accuracy == [(line["round"], pytest.approx(line["before"]["all"])) for line in lines]
    assert [event.value for event in found.Scalars("cost/bytes_up")] == [line["bytes_up"] for line in lines[:-1]]
    tags = set(found.Tags()["scalars"])
    assert {"loss/before training", "loss/after training", "cost/flops", "seconds/train"} <= tags


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_histograms_hold_every_client(run):
    before, after = (events(run).Histograms(f"clients/{when} training") for when in ("before", "after"))
    assert [event.histogram_value.num for event in before] == [4] * 4
    assert [event.histogram_value.num for event in after] == [2] * 3  # the participants


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_weights_are_an_image(run):
    import io

    from PIL import Image
    from safetensors.numpy import load_file

    weights = load_file(run / "weights.safetensors")["weights/0003"]
    image = events(run).Images("weights")[-1]
    assert (image.step, image.width, image.height) == (3, 2 * tensorboard.PIXELS, 2 * tensorboard.PIXELS)
    with Image.open(io.BytesIO(image.encoded_image_string)) as picture:
        shown = np.asarray(picture.convert("L"))[4 :: tensorboard.PIXELS, 4 :: tensorboard.PIXELS]
    assert shown / 255 == pytest.approx(np.sqrt(weights), abs=0.01)


@pytest.mark.parametrize(("clients", "width"), [(3, 24), (128, 1024), (300, 900), (1000, 1000), (2000, 2000)])
def test_the_image_of_many_clients_stays_small(clients, width):
    """At eight pixels a weight, 1,000 clients would make an image of 256 MB in every round."""
    assert tensorboard._picture(torch.eye(clients)).shape == (1, width, width)


def test_without_the_extra_it_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--tensorboard: .*pip install 'feddwa\[tensorboard\]'"):
        feddwa.run(out=str(tmp_path / "run"), tensorboard=True, **SMALL)
    assert not Path(tmp_path, "run").exists()
