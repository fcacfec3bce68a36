"""`feddwa tune`: hyper-parameters of several methods, searched with equal budgets."""

import dataclasses
from collections.abc import Container
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from feddwa.cli.methods import SeveralOptions, filled_in, method_configs, prepared
from feddwa.config_file import from_toml, to_toml
from feddwa.errors import InputError, require
from feddwa.groups import expanded
from feddwa.params import AtMost, Option
from feddwa.plugins import ALGORITHMS, check_dataset
from feddwa.tune.options import TuningOptions

TUNING = "tune.toml"  # in the directory of a search
PAGE, MARKDOWN = "search.html", "table.md"
FREE = ("out", "jobs", "quiet", "data_dir", "device")  # may differ where a search is continued
SEARCH_SEED = 1000  # far from the seeds that people report


@dataclass(frozen=True)
class TuneConfig(SeveralOptions, TuningOptions):
    """Tune methods with equal budgets: searched on validation data, the winners tested once on fresh seeds.

    The same command, or `feddwa resume DIR`, continues a search that was interrupted.
    """

    seed: Annotated[int, AtMost(2**63 - 1)] = SEARCH_SEED
    """Seed of the search: its partition, its training, its draws."""
    seeds: Annotated[tuple[int, ...] | None, Option(hidden=True)] = None  # those of the runs are --seeds-final
    validation: float = 0.2
    """Share of each client's training samples that trials are scored on; the winner trains on all of them."""

    def check_tuning(self) -> None:
        """Raise InputError unless the options of the search are valid, by themselves and with those of a run."""
        self.check_search()
        require(0 < self.validation < 1, "--validation", self.validation, "above 0 and below 1")
        if self.dp:
            raise InputError("--dp: a search would spend the budget with every trial; tune without, then run with it")
        if self.early_stop is not None:
            raise InputError("--early-stop: all trials train as long; leave it out, or search with --sampler halving")
        fresh = f"others than --seed {self.seed}, which the search has seen"
        require(self.seed not in self.seeds_final, "--seeds-final", self.seed, fresh)


def tune_command(config: TuneConfig) -> int:
    """`feddwa tune`."""
    check_dataset(config.dataset)
    names, brought = expanded(config.algorithms)
    config = dataclasses.replace(config, algorithms=names)
    for name in names:
        ALGORITHMS.check(name, "--algorithms")
    config.check_tuning()
    config.checked()

    from feddwa.results.runs import check_free, default_path

    out = Path(config.out) if config.out else default_path("tune", config.dataset)
    if (out / TUNING).is_file():
        config = _same(config, from_toml(out / TUNING, TuneConfig), out)
    else:
        check_free(str(out))
    return tune_methods(config, out, brought)


def check_engine() -> None:
    """Raise InputError if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise InputError("feddwa tune: needs Optuna, which is not installed; pip install 'feddwa[tune]'")


def _same(config: TuneConfig, stored: TuneConfig, out: Path) -> TuneConfig:
    """The search that a directory holds; InputError if other options are given for it."""
    first = next(iter(method_configs(config, out).values())).resolved()
    filled = filled_in(config, first)
    for field in dataclasses.fields(TuneConfig):
        given, then = getattr(filled, field.name), getattr(stored, field.name)
        if field.name not in FREE and getattr(config, field.name) != field.default and given != then:
            valid = f"{then}, as the search in {out} has it, or another directory"
            raise InputError(f"--{field.name.replace('_', '-')} {given}: must be {valid}")
    return dataclasses.replace(stored, **{name: getattr(config, name) for name in FREE if name != "out"})


def tune_methods(config: TuneConfig, out: Path, brought: Container[str] = ()) -> int:
    """All searches of a directory, to their end, and the report about them.

    brought: names that a group stands for; those that do not suit the task are left out.
    """
    check_engine()  # before what imports it

    from feddwa.build import load_task
    from feddwa.cli.outcome import resumable
    from feddwa.report.progress import decoding
    from feddwa.report.search import show_search, write_search, write_table
    from feddwa.report.terminal import make_console
    from feddwa.storage import write_whole
    from feddwa.tune.command import Tuning, locked, run_tuning
    from feddwa.tune.results import read_tuning
    from feddwa.tune.search import Budget, Search
    from feddwa.tune.space import check_space

    console = make_console(quiet=config.quiet)
    configs = {name: each.resolved() for name, each in method_configs(config, out).items()}
    check_space(configs.values(), config.space)
    first = next(iter(configs.values()))
    with decoding(config.quiet) as tell:
        task = load_task(first, tell)
    config, configs = prepared(console, config, out, task, brought)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / TUNING, to_toml(config))
    budget = Budget(config.sampler, config.trials_due, config.gradients, config.space, config.batch)
    searches = tuple(Search(each, out / name, budget) for name, each in configs.items())

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with resumable(out, search=True), locked(out / TUNING):
        run_tuning(Tuning(searches, config.seeds_final, config.jobs), say)
        found = read_tuning(out)
        write_search(found, out / PAGE)
        write_table(found, out / MARKDOWN)
    show_search(console, found)
    say(f"\n  {out / PAGE}   open it in a browser\n  feddwa compare --tuned {out} compares the winners")
    if config.quiet:
        print(out)
    return 0
