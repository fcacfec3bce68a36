"""Real runs to report on, made once: three methods, two seeds, eight clients in two groups."""

import pytest

import feddwa

ROUNDS = 6
SETTING = {"clients": 8, "rounds": ROUNDS, "param": ["groups=2"]}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder as `feddwa compare` leaves it, twice: runs/0/feddwa, ..., runs/1/fedavg."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for algorithm in ("feddwa", "local", "fedavg"):
            own = [*SETTING["param"], "top_k=3"] if algorithm == "feddwa" else SETTING["param"]
            out = str(folder / str(seed) / algorithm)
            feddwa.run(algorithm=algorithm, seed=seed, out=out, **{**SETTING, "param": own})
    return folder


@pytest.fixture(scope="session")
def absent(tmp_path_factory):
    """A run of which only half of the clients take part in a round."""
    folder = tmp_path_factory.mktemp("absent")
    feddwa.run(participation=0.5, out=str(folder / "run"), **SETTING)
    return folder / "run"
