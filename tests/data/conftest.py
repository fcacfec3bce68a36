import os
from pathlib import Path

import numpy as np
import pytest

from feddwa.data.options import DataOptions
from feddwa.data.sources import load
from feddwa.errors import InputError

REAL_DATA = Path(os.environ.get("FEDDWA_DATA") or Path(__file__).parents[3] / "shared" / "data")


def refuses(name, *words, data_dir=None, **options):
    """Assert that a dataset is refused in one line that has these words."""
    with pytest.raises(InputError) as refused:
        load(str(name), data_dir, DataOptions(**options))
    message = str(refused.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or finds the user's data by accident."""
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def real_data(pytestconfig, monkeypatch):
    """The folder with real datasets; what is decoded from it is kept between test runs."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real datasets at {REAL_DATA}; set FEDDWA_DATA to test on them")
    monkeypatch.setenv("FEDDWA_CACHE", str(pytestconfig.cache.mkdir("datasets")))
    return REAL_DATA


@pytest.fixture
def rng():
    return np.random.default_rng(0)
