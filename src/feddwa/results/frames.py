"""Finished runs as pandas tables; pandas is imported on demand."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from feddwa.callbacks import numbers
from feddwa.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

    from feddwa.trained.card import ModelCard

Rows = Literal["rounds", "clients"]


def frame(lines: Sequence[Mapping[str, Any]], card: "ModelCard | None", of: str) -> "pd.DataFrame":
    """A row per round, with every number of metrics.jsonl; or a row per client, with the final models' scores."""
    require(of in ("rounds", "clients"), "of", of, "rounds or clients")
    pandas = _pandas()
    if of == "rounds":
        return pandas.DataFrame([dict(numbers(line)) for line in lines]).set_index("round")
    if card is None:
        raise InputError("of: clients: the run was made without its models, and what they score is stored with them")
    names = ("train_samples", "test_samples", "accuracy", "loss")
    index = pandas.Index(card.clients, name="client")
    return pandas.DataFrame({name: list(getattr(card, name)) for name in names}, index=index)


def joined(frames: Mapping[Any, "pd.DataFrame"], name: str) -> "pd.DataFrame":
    """Concatenated tables, with their keys as the outermost index."""
    return _pandas().concat(frames, names=[name])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise InputError("to_pandas: pandas is missing; pip install pandas") from None
    return pandas
