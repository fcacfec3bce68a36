"""Python's entry points: `feddwa.run`, and `feddwa.compare` for several methods on the same data."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from feddwa import rates
from feddwa.build import check_suited, completed, load_dataset, make_engine, tasks_of
from feddwa.callbacks import Callback, split_off
from feddwa.config import RunConfig, options_of
from feddwa.data.options import DataOptions
from feddwa.data.sources import as_dataset
from feddwa.data.task import Task
from feddwa.errors import require, unknown
from feddwa.experiment import run_seeds, run_tasks, watching
from feddwa.objects import named
from feddwa.params import check_alternatives, fields_of
from feddwa.plugins import ALGORITHMS, label
from feddwa.result import Comparison, Result, Results
from feddwa.results import runs
from feddwa.results.recorder import Observer
from feddwa.seeds import SeededConfig


@overload
def run(
    config: RunConfig | None = None, *, seeds: Sequence[int], observe: Callable[..., None] = ..., **options: Any
) -> Results: ...


@overload
def run(config: RunConfig | None = None, *, seeds: None = None, observe: Observer = ..., **options: Any) -> Result: ...


def run(
    config: RunConfig | None = None,
    *,
    seeds: Sequence[int] | None = None,
    observe: Callable[..., None] = lambda line, seed=0: None,
    **options: Any,
) -> Result | Results:
    """Run a configuration, or `run(algorithm="feddwa", rounds=10, ...)`: the options of `feddwa run`, by name.

    Objects are accepted wherever a name is:

    - `dataset`: a list of clients (x, y) or (x, y, x_test, y_test), or a mapping from their names to these; x is an
      array, or for a network with several inputs a mapping or tuple of arrays. Also PyTorch datasets, pandas tables, a
      `feddwa.data.dataset.Dataset`, or a function that returns one.
    - `model`: a module with the initial parameters of all clients, or a class or function that makes one. Parameters
      with requires_grad=False stay fixed. Its dtype is the run's unless `dtype` is given.
    - `loss`: a function of (outputs, targets). `metrics`: a mapping from names to such functions, which are measured on
      every client's test data, or names.
    - `algorithm`, `partition`: an instance, a class, or for a partition a function.
    - `callbacks`: a list of `Callback`s, which are this call's, and of references, which are the run's.

    `out` is the run directory, by default a new one in runs/. Another process can resume it and report on it, so
    objects need a name there: classes and functions of a module or script; data are copied into the cache. `out=False`
    writes nothing and accepts all objects, those of a notebook included.

    `seeds`, in place of `seed`, trains several runs in lockstep and returns `Results`; `out` then has a run directory
    for each. `observe` is called with every line of metrics.jsonl, with seeds as `observe(line, seed=1)`.

    The logger `feddwa` gets the command's messages about the data: changes to them as warnings, and settings derived
    from them (partition, network, rate) as information.
    """
    with planned(config or RunConfig(), seeds, options) as plan:
        return plan.run(observe)


def compare(
    algorithms: Sequence[Any] | Mapping[str, Any] = ("feddwa", "local", "fedavg"),
    *,
    seeds: Sequence[int] | None = None,
    observe: Callable[..., None] = lambda line, seed=0: None,
    **options: Any,
) -> Comparison:
    """Run several algorithms on the same data, from the same seeds, one after the other.

    - `algorithms`: names, classes or instances such as `feddwa.FedDWA(top_k=3)`; a mapping names them, which two
      instances of one class need.
    - Everything else is as in `run`. `out` is a directory with one inside for each algorithm; `feddwa report` takes the
      whole directory, `feddwa resume` single ones.

    All algorithms are checked before the first is trained. Hyper-parameters are those of the instances, else the
    defaults: unlike `feddwa compare`, this function does not measure ClusterFL's tolerance.
    """
    require("algorithm" not in options, "algorithm", options.get("algorithm"), "a list, as algorithms=[...]")
    chosen, out = _by_name(algorithms), options.pop("out", None)
    if out is not False:
        out = Path(out or runs.default_path("compare", str(options.get("dataset", "digits"))))
    data = options.get("dataset")
    if not (data is None or isinstance(data, str | Path) or callable(data)):  # read once for all algorithms
        how = {key: options.pop(key) for key in list(options) if key in fields_of(DataOptions)}
        options["dataset"] = as_dataset(data, DataOptions(**how))
    with ExitStack() as held:
        plans = {}
        for name, algorithm in chosen.items():
            own = {**options, "algorithm": algorithm, "out": False if out is False else str(out / name)}
            plans[name] = held.enter_context(planned(RunConfig(), seeds, own))
        for plan in plans.values():
            plan.check()
        found = {name: plan.run(observe) for name, plan in plans.items()}
    return Comparison(found, None if out is False else str(out))


@dataclass(frozen=True)
class Plan:
    """A run before its start: data are loaded and divided, nothing is trained or written."""

    config: RunConfig  # of the first seed, with values from the data filled in
    tasks: Mapping[int, Task]  # seed -> data
    several: bool  # whether results are by seed
    written: bool
    callbacks: Sequence[Callback]

    def check(self) -> None:
        """Raise InputError if network and data do not suit the algorithm."""
        task = self.tasks[self.config.seed]
        config = completed(self.config, task.dataset)
        check_suited(config, make_engine(config, task))

    def run(self, observe: Callable[..., None]) -> Result | Results:
        """Train."""
        config = self.config
        if not self.several:
            task = self.tasks[config.seed]
            return run_tasks([config], [task], [observe], written=self.written, callbacks=self.callbacks)[0]
        path = Path(config.out or runs.default_path(config.algorithm, config.dataset)) if self.written else None
        return run_seeds(config, self.tasks, path, watching(observe, self.tasks), self.callbacks)


@contextmanager
def planned(config: RunConfig, seeds: Sequence[int] | None, options: dict[str, Any]) -> Iterator[Plan]:
    """The parts of a run; inside the context its configuration's names refer to the caller's objects."""
    known = [field.name for field in dataclasses.fields(RunConfig)]
    for name in options:
        if name not in known:
            raise unknown("run", name, known)
    written = options.get("out") is not False
    if seeds is not None:
        options["seeds"] = tuple(seeds) if isinstance(seeds, range) else seeds
        check_alternatives("", options, SeededConfig)
    mine = split_off(options)
    with named(options if written else {**options, "out": None}, written) as plain:
        given = SeededConfig(**options_of(config))
        several = dataclasses.replace(given, **plain).resolved()
        config = several.run_config()
        if written:
            runs.check_free(config.out)
        tracked = " ".join(config.track)
        require(written or not tracked, "track", tracked, "left out where out=False, which writes nothing")
        own = several.seeds or [config.seed]
        tasks, first = tasks_of(config, own, load_dataset(config)), dataclasses.replace(config, seed=own[0])
        config = rates.logged(first, tasks[first.seed])
        yield Plan(config, tasks, several.seeds is not None, written, mine)


def _by_name(algorithms: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Name -> algorithm; names are unique and valid as folder names."""
    require(not isinstance(algorithms, str), "algorithms", algorithms, "a list of them, or a mapping from names")
    if not isinstance(algorithms, Mapping):
        names = [_name_of(each) for each in algorithms]
        for name in names:
            require(names.count(name) == 1, "algorithms", name, "given once, or with names of its own in a mapping")
        algorithms = dict(zip(names, algorithms, strict=True))
    require(len(algorithms) > 0, "algorithms", "none", "one or more")
    for name in algorithms:
        plain = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
        require(plain, "algorithms", name, "a name that a folder may have")
    return dict(algorithms)


def _name_of(algorithm: Any) -> str:
    """A name, or this package's name for a class or an instance's class."""
    if isinstance(algorithm, str):
        return label(algorithm)
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return next((name for name, known in ALGORITHMS.builtin.items() if known is kind), kind.__name__)
