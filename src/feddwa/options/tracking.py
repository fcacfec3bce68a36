"""Options of trackers and callbacks, which observe a run."""

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Any

from feddwa.errors import InputError, require, unknown
from feddwa.params import Option
from feddwa.plugins import Unfit, check_arguments, is_reference, resolve

TRACKERS = {"csv": "", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}  # name -> package, extra

EVENTS = ("on_begin", "on_round", "on_end")  # of a feddwa.Callback


@dataclass(frozen=True)
class TrackingOptions:
    """Trackers and callbacks, which receive every round and do not change the run."""

    track: Annotated[tuple[str, ...], Option(metavar="NAME", repeated=True)] = ()
    """Log every round to csv, tensorboard, wandb or mlflow. Repeatable."""
    callbacks: Annotated[tuple[str, ...], Option(metavar="MODULE:CLASS", flag="--callback", repeated=True)] = ()
    """Your own, MODULE:CLASS or FILE.py:CLASS, a feddwa.Callback. Repeatable."""

    def check_tracking(self) -> None:
        """Raise InputError unless trackers are known and installed, and callbacks are references."""
        for name in self.track:
            if name not in TRACKERS:
                raise unknown("--track", name, TRACKERS)
            require(self.track.count(name) == 1, "--track", name, "given once")
            if TRACKERS[name] and not _installed(TRACKERS[name]):
                raise InputError(f"--track {name}: is not installed; pip install 'feddwa[{name}]'")
        for reference in self.callbacks:
            require(is_reference(reference), "--callback", reference, "of the form MODULE:CLASS or FILE.py:CLASS")

    def callback_classes(self) -> list[type[Any]]:
        """The classes of the callbacks; InputError if one is invalid."""
        return [_class(reference) for reference in self.callbacks]


def _class(reference: str) -> type[Any]:
    try:
        found = resolve(reference)
        if not (isinstance(found, type) and all(hasattr(found, event) for event in EVENTS)):
            raise Unfit("must be a class that inherits from feddwa.Callback")
        check_arguments(found, (), found.__name__)
    except Unfit as error:
        raise InputError(f"--callback {reference}: {error}") from error.__cause__
    return found


def _installed(package: str) -> bool:
    """Whether a package can be imported; a folder of the same name, such as wandb's, does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None
