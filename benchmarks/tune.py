"""The cost of a stack of 32 trials against 32 trials one by one, timed in turn in one run.

    python benchmarks/tune.py                          # digits MLP and CIFAR CNN, on the device that there is
    python benchmarks/tune.py digits-mlp --methods fedavg feddwa --device cpu
    python benchmarks/tune.py cifar-cnn --dtype tf32 --json ratios.json

Trials differ in their rate and, where the method has one that is searched, in a hyper-parameter, as `feddwa tune` draws
them; data are random. "warm" is the time once the programs are compiled, "cold" that of the first time, and ratio the
share of the warm stack's time in that of the 32 alone. Alone, a few trials are timed and counted 32 times (`--alone`).

The stack's time is divided. For all trials at once: training, scoring, "server" (products of models, and whether they
are finite) and "stacking" (copies of trials' rows into one stack). For one trial after another: "setup" (the federation
before its first round) and the rest (messages, memory, bookkeeping), which is told in ms for a trial and round. Parts
are timed with the GPU waited for at their ends, so that the stack is a little slower than it would be.
"""

import argparse
import json
import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from feddwa.build import completed
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.engine import Engine
from feddwa.engine.fast.joint import JointCall
from feddwa.engine.fast.requests import Scoring, Training
from feddwa.tune import trials
from feddwa.tune.space import applied, space_of

# name -> (dataset whose defaults hold, sample shape, clients, samples per client, test samples per client, rounds)
CASES = {
    "digits-mlp": ("digits", (1, 8, 8), 20, 72, 18, 10),
    "cifar-cnn": ("cifar10", (3, 32, 32), 20, 200, 50, 5),
}
SHARE = 0.2  # held out to score trials on


def make_task(shape: tuple[int, ...], clients: int, train: int, test: int) -> Task:
    rng, each = np.random.default_rng(0), train + test
    x = rng.integers(0, 256, (clients * each, *shape), dtype=np.uint8)
    y = rng.integers(0, 10, clients * each)
    dataset = Dataset("digits", x, y, clients * each - 1, 10, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    rows = np.arange(clients * each).reshape(clients, each)
    return Task(dataset, Partition([own[:train] for own in rows], [own[train:] for own in rows]))


def trial_configs(config: RunConfig, count: int) -> list[RunConfig]:
    """`count` trials, every dimension with its own values."""
    levels = {each.key: each.levels(count) for each in space_of(config) if not each.tried.choices}
    values = ({key: own[number % len(own)] for key, own in levels.items()} for number in range(count))
    return [applied(config, own).resolved() for own in values]


PARTS = ("training", "scoring", "server", "stacking", "setup")


@contextmanager
def watched(seconds: dict[str, float], device: torch.device):
    """Time each of PARTS; nested calls count for the inner part only."""
    inner = [0.0]  # seconds of parts that have ended within the one that goes on
    places = [
        ("training", Engine, "advance"), ("scoring", Engine, "score"), ("server", JointCall, "serve"),
        ("stacking", Training, "serve"), ("stacking", Scoring, "serve"), ("setup", trials, "make_federation"),
    ]  # fmt: skip

    def timed(name, function):
        def call(*given):
            inner.append(0.0)
            begun = clock(device)
            found = function(*given)
            found = list(found) if isinstance(found, Generator) else found
            spent = clock(device) - begun
            seconds[name] += spent - inner.pop()
            inner[-1] += spent
            return found

        return call

    before = [(owner, key, owner.__dict__[key]) for _, owner, key in places]
    for (name, owner, key), (*_, own) in zip(places, before, strict=True):
        static = isinstance(own, staticmethod)
        made = timed(name, own.__func__ if static else own)
        setattr(owner, key, staticmethod(made) if static else made)
    try:
        yield
    finally:
        for owner, key, own in before:
            setattr(owner, key, own)


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(configs: Sequence[RunConfig], task: Task, rounds: int) -> tuple[float, dict[str, float]]:
    parts = dict.fromkeys(PARTS, 0.0)
    device = torch.device("cuda" if torch.cuda.is_available() and configs[0].device != "cpu" else "cpu")
    begun = clock(device)
    with watched(parts, device):
        trials.train(configs, task, [rounds])
    return clock(device) - begun, parts


def measure(case: str, method: str, args: argparse.Namespace) -> dict[str, object]:
    dataset, shape, clients, train, test, rounds = CASES[case]
    task = make_task(shape, clients, train, test)
    config = RunConfig(
        algorithm=method, dataset=dataset, partition="iid", clients=clients, rounds=rounds, dtype=args.dtype,
        device=args.device, validation=SHARE,
    )  # fmt: skip
    config = completed(config.resolved(), task.dataset)
    configs = trial_configs(config, args.trials)
    cold, _ = timed(configs, task, rounds)
    cold_alone, _ = timed(configs[:1], task, rounds)
    stacks, alone, parts = [], [], []
    for repeat in range(args.repeats):
        spent, own = timed(configs, task, rounds)
        stacks.append(spent)
        parts.append(own)
        alone += [timed([each], task, rounds)[0] for each in configs[repeat :: args.trials // args.alone][: args.alone]]
    stack, single = statistics.median(stacks), statistics.median(alone)
    middle = parts[int(np.argsort(stacks)[len(stacks) // 2])]
    return {
        "case": case, "method": method, "dtype": args.dtype, "device": name_of(args.device), "trials": args.trials,
        "rounds": rounds, "stack": stack, "alone": single, "ratio": stack / (args.trials * single), "cold": cold,
        "cold alone": cold_alone, **middle, "rest": stack - sum(middle.values()),
    }  # fmt: skip


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[], help=", ".join(CASES))
    parser.add_argument("--methods", nargs="*", default=["fedavg", "fedprox", "feddwa"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--alone", type=int, default=4, help="trials timed alone in each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    found = []
    print(f"{'case, method':<24} {'stack':>9} {'alone':>9} {'ratio':>6} {'cold':>7} {'  '.join(PARTS)}  rest")
    for case in args.cases or CASES:
        for method in args.methods:
            own = measure(case, method, args)
            found.append(own)
            shares = "  ".join(f"{own[part] / own['stack']:{len(part)}.0%}" for part in (*PARTS, "rest"))
            each = 1000 * own["rest"] / (own["trials"] * own["rounds"])
            print(
                f"{case + ', ' + method:<24} {own['stack']:7.2f} s {own['alone']:7.3f} s {own['ratio']:6.3f} "
                f"{own['cold']:5.1f} s {shares} ({each:.2f} ms)",
                flush=True,
            )
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
