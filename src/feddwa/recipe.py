"""The engine's training settings, from the options of training."""

from feddwa.config import RunConfig
from feddwa.data.catalogue import OWN
from feddwa.data.dataset import Dataset
from feddwa.data.inputs import inputs_of
from feddwa.engine import Engine, Settings
from feddwa.engine.optimizers import SGD, Adam, Optimizer
from feddwa.engine.rate_schedule import RateSchedule
from feddwa.errors import InputError


def settings_of(config: RunConfig) -> Settings:
    """The settings of local training."""
    if config.lr == "auto":
        raise InputError("--lr auto: must be a number here, because there are no data to try rates on")
    optimizer, keep = optimizer_of(config), config.optimizer_state == "keep"
    decay, every = config.lr_decay or 1.0, config.lr_step or 1
    schedule = RateSchedule(config.lr_schedule, decay, every, config.warmup, config.rounds or 1)
    usual = config.epochs, config.batch_size or OWN.batch_size, OWN.lr if config.lr is None else config.lr
    return Settings(*usual, optimizer, keep, schedule, config.local_steps, config.drop_last, config.augmentations)


def optimizer_of(config: RunConfig) -> Optimizer:
    """The optimiser of local training."""
    clip = config.clip_grad or 0.0
    if config.optimizer == "sgd":
        return SGD(config.momentum, config.nesterov, config.weight_decay, clip=clip)
    beta1, beta2 = config.both_betas
    return Adam(beta1, beta2, 1e-8, config.weight_decay, config.optimizer == "adamw", clip=clip)


def check_recipe(config: RunConfig, dataset: Dataset, engine: Engine) -> None:
    """Raise if the data do not suit the options of training."""
    inputs, sizes, width = inputs_of(dataset), engine.data.splits["train"].sizes, engine.settings.batch_size
    if config.augment and inputs.kind != "image":
        raise InputError(f"--augment {config.augment}: changes images, and the data are {inputs}; leave it out")
    if config.drop_last and sizes.min() < width:
        client = int(sizes.argmin())
        raise InputError(
            f"--drop-last: client {engine.data.client_name(client)} has {int(sizes[client])} samples to train on, less "
            f"than a batch of {width}; take a smaller --batch-size"
        )
