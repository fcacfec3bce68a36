"""Our side of benchmarks/field.py: `feddwa.run` with its run directory.

    python run_ours.py FOLDER

Steps are counted from the FLOPs that the trainer books for each client, over those of a plain module's step.
"""

import sys
import time
from pathlib import Path

import clock
import recipes
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import feddwa
from feddwa import build
from feddwa.callbacks import Entry, Run
from feddwa.results.provenance import made_by


class Watch(feddwa.Callback):
    """Seconds from round to round without evaluation, and FLOPs of training."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.flops: list[torch.Tensor] = []  # (m,) of each round's clients
        self.evaluations: list[float] = []
        self.setup = 0.0

    def on_begin(self, run: Run) -> None:
        self.setup = clock.since_start()
        self.last = time.perf_counter()

    def on_round(self, run: Run, round: Entry) -> None:
        if round.result is None:  # the delivered models
            return
        now, evaluation = time.perf_counter(), round.line["seconds"]["evaluate"]
        self.rounds.append(now - self.last - evaluation)
        self.flops.append(round.result.costs.flops)
        if "central" in round.line:
            self.evaluations.append(evaluation)
        self.last = time.perf_counter()


def batch_flops(module: torch.nn.Module, shape: tuple[int, ...], width: int) -> int:
    """FLOPs of a step on a batch: forward and backward."""
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(torch.zeros(width, *shape)), torch.zeros(width, dtype=torch.int64)).backward()
    return counter.get_total_flops()


def steps_in(flops: torch.Tensor, sample: float, width: int, epochs: int) -> int:
    """Steps of clients from their `flops` (m,) over `epochs`; sample: FLOPs per sample of a step."""
    batches = flops / sample / epochs / width  # short ones count as the part of a batch that they are
    return int((batches - 1e-6).ceil().sum()) * epochs


def main() -> None:
    folder = Path(sys.argv[1])
    task = clock.task_in(folder)
    recipe, watch = recipes.RECIPES[task["name"]].sized(task["share"], task["clients"]), Watch()
    config = recipe.config(task["rounds"], task["device"], task["tensor_cores"], task["seed"])
    result = feddwa.run(config, callbacks=[watch], out=str(folder / "run"))
    data, made = build.load_dataset(config), made_by(torch.device("cpu"))
    width = task["batch_size"]
    sample = batch_flops(build.make_network(config, data), data.shape, width) / width
    clock.leave(
        folder,
        rounds=watch.rounds,
        steps=[steps_in(flops, sample, width, task["epochs"]) for flops in watch.flops],
        evaluations=watch.evaluations,
        setup=watch.setup,
        accuracy=result.metrics[-1]["central"]["all"],
        versions=made["versions"],
        commit=f"{made['commit']}{'-dirty' if made['dirty'] else ''}",
    )


if __name__ == "__main__":
    main()
