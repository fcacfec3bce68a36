"""Trackers: callbacks that write every round for another program to show (`--track NAME`). One file each."""

import importlib
from collections.abc import Sequence

from feddwa.callbacks import Callback
from feddwa.config import RunConfig


def callbacks_of(config: RunConfig) -> Sequence[Callback]:
    """The trackers and callbacks that a configuration names, made anew for a run."""
    trackers = [importlib.import_module(f"feddwa.trackers.{name}").Tracker() for name in config.track]
    return [*trackers, *(kind() for kind in config.callback_classes())]
