"""Checks before training that network, data and settings fit together; every mismatch gives a one-line error."""

import copy
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa import models
from feddwa.algorithms import Algorithm
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset, refuse_padding
from feddwa.data.federated import NetworkInput
from feddwa.data.files import first_line
from feddwa.data.labels import PADDING, is_one_hot
from feddwa.engine import Engine
from feddwa.engine.evaluate import try_metrics
from feddwa.engine.network import call, trainable
from feddwa.engine.score import samples_at_once
from feddwa.errors import InputError
from feddwa.plugins import label
from feddwa.scoring import next_token

FEW_CLASSES = 10  # with more classes, each needs two samples on average


def check_targets(config: RunConfig, dataset: Dataset) -> None:
    """Raise for implausible targets: all of one class, mostly different labels, or one-hot rows."""
    where, rows = f"dataset {dataset.name}", len(dataset.y)
    if dataset.classes == 1:
        name = " ".join(dataset.class_names)
        raise InputError(f"{where}: all {rows:,} samples are of one class, {name}; there is nothing to classify")
    if config.loss == "bce":
        refuse_padding(dataset)
    if config.loss is not None:
        return
    if is_one_hot(dataset.y):
        raise InputError(
            f"{where}: its targets are rows of {dataset.y.shape[1]} with a single 1; give class numbers, y.argmax(1), "
            "or with --loss say what learns such rows"
        )
    if not dataset.classes or dataset.y.ndim > 1:
        return
    classes = len(np.unique(dataset.y))
    if classes > max(FEW_CLASSES, rows / 2):
        raise InputError(
            f"{where}: {classes:,} different labels in {rows:,} samples are no classes; --label names another column, "
            "--loss mse learns numbers as such, --loss cross-entropy takes them as classes all the same"
        )


def check_answers(config: RunConfig, dataset: Dataset) -> None:
    """Raise unless a network of this package gives one output per target of a sample."""
    if config.model not in models.MODELS or not dataset.classes:
        return
    model = models.find(config.model, config.model_arg)
    every = model.values(config.model_arg, config.model).get("every", False)
    if every and dataset.y.ndim == 1:
        raise InputError("--model-arg every: got true, but the data have one target for a sample; leave it out")
    if dataset.y.ndim > 1 and not (every and dataset.y.shape == dataset.x.shape):
        known = [name for name, other in models.MODELS.items() if "every" in other.arguments]
        valid = f"{' or '.join(known)} with --model-arg every=true predict a token at every position of token ids"
        raise InputError(
            f"--model {config.model}: gives one answer for a sample, the data have targets of shape "
            f"{dataset.y.shape[1:]}, whole numbers; give one class a sample, of shape (n,), or bring a module; {valid}"
        )


def try_batch(engine: Engine) -> None:
    """One batch through model, loss and metrics; a mismatch with the data gives a one-line error."""
    own = engine.data.splits["test"]
    x, y = engine.data.batch(own.index[0, :1], engine.dtype)
    engine.module.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size", UserWarning)  # outputs (B, 1) for targets (B,)
        try:
            outputs = call(engine.module, {}, x)
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise InputError(f"model: does not take {_in_words(x)}: {first_line(error)}") from error
        axis = {F.cross_entropy: 1, next_token: -1}.get(engine.loss)  # axis of classes in the outputs
        scores = outputs.shape[axis] if axis is not None and outputs.ndim > 1 else None
        if scores is not None and scores < engine.data.classes:
            raise InputError(f"model: gives {scores} scores, must be at least {engine.data.classes}, one per class")
        shapes = f"outputs {tuple(outputs.shape)} and {y.dtype} targets {tuple(y.shape)}"
        try:
            loss = engine.loss(outputs, y)
        except (RuntimeError, IndexError, TypeError, ValueError, UserWarning) as error:
            raise InputError(f"loss: does not take {shapes}: {first_line(error)}") from error
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"type {type(loss).__name__}"
            raise InputError(f"loss: gives a value of {given} for {shapes}, must give a tensor of one number")
        if engine.metrics:
            samples = own.index[0, : min(int(own.sizes[0]), samples_at_once(engine.data))]
            found = call(engine.module, {}, engine.data.batch(samples, engine.dtype).x)
            try_metrics(engine.metrics, found, engine.data.y[samples], engine.data.client_name(0))


def _in_words(x: NetworkInput) -> str:
    """Type and shape of a sample, or of each of several inputs."""
    if isinstance(x, torch.Tensor):
        return f"{x.dtype} samples {tuple(x.shape[1:])}"
    return f"the inputs {', '.join(f'{name}: {value.dtype} {tuple(value.shape[1:])}' for name, value in x.items())}"


def check_clients(engine: Engine) -> None:
    """Raise unless every client has samples for training and testing."""
    check_single_samples(engine)
    check_targets_left(engine)


def check_single_samples(engine: Engine) -> None:
    """Raise for batches of a single value, over which BatchNorm has no variance."""
    width, sizes = engine.settings.batch_size, engine.data.splits["train"].sizes
    alone = (sizes % width == 1).nonzero().flatten() if width > 1 else torch.arange(len(sizes))
    if not len(alone) or not any(isinstance(layer, _BatchNorm) for layer in engine.module.modules()):
        return
    x, _ = engine.data.batch(engine.data.splits["train"].index[0, :1], engine.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(copy.deepcopy(engine.module).train(), {}, x)
    except ValueError:
        client, size = engine.data.client_name(int(alone[0])), int(sizes[alone[0]])
        raise InputError(
            f"--batch-size {width}: client {client} has {size} training samples, so a batch of one is left over, of "
            "which this model's BatchNorm has no variance; take another batch size"
        ) from None


def check_targets_left(engine: Engine) -> None:
    """Raise unless every client has a token to predict: targets may be padding alone."""
    for split in ("train", "test"):
        nothing = (engine.data.answers(split) == 0).nonzero().flatten().tolist()
        if nothing:
            client = engine.data.client_name(nothing[0])
            raise InputError(
                f"dataset: client {client} has no token to predict in its {split} samples, all its targets are padding "
                f"({PADDING}); leave the client out"
            )


def check_validation(config: RunConfig, engine: Engine) -> None:
    """Raise unless some client has samples for validation."""
    held_out = engine.data.validation_sizes
    if held_out is not None and not held_out.any():
        most = int(engine.data.splits["train"].sizes.max())
        raise InputError(
            f"--validation {config.validation}: holds out nothing, as clients have {most} training samples at most; "
            "take a larger share"
        )


def check_trainable(module: nn.Module) -> None:
    """Raise unless the model has trainable parameters."""
    if not trainable(module):
        count = sum(value.numel() for value in module.parameters())
        why = f"all of its {count:,} parameters are frozen (requires_grad=False)" if count else "has no parameters"
        raise InputError(f"model: {why}; at least one must be trainable")


def check_central(config: RunConfig, engine: Engine, algorithm: Algorithm) -> None:
    """Raise unless the algorithm has one global model, as `--eval central` requires."""
    if config.eval != "central":
        return
    instead = "central-mean takes the mean over the clients' models"
    if not algorithm.global_model:
        raise InputError(f"--eval central: {label(config.algorithm)} has no global model; {instead}")
    if config.batchnorm != "mean" and any(isinstance(layer, _BatchNorm) for layer in engine.module.modules()):
        why = f"with --batchnorm {config.batchnorm} no two clients' models are the same"
        raise InputError(f"--eval central: {why}; take --batchnorm mean, or {instead}")
