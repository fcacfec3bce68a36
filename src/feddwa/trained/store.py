"""The evaluated models of a finished run: models.safetensors and model.json in its directory.

models.safetensors  every parameter and buffer of the network, (N, *shape): row i belongs to client i. What all
                    clients share (a global model, frozen parameters) is stored once, as (1, *shape)
model.json          what has to be known to use them without the data (`feddwa.trained.card`)
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from feddwa import checkpoint, models, params, plugins
from feddwa.build import fitted, outputs_for
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset
from feddwa.data.federated import EVALUATED
from feddwa.data.inputs import inputs_of
from feddwa.engine import Engine, Scores, Stack
from feddwa.engine.network import head_name
from feddwa.engine.rows import only, row, take
from feddwa.engine.sequential import load
from feddwa.errors import InputError, one_line
from feddwa.personal import PersonalRows
from feddwa.sides import adds_layers
from feddwa.storage import write_whole
from feddwa.trained.card import ModelCard, finite, from_text, percent, plain

MODELS, CARD = "models.safetensors", "model.json"
LEFT_OUT = "the run was made without them (--no-save-models)"


@dataclass(frozen=True)
class TrainedModels:
    """The models of all clients of a run, in memory or memory-mapped."""

    card: ModelCard
    stack: Stack  # (N, *shape) of all parameters and buffers; {} where `card.missing` says why
    network: nn.Module  # copied for each client's values

    def model(self, client: str | int) -> nn.Module:
        """A client's network with its values, adapters merged, in evaluation mode, on the CPU.

        It takes the network's input, which is normalised: see `feddwa.trained.export.Deployed` for raw samples.
        """
        return models.adapters.merged(self.as_trained(client))

    def as_trained(self, client: str | int) -> nn.Module:
        """The same with adapters as separate layers next to the frozen ones."""
        module = copy.deepcopy(self.network).cpu()
        own = take(self.stack, torch.tensor([self.card.client(client)]))
        load(module, row(own, 0))
        return module.eval()

    def parts(self) -> tuple[Stack, Stack]:
        """Parameters and buffers, (N, *shape) each."""
        names = [name for name, _ in self.network.named_parameters()]
        buffers = [name for name in self.stack if name not in names]
        return only(self.stack, [name for name in names if name in self.stack]), only(self.stack, buffers)

    def in_memory(self) -> "TrainedModels":
        """The same, copied from the file; shared tensors are stored once."""
        return dataclasses.replace(self, stack={name: _copied(value) for name, value in self.stack.items()})


def card_of(config: RunConfig, dataset: Dataset, engine: Engine) -> ModelCard:
    """The facts about a run's models before training; `scored` adds accuracies."""
    config, x = fitted(config, inputs_of(dataset)), dataset.x
    kinds = {name: x[name].dtype for name in dataset.inputs} or {"0": x.dtype}
    data, sizes = engine.data, {name: tuple(split.sizes.tolist()) for name, split in engine.data.splits.items()}
    train = torch.stack([split.sizes for name, split in data.splits.items() if name not in EVALUATED]).sum(0)
    return ModelCard(
        network=str(config.model).partition("@")[0],
        arguments=config.model_arg,
        inputs=inputs_of(dataset).as_json(),
        samples={name: str(kind) for name, kind in kinds.items()},
        outputs=outputs_for(config, dataset),
        classes=dataset.classes,
        class_names=tuple(dataset.class_names),
        dtype=str(engine.dtype).removeprefix("torch."),
        mean=tuple(dataset.mean),
        std=tuple(dataset.std),
        scale=None if data.scale is None else data.scale.tolist(),
        shift=None if data.shift is None else data.shift.tolist(),
        form=None if dataset.form is None else plain(dataset.form.as_json()),
        algorithm=config.algorithm,
        evaluated="",
        clients=tuple(data.client_name(client) for client in range(data.clients)),
        train_samples=tuple(train.tolist()),
        test_samples=sizes["test"],
        accuracy=(None,) * data.clients,
        loss=(None,) * data.clients,
        adapter=config.adapter_arg if config.adapter else None,
        layers=config.algorithm_parameters() if adds_layers(config.make_algorithm()) else None,
    )


def scored(card: ModelCard, scores: Scores, rounds: int) -> ModelCard:
    """The card of models evaluated after `rounds` rounds; scores: (N,)."""
    what = f"the personalised models after round {rounds}, before further local training, each on its own test samples"
    accuracy, loss = percent(scores.accuracy.tolist()), finite(scores.loss.tolist())
    return dataclasses.replace(card, evaluated=what, accuracy=accuracy, loss=loss)


def absent(config: RunConfig, dataset: Dataset, engine: Engine, train: Tensor, test: Tensor, why: str) -> TrainedModels:
    """No models of clients with so many samples (N,), and why; dataset: samples of which the form alone is known."""
    lists: dict[str, Any] = {"train_samples": tuple(train.tolist()), "test_samples": tuple(test.tolist())}
    lists |= {name: (None,) * len(train) for name in ("accuracy", "loss")}
    names = tuple(map(str, range(len(train))))
    card = dataclasses.replace(card_of(config, dataset, engine), clients=names, missing=why, **lists)
    return TrainedModels(card, {}, engine.module)


def write(
    folder: Path, trained: TrainedModels, run: Mapping[str, Any] = MappingProxyType({}), left_out: str = ""
) -> dict[str, str]:
    """Write both files, each whole or not at all; file name -> SHA-256.

    run: what the run was made of; left_out: why models are not to be stored.
    """
    card, sums = dataclasses.replace(trained.card, run=dict(run), missing=left_out or trained.card.missing), {}
    if not card.missing:
        about, stack = {"clients": len(card.clients)}, trained.stack
        if isinstance(stack, PersonalRows):
            sums[MODELS] = checkpoint.write_rows(folder / MODELS, stack.stored(), stack.blocks(), about)
        else:
            content = checkpoint.as_safetensors(checkpoint.snapshot(stack), about)
            sums[MODELS] = write_whole(folder / MODELS, content)
    return {**sums, CARD: write_whole(folder / CARD, card.to_text())}


def read(folder: Path) -> TrainedModels:
    """The models in a run directory; files are read on access."""
    card = read_card(folder)
    if card.missing:
        raise InputError(f"{folder}: has no models: {card.missing}")
    network = make_network(card)
    return TrainedModels(card, _mapped(folder / MODELS, card, network), network)


def read_card(folder: Path) -> ModelCard:
    """The card in model.json of a run directory."""
    try:
        return from_text((folder / CARD).read_bytes(), folder / CARD)
    except OSError as error:
        raise InputError(f"{folder}: has no trained models: {CARD}: {error.strerror}; is the run finished?") from None


def make_network(card: ModelCard) -> nn.Module:
    """The network of a card, without a client's parameters."""
    with torch.random.fork_rng(devices=[]):
        module = models.make(card.network, card.sample, card.outputs, card.arguments)
        if card.adapter is not None:
            module = models.adapters.adapted(module, models.adapters.read(card.adapter), head_name(module))
        if card.layers is not None:
            algorithm = plugins.ALGORITHMS.find(card.algorithm)
            module = params.build(algorithm, card.layers, f"algorithm {card.algorithm}").network(module)
    return module.to(getattr(torch, card.dtype)).eval()


def _mapped(path: Path, card: ModelCard, network: nn.Module) -> Stack:
    """Name -> (N, *shape) of a file; raises unless it matches the network."""
    wanted = {name: value.shape for name, value in _named(network)}
    try:
        with safe_open(path, "pt") as file:
            found = {unquote(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    clients = len(card.clients)
    try:
        return {name: found[name].expand(clients, *shape) for name, shape in wanted.items()}
    except (KeyError, RuntimeError) as error:
        what = f"{clients} models of the network {card.network} as it is made now"
        raise InputError(f"{path}: does not hold {what}: {one_line(error)}") from None


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def _copied(value: Tensor) -> Tensor:
    """A copy whose rows share memory if those of `value` do."""
    return value[:1].clone().expand_as(value) if value.stride(0) == 0 else value.clone()
