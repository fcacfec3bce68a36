"""Build the parts of a run from its configuration: data, network, engine. Used by `experiment`, and by `flower` on real
nodes.
"""

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from feddwa import models, scoring
from feddwa.algorithms import Algorithm
from feddwa.attacks.attackers import Attackers
from feddwa.config import CLIENTS, RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.catalogue import OWN, own_defaults
from feddwa.data.dataset import Dataset, with_numbers
from feddwa.data.federated import HELD_OUT, federate, to_device
from feddwa.data.images import Tell
from feddwa.data.inputs import Inputs, inputs_of
from feddwa.data.task import Task
from feddwa.defences.chain import Defences
from feddwa.engine import Engine, Settings, keys
from feddwa.engine.network import Loss, frozen, head_name, trainable
from feddwa.engine.rows import digest
from feddwa.engine.trial import try_training
from feddwa.errors import InputError, counted, require
from feddwa.faults import Faults
from feddwa.federation import Federation
from feddwa.fit import (
    check_answers,
    check_central,
    check_clients,
    check_targets,
    check_trainable,
    check_validation,
    try_batch,
)
from feddwa.plugins import LOSSES, by_owners
from feddwa.recipe import check_recipe, settings_of
from feddwa.row_location import place_rows
from feddwa.sides import adds_layers, begin, network_of, policy_of, problem_of

Config = TypeVar("Config", bound=RunConfig)

FEWEST = 20, 5  # recommended minimum of training and test samples per client


def load_task(config: RunConfig, tell: Tell = lambda done, total: None) -> Task:
    """Load and divide a configuration's data; tell: called with (done, total) while images are decoded."""
    return divided(config, load_dataset(config, tell))


def load_dataset(config: RunConfig, tell: Tell = lambda done, total: None) -> Dataset:
    """Load a configuration's data."""
    return with_targets(config, sources.load(config.dataset, config.data_dir, config, tell))


def with_targets(config: RunConfig, dataset: Dataset) -> Dataset:
    """The data with targets in the type that the loss requires; raises InputError if they do not fit the loss."""
    if config.loss in scoring.NUMERIC:
        dataset = with_numbers(dataset)
    check_targets(config, dataset)
    return dataset


def divided(config: RunConfig, dataset: Dataset) -> Task:
    """Loaded data, divided among clients by a configuration's partition and seed."""
    config = completed(config, dataset)
    assert config.partition is not None
    assert config.clients is not None
    parameters = config.partition_parameters()
    partition = partitions.make(config.partition, parameters, dataset, config.clients, config.seed)
    partition = partitions.held_out(partition, config.clients - (config.members or 0), config.seed)
    return Task(dataset, partition, Attackers(config.seed, len(partition.train), config.make_attacks()).poison)


def tasks_of(config: RunConfig, seeds: Sequence[int], dataset: Dataset) -> dict[int, Task]:
    """Loaded data, divided for each seed."""
    return {seed: divided(dataclasses.replace(config, seed=seed), dataset) for seed in seeds}


def completed(config: Config, dataset: Dataset) -> Config:
    """A resolved configuration with its open values filled in from the data.

    These are `partition`, `clients`, `model`, `batch_size` and `lr`. A rate to search for stays "auto": see
    `rates.chosen`.
    """
    partition = config.partition or partitions.default_for(dataset)
    config = dataclasses.replace(fitted(config, inputs_of(dataset)), partition=partition).resolved()
    clients = config.clients or (dataset.owners if by_owners(partition) else clients_for(dataset))
    return dataclasses.replace(config, clients=max(1, clients)).resolved()


def clients_for(dataset: Dataset) -> int:
    """Number of clients for data without owners: 20, or fewer so that each has FEWEST samples.

    At least two, if both get a training and a test sample.
    """
    parts = dataset.train_count, len(dataset.y) - dataset.train_count
    enough = min(have // needed for have, needed in zip(parts, FEWEST, strict=True))
    return min(CLIENTS, max(2, enough), *parts)


def fitted(config: Config, inputs: Inputs) -> Config:
    """A configuration with the network, batch size and rate that suit the data's inputs, unless given."""
    usual = own_defaults(inputs.kind, inputs.shape)
    if config.model not in (None, usual.model):  # other networks have no known rate
        usual = OWN
    if config.model is None and inputs.kind == "several":
        raise InputError(f"--model: must be given, because the data have several inputs ({inputs})")
    if config.model is None and inputs.kind == "image" and inputs.shape[0] > 4 and inputs.shape[2] in (1, 3, 4):
        raise InputError(
            f"--model: must be given, because samples of shape {inputs.shape} appear to have channels last; store "
            "images as (n, C, H, W)"
        )
    open_ = {key: getattr(usual, key) for key in ("model", "batch_size", "lr") if getattr(config, key) is None}
    return dataclasses.replace(config, **open_)


def decisions(given: RunConfig, known: RunConfig, task: Task) -> list[str]:
    """The values that the data determined for a configuration `given`, one line each: division, network, settings."""
    lines = [in_words(known, task)] if given.partition is None else []
    names = {"model": "network {}", "batch_size": "batch size {}", "lr": "rate {}"}
    open_ = [text.format(getattr(known, key)) for key, text in names.items() if getattr(given, key) is None]
    return [*lines, f"{', '.join(open_)} (for {inputs_of(task.dataset)})"] if open_ else lines


def in_words(config: RunConfig, task: Task) -> str:
    """A description of the division of own data: the partition and the first clients' names."""
    names = [task.partition.client_name(client) for client in range(min(task.clients, 3))]
    more = ", ..." if task.clients > len(names) else ""
    owned = by_owners(str(config.partition))
    told = f"the data's owners: {', '.join(names)}{more}" if owned else "no owners in the data"
    return f"{task.name}: partition {config.partition}, {counted(task.clients, 'client')} ({told})"


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of a module's trainable parameters."""
    return next((value.dtype for value in trainable(model).values()), torch.float32)


def make_network(config: RunConfig, dataset: Dataset) -> nn.Module:
    """A configuration's network, initialised from its own key, with its adapter and its algorithm's layers."""
    config = fitted(config, inputs_of(dataset))
    assert config.model is not None
    check_answers(config, dataset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.seed_of(keys.key(config.seed, "initialisation")))
        module = models.make(config.model, inputs_of(dataset), outputs_for(config, dataset), config.model_arg)
    return network_of(config.make_algorithm(), with_adapter(config, module), config.seed)


def with_adapter(config: RunConfig, module: nn.Module) -> nn.Module:
    """The network with the configuration's adapter, if any; its initial values have their own key."""
    if config.adapter is None:
        return module
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.seed_of(keys.key(config.seed, "adapter")))
        return models.adapters.adapted(module, models.adapters.read(config.adapter_arg), head_name(module))


def outputs_for(config: RunConfig, dataset: Dataset) -> int:
    """Number of outputs per sample: one score per class, or one per target."""
    scored = dataset.classes and config.loss != "bce"
    return dataset.classes if scored else prod(dataset.y.shape[1:])


def loss_of(config: RunConfig, dataset: Dataset) -> Loss:
    """The loss of a run; by default the one for its targets: classes, tokens (n, L) or real numbers."""
    usual = "mse" if dataset.y.dtype.kind == "f" else "next-token" if dataset.y.ndim == 2 else "cross-entropy"
    found: Loss = LOSSES.find(config.loss or usual)
    return found


def make_engine(config: RunConfig, task: Task) -> Engine:
    """The engine of a resolved configuration. Runs on one task share compiled programs."""
    config = fitted(config, inputs_of(task.dataset))
    module, device, settings = make_network(config, task.dataset), choose_device(config.device), settings_of(config)
    dtype = torch.float32 if config.dtype == "tf32" else getattr(torch, config.dtype)
    loss = loss_of(config, task.dataset)
    engine = engine_on(
        config.make_algorithm(),
        module,
        task,
        device,
        settings,
        config.seed,
        dtype,
        loss,
        central=config.eval != "clients",
        validation=config.validation,
        in_time=config.in_time or task.dataset.in_time,
    )
    check_recipe(config, task.dataset, engine)
    programs = task.keep(("programs", program_kind(config, engine)), dict)
    tensor_cores, classes = config.dtype == "tf32", task.dataset.classes if task.dataset.y.ndim == 1 else 0
    metrics = scoring.metrics_of(config.metrics, classes)
    engine = dataclasses.replace(engine, tensor_cores=tensor_cores, programs=programs, metrics=metrics)
    return tried(config, engine)


def tried(config: RunConfig, engine: Engine) -> Engine:
    """The engine, with a backend that can train its network; raises a one-line error if there is none."""
    engine.sequential = config.backend == "sequential"
    if config.model not in models.MODELS or config.loss or config.metrics:  # built-in combinations are covered by tests
        try_batch(engine)
        engine.sequential = try_training(engine, config.backend)
    return engine


def program_kind(config: RunConfig, engine: Engine) -> object:
    """The key of compiled programs, besides data and step: frozen parameters are constants in them."""
    own = config.model, config.model_arg, config.adapter_arg, config.loss, config.dtype, choose_device(config.device)
    algorithm = config.make_algorithm()
    return *own, digest(frozen(engine.module)), algorithm if adds_layers(algorithm) else None


def make_federation(config: RunConfig, engine: Engine, algorithm: Algorithm | None = None) -> Federation:
    """The federation of a resolved configuration before its first round; algorithm: replaces the configuration's."""
    check_clients(engine)
    check_validation(config, engine)
    algorithm = algorithm or config.make_algorithm()
    check_central(config, engine, algorithm)
    most = f"at most {engine.data.clients}, the number of clients"
    require((config.eval_clients or 0) <= engine.data.clients, "--eval-clients", config.eval_clients, most)
    options = config.participation, engine.sequential, config.chunk, config.batchnorm
    robust = Faults(**config.faults), config.make_attacks(), Defences(config.make_defences())
    private = config.privacy, config.disclose == "all", config.rounds or 1
    federation = Federation(algorithm, engine, *options, *robust, *private, config.eval_every, config.eval_clients)
    return place_rows(federation, config.state, config.out)


def check_suited(config: RunConfig, engine: Engine) -> None:
    """Raise unless network, data and BatchNorm policy suit the algorithm of a resolved configuration."""
    algorithm = config.make_algorithm()
    policy = policy_of(algorithm, config.batchnorm, engine.module)
    begin(algorithm, policy, problem_of(engine), engine.initial()[1], engine.settings)


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" is the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no GPU found; use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def engine_on(
    algorithm: Algorithm,
    module: nn.Module,
    task: Task,
    device: torch.device,
    settings: Settings,
    seed: int,
    dtype: torch.dtype,
    loss: Loss = F.cross_entropy,
    *,
    central: bool = False,
    validation: float = 0.0,
    in_time: bool = False,
) -> Engine:
    """An engine for a task, with training data split as the algorithm declares.

    central: whether to evaluate clients on all test samples as well; validation: share of training data held out first;
    in_time: whether these are each client's last samples.
    """
    check_trainable(module)
    samples = task.keep(("samples", device), lambda: to_device(task.dataset, task.partition, device))
    data = federate(task.dataset, task.partition, device, samples)
    if task.poison is not None:
        poison = task.poison
        data = task.keep(("poisoned", device), lambda: poison(data))
    if central:
        if task.partition.turns is not None or task.partition.relabel is not None:
            what = "turns clients' images" if task.partition.turns is not None else "renames clients' classes"
            raise InputError(f"--eval central: the partition {what}, so that they have no test set in common")
        data = data.with_central()
    if validation:
        clients, longest = torch.arange(data.clients), int(data.splits["train"].sizes.max())
        draws = keys.bits(keys.key(seed, HELD_OUT, clients), longest + 1).numpy()
        data = data.hold_out(validation, None if in_time else draws)
    data = algorithm.split(data, np.random.default_rng(keys.seed_of(keys.key(seed, "validation"))))
    return Engine(module, data, settings, seed, loss, dtype)
