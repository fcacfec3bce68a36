"""Clients that join after training: one sketch up, one personalised model down, no round of the others.

python benchmarks/newcomers.py --dataset digits --partitions groups rotations --seeds 0 1 2

Every fourth of 20 clients, 5 in all, stays away while FedDWA+ trains the others. Then each of them

    downloads the average model m, trains one epoch from it, and sends a sketch of the update d
    gets, layer by layer, sum_j p_j w_j with p_j ~ max(cos(d, w_j - m), 0)^q over the members' models w_j

and continues alone: its rounds are local epochs. Beside it: the same newcomers starting from the average model. The
epoch that the sketch was made of is not kept, so both have trained equally much. As in FedDWA+, models are sent
without class frequencies, and each client trains and uses them with its own.
"""

import argparse

import numpy as np
import torch
from torch import Tensor

from feddwa.algorithms import FedDWAPlus
from feddwa.algorithms.prior import add_prior
from feddwa.build import choose_device, load_task, make_network
from feddwa.config import RunConfig
from feddwa.data.federated import federate
from feddwa.engine import Engine, Settings, Stack, Trainer, evaluate
from feddwa.engine.rows import only, repeat, take
from feddwa.federation import Federation
from feddwa.mixing import mix_groups, parameter_groups
from feddwa.sketch import sketch

JOINING, ROUNDS, SKETCH = 5, (0, 1, 5), 2048


def welcome(step: Stack, members: Stack, mean: Stack, power: float, seed: int) -> Stack:
    """The newcomers' models (n, *shape) from sketches of their updates and the members' models (m, *shape)."""
    groups, shares = parameter_groups(members, "layer"), {}
    for group, names in groups.items():
        offsets = {name: members[name] - mean[name] for name in names}
        theirs = sketch(offsets, SKETCH, seed, 0).double()  # (m, k)
        mine = sketch(only(step, names), SKETCH, seed, 0).double()  # (n, k): all that a newcomer sends
        shares[group] = _weights(torch.nn.functional.cosine_similarity(mine.unsqueeze(1), theirs, dim=2), power)
    return mix_groups(shares, groups, members)[0]


def _weights(agreement: Tensor, power: float) -> Tensor:
    """max(a, 0)^q with rows normalised to one; a row of zeros becomes uniform."""
    raised = agreement.clamp(min=0) ** power
    raised = torch.where(raised.sum(1, keepdim=True) > 0, raised, torch.ones_like(raised))
    return raised / raised.sum(1, keepdim=True)


def measure(config: RunConfig) -> np.ndarray:
    """(2, rounds): mean accuracy of the newcomers, from their personalised models and from the average model."""
    task, device = load_task(config), choose_device(config.device)
    clients = task.clients
    away = np.linspace(clients // JOINING - 1, clients - 1, JOINING).astype(int)
    stay = np.setdiff1d(np.arange(clients), away)
    settings = Settings(config.epochs, config.batch_size or 0, config.lr or 0.0)

    def engine(who: np.ndarray, halves: bool) -> Engine:
        data = federate(task.dataset, task.partition.only(who), device)
        data = FedDWAPlus.split(data, np.random.default_rng(config.seed)) if halves else data
        return Engine(make_network(config, task.dataset), data, settings, config.seed)

    federation = Federation(FedDWAPlus(), engine(stay, halves=True))
    for _ in range(config.rounds or 0):
        federation.step()
    used, statistics = federation.personal(federation.all_clients())
    members = add_prior(used, federation.memory, -1)
    mean = {name: value.mean(0, keepdim=True) for name, value in members.items()}
    buffers = repeat(
        {name: value.to(torch.float64).mean(0).to(value.dtype) for name, value in statistics.items()}, JOINING
    )
    new, everyone = engine(away, halves=False), torch.arange(JOINING)
    at_home = Federation(FedDWAPlus(), new).memory  # of the newcomers: nothing but their class frequencies is looked at
    start = add_prior(repeat({name: value[0] for name, value in mean.items()}, JOINING), at_home)
    ahead, _ = Trainer(new, everyone, 0).sgd(start, {"buffers": buffers})
    step = {name: value - start[name] for name, value in ahead.items()}
    mixed = welcome(step, members, mean, federation.algorithm.power, config.seed)  # type: ignore[attr-defined]
    return np.array([_follow(new, model, buffers) for model in (add_prior(mixed, at_home), start)])


def _follow(engine: Engine, model: Stack, buffers: Stack) -> list[float]:
    """The accuracy before and after some epochs alone."""
    everyone, memory, found = torch.arange(JOINING), {"buffers": buffers}, []
    for round in range(max(ROUNDS) + 1):
        if round in ROUNDS:
            found.append(100 * float(evaluate(engine, model, memory["buffers"], everyone).accuracy.mean()))
        model, memory = Trainer(engine, everyone, round + 1).sgd(take(model, everyone), memory)
    return found


def main() -> None:
    """A row per partition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--partitions", nargs="+", default=["groups", "rotations", "label-permutation"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    print(f"| {JOINING} newcomers | " + " | ".join(f"{r} rounds: sketch / average" for r in ROUNDS) + " |")
    for partition in options.partitions:
        runs = [
            measure(
                RunConfig(dataset=options.dataset, data_dir=options.data_dir, partition=partition, seed=seed).resolved()
            )
            for seed in options.seeds
        ]
        own, average = np.mean(runs, axis=0)
        print(
            f"| {partition} | " + " | ".join(f"{a:.1f} / {b:.1f}" for a, b in zip(own, average, strict=True)) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
