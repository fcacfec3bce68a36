"""FedDWA+'s aggregation weights per layer after the last round, as docs/images/layers.png.

python benchmarks/layers.py
"""

import argparse

import numpy as np

from feddwa.build import choose_device, load_task, make_network
from feddwa.config import RunConfig
from feddwa.data.federated import federate
from feddwa.engine import Engine, Settings
from feddwa.federation import Federation
from feddwa.results.plot import Panel, draw_weights

PARTITIONS = ("groups", "rotations", "label-permutation")  # all with the same four blocks of clients


def panels(config: RunConfig) -> tuple[list[Panel], np.ndarray | None]:
    """The weights of every layer after the last round, and the true groups."""
    task, algorithm = load_task(config), config.make_algorithm()
    data = federate(task.dataset, task.partition, choose_device(config.device))
    data = algorithm.split(data, np.random.default_rng(config.seed))
    settings = Settings(config.epochs, config.batch_size or 0, config.lr or 0.0)
    federation = Federation(algorithm, Engine(make_network(config, task.dataset), data, settings, config.seed))
    last = [federation.step() for _ in range(config.rounds or 0)][-1]
    layers = {name.partition("/")[2]: value.numpy() for name, value in last.info.items() if "/" in name}
    title = config.partition.replace("-", " ")
    shown = [Panel(f"{title}: {layer}", weights, last.cohort.ids.numpy()) for layer, weights in layers.items()]
    return shown, task.partition.groups


def main() -> None:
    """A panel per partition and layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits-mlp")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", default="docs/images/layers.png")
    options = parser.parse_args()
    found, groups = [], None
    for partition in PARTITIONS:
        config = RunConfig(
            algorithm="feddwa_plus", partition=partition, model=options.model, rounds=options.rounds
        ).resolved()
        own, groups = panels(config)
        found += own
    draw_weights(found, options.out, groups, columns=len(found) // len(PARTITIONS))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
