"""From a configuration to its parts: data, network, engine. `experiment` runs them, `flower` where nodes are real."""

import copy
import dataclasses
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa import models
from feddwa.algorithms import Algorithm
from feddwa.config import RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.catalogue import OWN, own_defaults
from feddwa.data.dataset import Dataset
from feddwa.data.federated import federate, to_device
from feddwa.data.files import first_line
from feddwa.data.images import Tell
from feddwa.data.inputs import Inputs, inputs_of
from feddwa.data.task import Task
from feddwa.engine import Engine, Settings, keys
from feddwa.engine.network import Loss, frozen, trainable
from feddwa.engine.rows import digest
from feddwa.engine.trial import try_training
from feddwa.errors import InputError
from feddwa.faults import Faults
from feddwa.federation import Federation
from feddwa.plugins import by_owners

Config = TypeVar("Config", bound=RunConfig)


def load_task(config: RunConfig, tell: Tell = lambda done, total: None) -> Task:
    """Load and divide the data that a configuration names; tell: called with (done, total) while images are decoded."""
    dataset = sources.load(config.dataset, config.data_dir, config, tell)
    if dataset.classes == 1:
        raise InputError(
            f"--dataset {config.dataset}: all {len(dataset.y):,} samples are of one class, "
            f"{' '.join(dataset.class_names)}; there is nothing to tell apart"
        )
    config = settled(config, dataset)
    assert config.partition is not None
    assert config.clients is not None
    parameters = config.partition_parameters()
    return Task(dataset, partitions.make(config.partition, parameters, dataset, config.clients, config.seed))


def settled(config: Config, dataset: Dataset) -> Config:
    """A resolved configuration with what its data decide, where it is open.

    These are `partition`, `clients`, `model`, `batch_size` and `lr`. A rate to be searched for stays "auto": see
    `rates.chosen`.
    """
    partition = config.partition or partitions.default_for(dataset)
    config = dataclasses.replace(fitted(config, inputs_of(dataset)), partition=partition).resolved()
    clients = config.clients or max(1, dataset.owners)
    return dataclasses.replace(config, clients=clients).resolved()


def fitted(config: Config, inputs: Inputs) -> Config:
    """A configuration with the network, batch size and rate that fit its data's inputs, where these are open."""
    usual = own_defaults(inputs.kind, inputs.shape)
    if config.model not in (None, usual.model):  # of other networks it is not known which rate trains them
        usual = OWN
    if config.model is None and inputs.kind == "several":
        raise InputError(f"--dataset {config.dataset}: has several inputs ({inputs}); give --model MODULE:CLASS")
    open_ = {key: getattr(usual, key) for key in ("model", "batch_size", "lr") if getattr(config, key) is None}
    return dataclasses.replace(config, **open_)


def decisions(given: RunConfig, known: RunConfig, task: Task) -> list[str]:
    """What the data have decided of a configuration as it was `given`, a line each: division, network, settings."""
    lines = [in_words(known, task)] if given.partition is None else []
    names = {"model": "network {}", "batch_size": "batch size {}", "lr": "rate {}"}
    open_ = [text.format(getattr(known, key)) for key, text in names.items() if getattr(given, key) is None]
    return [*lines, f"{', '.join(open_)} (for {inputs_of(task.dataset)})"] if open_ else lines


def in_words(config: RunConfig, task: Task) -> str:
    """How own data were divided: the partition and the first clients' names."""
    names = [task.partition.client_name(client) for client in range(min(task.clients, 3))]
    more = ", ..." if task.clients > len(names) else ""
    owned = by_owners(str(config.partition))
    told = f"the data's owners: {', '.join(names)}{more}" if owned else "no owners in the data"
    return f"{config.dataset}: partition {config.partition}, {task.clients} clients ({told})"


def try_batch(engine: Engine) -> None:
    """One batch through model and loss, to say in one line where they and the data do not fit."""
    x, y = engine.data.batch(engine.data.splits["test"].index[0, :1], engine.dtype)
    engine.module.eval()
    with torch.no_grad():
        try:
            outputs = engine.module(x)
        except (RuntimeError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise InputError(
                f"model: does not take {x.dtype} samples {tuple(x.shape[1:])}: {first_line(error)}"
            ) from error
        scores = outputs.shape[1] if engine.loss is F.cross_entropy and outputs.ndim > 1 else None
        if scores is not None and scores < engine.data.classes:
            raise InputError(f"model: gives {scores} scores, must be at least {engine.data.classes}, one per class")
        try:
            engine.loss(outputs, y)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = f"outputs {tuple(outputs.shape)} and {y.dtype} targets {tuple(y.shape)}"
            raise InputError(f"loss: does not take {shapes}: {first_line(error)}") from error


def check_single_samples(engine: Engine) -> None:
    """BatchNorm over single values has no variance: say so before the run comes to such a batch."""
    width, sizes = engine.settings.batch_size, engine.data.splits["train"].sizes
    alone = (sizes % width == 1).nonzero().flatten() if width > 1 else torch.arange(len(sizes))
    if not len(alone) or not any(isinstance(layer, _BatchNorm) for layer in engine.module.modules()):
        return
    x, _ = engine.data.batch(engine.data.splits["train"].index[0, :1], engine.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(engine.module).train()(x)
    except ValueError:
        client, size = engine.data.client_name(int(alone[0])), int(sizes[alone[0]])
        raise InputError(
            f"--batch-size {width}: client {client} has {size} training samples, so a batch of one is left over, of "
            "which this model's BatchNorm has no variance; take another batch size"
        ) from None


def check_trainable(module: nn.Module) -> None:
    """There must be something to train."""
    if not trainable(module):
        count = sum(value.numel() for value in module.parameters())
        why = f"all of its {count:,} parameters are frozen (requires_grad=False)" if count else "has no parameters"
        raise InputError(f"model: {why}; at least one must be trainable")


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of its trainable parameters."""
    return next((value.dtype for value in trainable(model).values()), torch.float32)


def make_network(config: RunConfig, dataset: Dataset) -> nn.Module:
    """The network of a configuration, initialised from its own key."""
    if dataset.classes == 0 or dataset.y.ndim != 1:
        raise InputError(
            f"--dataset {config.dataset}: has no class labels; bring model and loss with feddwa.simulate in Python"
        )
    config = fitted(config, inputs_of(dataset))
    assert config.model is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.seed_of(keys.key(config.seed, "initialisation")))
        return models.make(config.model, inputs_of(dataset), dataset.classes, config.model_arg)


def make_engine(config: RunConfig, task: Task) -> Engine:
    """The network of a resolved configuration on its data. Runs on one task share what was compiled for it."""
    config = fitted(config, inputs_of(task.dataset))
    module, device, settings = make_network(config, task.dataset), choose_device(config.device), settings_of(config)
    dtype = torch.float32 if config.dtype == "tf32" else getattr(torch, config.dtype)
    engine = engine_on(config.make_algorithm(), module, task, device, settings, config.seed, dtype)
    if config.model not in models.MODELS:  # of which tests know that they can be trained
        try_batch(engine)
        try_training(engine, config.backend == "sequential")
    programs = task.keep(("programs", program_kind(config, engine)), dict)
    return dataclasses.replace(engine, tensor_cores=config.dtype == "tf32", programs=programs)


def program_kind(config: RunConfig, engine: Engine) -> object:
    """What programs depend on, besides data and step: frozen parameters are constants of theirs."""
    return config.model, config.model_arg, config.dtype, choose_device(config.device), digest(frozen(engine.module))


def make_federation(config: RunConfig, engine: Engine, algorithm: Algorithm | None = None) -> Federation:
    """The federation of a resolved configuration before its first round; algorithm: in place of its own."""
    check_single_samples(engine)
    options = config.participation, config.backend == "sequential", config.chunk, config.batchnorm
    return Federation(algorithm or config.make_algorithm(), engine, *options, Faults.parse(config.fault))


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" is the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no GPU found; use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def settings_of(config: RunConfig) -> Settings:
    """How clients train."""
    if config.lr == "auto":
        raise InputError("--lr auto: must be a number here, where the data to try rates on are out of reach")
    return Settings(config.epochs, config.batch_size or OWN.batch_size, OWN.lr if config.lr is None else config.lr)


def engine_on(
    algorithm: Algorithm,
    module: nn.Module,
    task: Task,
    device: torch.device,
    settings: Settings,
    seed: int,
    dtype: torch.dtype,
    loss: Loss = F.cross_entropy,
) -> Engine:
    """An engine for a task, its training data split as the algorithm declares."""
    check_trainable(module)
    samples = task.keep(("samples", device), lambda: to_device(task.dataset, task.partition, device))
    data = federate(task.dataset, task.partition, device, samples)
    data = algorithm.split(data, np.random.default_rng(keys.seed_of(keys.key(seed, "validation"))))
    return Engine(module, data, settings, seed, loss, dtype)
