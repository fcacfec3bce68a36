"""A run in MLflow: in the store that MLFLOW_TRACKING_URI names, by default the database mlflow.db of this folder.

The experiment is "feddwa" unless MLFLOW_EXPERIMENT_NAME says another. mlflow.json in the run directory has the run's id
there. A run that goes on is the same run; rounds that the store has already are not told twice.
"""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from feddwa.callbacks import Callback, Entry, Run, numbers
from feddwa.config import options_of
from feddwa.storage import write_whole

FILE, ROUND = "mlflow.json", "round"
LONGEST = 500  # letters of a parameter's value that every store takes


class Tracker(Callback):
    """Logs the options as parameters, and every round as a step."""

    _id = ""

    def on_begin(self, run: Run) -> None:
        """Begin a run there, or go on with it."""
        assert run.path is not None
        file, path, self._client = run.path / FILE, run.path.resolve(), MlflowClient()
        if file.exists():
            self._id = json.loads(file.read_text())["run"]
            self._client.update_run(self._id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "feddwa")
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            made = self._client.create_run(experiment, run_name="/".join(path.parts[-2:]))
            self._id = made.info.run_id
            told = {key: str(value)[:LONGEST] for key, value in options_of(run.config).items() if value is not None}
            self._client.log_batch(self._id, params=[Param(key, value) for key, value in told.items()])
            write_whole(file, json.dumps({"run": self._id}) + "\n")
        self._last = max((own.step for own in self._client.get_metric_history(self._id, ROUND)), default=0)

    def on_round(self, run: Run, round: Entry) -> None:
        """Log a round, once: all of its numbers in one transaction."""
        number, now = round.line["round"], int(1000 * time.time())
        if number > self._last:
            known = [(name, value) for name, value in numbers(round.line) if value is not None]
            self._client.log_batch(self._id, metrics=[Metric(name, value, now, number) for name, value in known])
            self._last = number

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """Say that it is over."""
        if self._id:
            self._client.set_terminated(self._id, "KILLED" if summary is None else "FINISHED")
