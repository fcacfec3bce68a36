"""The checks of data by `feddwa doctor`, before any training.

Every check looks at a bounded number of samples, so that it takes seconds on any data.
"""

from collections.abc import Iterator

from feddwa.data.catalogue import is_named
from feddwa.data.inputs import inputs_of
from feddwa.data.task import Task
from feddwa.datacheck.content import classes, features, overview, targets, tests
from feddwa.datacheck.layout import images
from feddwa.datacheck.leaks import duplicates, recordings
from feddwa.results.findings import Finding


def data_findings(task: Task) -> Iterator[Finding]:
    """All findings about a task's data."""
    dataset, inputs = task.dataset, inputs_of(task.dataset)
    yield from overview(dataset, inputs)
    if dataset.classes and dataset.y.ndim == 1:
        yield from classes(dataset)
    if not dataset.classes:
        yield from targets(dataset)
    yield from tests(dataset)
    if inputs.kind == "several":
        return
    yield from duplicates(task)
    if inputs.kind in ("features", "series"):
        yield from features(dataset, inputs)
    if inputs.kind == "image":
        yield from images(dataset)
    if inputs.kind in ("features", "series", "image") and not is_named(dataset.name):
        yield from recordings(dataset, task.partition)
