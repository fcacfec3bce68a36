"""`feddwa tune`: hyper-parameters of several methods, searched with equal budgets."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from feddwa.cli.train import SeveralOptions, filled_in, method_configs, told
from feddwa.config_file import from_toml, to_toml
from feddwa.errors import InputError, require
from feddwa.params import AtMost, Option, parse, typed
from feddwa.plugins import ALGORITHMS, check_dataset

TUNING = "tune.toml"  # in the directory of a search
PAGE = "search.html"
TRIALS = 30
FREE = ("out", "jobs", "quiet", "data_dir", "device")  # may differ where a search is continued
SEARCH_SEED = 1000  # far from the seeds that people report


@dataclass(frozen=True)
class TuneConfig(SeveralOptions):
    """Tune methods with equal budgets: searched on validation data, the winners tested once on fresh seeds.

    The same command, or `feddwa resume DIR`, continues a search that was interrupted.
    """

    seed: Annotated[int, AtMost(2**63 - 1)] = SEARCH_SEED
    """Seed of the search: its partition, its training, its draws."""
    trials: int | None = None
    """Trials of every method, its defaults being the first [30]."""
    budget: Annotated[str | None, Option(metavar="gradients=X")] = None
    """In place of --trials: gradients of single samples that all trials of a method may compute."""
    sampler: Literal["tpe", "random", "grid", "halving"] = "tpe"
    """How trials are drawn; halving: at random, and only the best third trains on after 1/9 and 1/3 of the rounds."""
    space: Annotated[tuple[str, ...], Option(metavar="KEY=RANGE", repeated=True)] = ()
    """KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c: what is tried, also of epochs, batch_size, ... Repeatable."""
    validation: float = 0.2
    """Share of each client's training samples that trials are scored on; the winner trains on all of them."""
    seeds_final: Annotated[tuple[str, ...], Option(metavar="SEED ...")] = ("0", "1", "2")
    """Seeds that the winner and the defaults are run and tested on; not that of the search."""
    batch: int | None = None
    """Trials trained together [what fits; of tpe at most a third of the trials, so that it learns from the others]."""
    jobs: int = 1
    """Processes, each with one method at a time."""

    def check_tuning(self) -> None:
        """Raise InputError unless budget, space and seeds are valid."""
        for key in ("trials", "batch", "jobs"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"--{key}", value, "at least 1")
        require(0 < self.validation < 1, "--validation", self.validation, "above 0 and below 1")
        if self.early_stop is not None:
            raise InputError("--early-stop: all trials train as long; leave it out, or search with --sampler halving")
        if self.budget is not None and self.trials is not None:
            raise InputError("--budget: stands in place of --trials; leave one out")
        counted = self.gradients is None or self.sampler != "grid"
        require(counted, "--sampler", self.sampler, "another with --budget: a grid has a number of points")
        seeds, told = self.final_seeds, " ".join(self.seeds_final)
        require(0 < len(seeds) == len(set(seeds)), "--seeds-final", told, "one seed or more, each once")
        fresh = f"others than --seed {self.seed}, which the search has seen"
        require(self.seed not in seeds, "--seeds-final", told, fresh)

    @property
    def gradients(self) -> float | None:
        """The budget in gradients; None where it is a number of trials."""
        if self.budget is None:
            return None
        unit, _, amount = self.budget.partition("=")
        require(unit == "gradients", "--budget", self.budget, "of the form gradients=NUMBER")
        value: float = typed("--budget", parse(amount, float), float)
        require(0 < value < math.inf, "--budget", self.budget, "gradients=NUMBER, a finite number above 0")
        return value

    @property
    def final_seeds(self) -> tuple[int, ...]:
        """The fresh seeds."""
        kind = Annotated[int, AtMost(2**63 - 1)]
        found = tuple(typed("--seeds-final", parse(each, kind), kind) for each in self.seeds_final)
        require(min(found, default=0) >= 0, "--seeds-final", " ".join(self.seeds_final), "whole numbers from 0 on")
        return found


def tune_command(config: TuneConfig) -> int:
    """`feddwa tune`."""
    check_dataset(config.dataset)
    for name in config.algorithms:
        ALGORITHMS.check(name, "--algorithms")
    config.check_tuning()
    config.run_config().checked()

    from feddwa.results.runs import check_free, default_path

    out = Path(config.out) if config.out else default_path("tune", config.dataset)
    if (out / TUNING).is_file():
        config = _same(config, from_toml(out / TUNING, TuneConfig), out)
    else:
        check_free(str(out))
    return tune_methods(config, out)


def _same(config: TuneConfig, stored: TuneConfig, out: Path) -> TuneConfig:
    """What goes on in a directory; raises InputError where something else is asked for there."""
    first = next(iter(method_configs(config, out).values())).resolved()
    filled = filled_in(config, first)
    for field in dataclasses.fields(TuneConfig):
        given, then = getattr(filled, field.name), getattr(stored, field.name)
        if field.name not in FREE and getattr(config, field.name) != field.default and given != then:
            valid = f"{then}, as the search in {out} has it, or another directory"
            raise InputError(f"--{field.name.replace('_', '-')} {given}: must be {valid}")
    return dataclasses.replace(stored, **{name: getattr(config, name) for name in FREE if name != "out"})


def tune_methods(config: TuneConfig, out: Path) -> int:
    """All searches of a directory, to their end, and the report about them."""
    from feddwa.build import load_task, settled
    from feddwa.cli.outcome import resumable
    from feddwa.report.progress import decoding
    from feddwa.report.search import show_search, write_search
    from feddwa.report.terminal import make_console
    from feddwa.storage import write_whole
    from feddwa.tune.command import Tuning, check_engine, locked, run_tuning
    from feddwa.tune.results import read_tuning
    from feddwa.tune.search import Budget, Search
    from feddwa.tune.space import check_space

    check_engine()
    console = make_console(quiet=config.quiet)
    configs = {name: each.resolved() for name, each in method_configs(config, out).items()}
    check_space(configs.values(), config.space)
    first = next(iter(configs.values()))
    with decoding(config.quiet) as tell:
        task = load_task(first, tell)
    first = told(console, first, task)
    config = dataclasses.replace(config, lr=first.lr)
    configs = {name: settled(dataclasses.replace(each, lr=first.lr), task.dataset) for name, each in configs.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / TUNING, to_toml(filled_in(config, first)))
    trials = (config.trials or TRIALS) if config.gradients is None else None
    budget = Budget(config.sampler, trials, config.gradients, config.space, config.batch)
    searches = tuple(Search(each, out / name, budget) for name, each in configs.items())

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with resumable(out), locked(out / TUNING):
        run_tuning(Tuning(searches, config.final_seeds, config.jobs), say)
        found = read_tuning(out)
        write_search(found, out / PAGE)
    show_search(console, found)
    say(f"\n  {out / PAGE}   open it in a browser\n  feddwa compare --tuned {out} compares the winners")
    if config.quiet:
        print(out)
    return 0
