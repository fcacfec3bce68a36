"""A run in Weights & Biases: online or, with WANDB_MODE=offline, as files in the run directory for `wandb sync`.

The project is "feddwa" unless WANDB_PROJECT says another. wandb.json in the run directory has the run's id and its last
round, so that a run that goes on is the same run there, and no round is told twice.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from feddwa.callbacks import Callback, Entry, Run, numbers
from feddwa.config import options_of
from feddwa.storage import write_whole

FILE = "wandb.json"


class Tracker(Callback):
    """Logs every round as a step."""

    _run: Any = None

    def on_begin(self, run: Run) -> None:
        """Begin a run there, or go on with it."""
        assert run.path is not None
        self._file, path = run.path / FILE, run.path.resolve()
        known = json.loads(self._file.read_text()) if self._file.exists() else {"id": secrets.token_hex(4)}
        self._id, self._last = known["id"], known.get("round", 0)
        self._keep()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "feddwa"), id=self._id, name="/".join(path.parts[-2:]),
            dir=str(path), config=options_of(run.config), resume="allow", reinit="create_new",
            settings=wandb.Settings(silent=True),
        )  # fmt: skip

    def on_round(self, run: Run, round: Entry) -> None:
        """Log a round, once."""
        number = round.line["round"]
        if number > self._last:
            self._run.log({name: value for name, value in numbers(round.line) if value is not None}, step=number)
            self._last = number
            self._keep()

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """Wait until all is written."""
        if self._run is not None:
            self._run.finish(exit_code=int(summary is None))

    def _keep(self) -> None:
        write_whole(Path(self._file), json.dumps({"id": self._id, "round": self._last}) + "\n")
