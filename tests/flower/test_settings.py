"""Options on their way through Flower's run config, and the app in the repository."""

from pathlib import Path

import pytest
import tomli_w
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from feddwa.algorithms import ALGORITHMS
from feddwa.errors import InputError
from feddwa.flower import app
from feddwa.flower.settings import FlowerConfig, from_run_config, to_run_config
from feddwa.params import fields_of

APP = Path(__file__).parents[2] / "apps" / "feddwa"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_survives(algorithm):
    config = FlowerConfig(algorithm=algorithm, lr=0.25, clients=7, deadline=12.5, evaluate_absent=False).resolved()
    assert from_run_config(to_run_config(config)) == config
    assert from_run_config(to_run_config(FlowerConfig())) == FlowerConfig()
    assert from_run_config({}) == FlowerConfig()
    tomli_w.dumps(to_run_config(config))  # nothing that Flower could not carry


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rondes": 3}, "run config: unknown name 'rondes'; valid: .*, algorithm, "),
        ({"rounds": "many"}, "run config rounds: got 'many', must be a whole number"),
        ({"param": 3}, "run config param"),
        ({"min-nodes": 0}, "--min-nodes"),
        ({"deadline": 0.0}, "--deadline"),
    ],
)
def test_bad_options_are_one_clear_line(values, message):
    with pytest.raises(InputError, match=message):
        from_run_config(values).resolved()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_the_app_in_the_repository_is_the_one_that_is_made():
    files = {path: (APP / path).read_text() for path in app.files()}
    assert files == app.files(), "make it anew: python -m feddwa.flower.app apps/feddwa"
    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert not warnings
    options = config["tool"]["flwr"]["app"]["config"]
    assert set(options) == {name.replace("_", "-") for name in fields_of(FlowerConfig)}
    assert from_run_config(options) == FlowerConfig()
    assert len(build_fab_from_disk(APP)) < 20_000
