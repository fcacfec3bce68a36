"""A client's adapter as files that the package `peft` loads.

    adapter_config.json          kind, rank, alpha, names of the layers
    adapter_model.safetensors    A and B of every layer, and the layers that were trained in full
    base_model.safetensors       shared by all clients: the frozen parameters, by their names in the base

Names are those of the network without the adapter; for a network of transformers, those of its own model.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from feddwa.engine.network import frozen, trainable
from feddwa.errors import InputError
from feddwa.models.adapters import Lora, LowRank, read
from feddwa.models.libraries import Logits
from feddwa.storage import write_whole
from feddwa.trained.card import ModelCard
from feddwa.trained.store import TrainedModels

CONFIG, ADAPTER, BASE = "adapter_config.json", "adapter_model.safetensors", "base_model.safetensors"
PREFIX = "base_model.model."
LIBRARY = "hf:"


def write(trained: TrainedModels, client: int, folder: Path) -> None:
    """Write the first two files of a client."""
    lora = _adapter_of(trained.card)
    network = _bare(trained.as_trained(client))
    targets = [name for name, part in network.named_modules() if isinstance(part, LowRank)]
    saved = _saved(network, targets)
    _check_names(network, targets, saved)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / CONFIG, json.dumps(_config(trained.card, lora, targets, saved), indent=2) + "\n")
    write_whole(folder / ADAPTER, _file({PREFIX + name: value for name, value in _state(network, targets, saved)}))


def write_base(trained: TrainedModels, folder: Path) -> None:
    """Write the third file, which is shared by all clients."""
    _adapter_of(trained.card)
    shared = frozen(_bare(trained.as_trained(0)))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / BASE, _file({name.replace(".base_layer.", "."): value for name, value in shared.items()}))


def _adapter_of(card: ModelCard) -> Lora:
    """The adapter of a run, if peft supports it."""
    if card.adapter is None:
        raise InputError("--format peft: the run trained whole networks; an adapter comes from --adapter lora")
    if card.layers is not None:
        raise InputError(f"--format peft: {card.algorithm} adds layers to the network, which peft cannot hold")
    return read(card.adapter)


def _bare(network: nn.Module) -> nn.Module:
    """A transformers network without our wrapper."""
    return network.model if isinstance(network, Logits) else network


def _saved(network: nn.Module, targets: Iterable[str]) -> list[str]:
    """The names of the modules, besides adapters, with a client's own tensors, including BatchNorm statistics."""
    within = tuple(f"{name}." for name in targets)
    owners = [name.rpartition(".")[0] for name in trainable(network) if not name.startswith(within)]
    norms = (part for part in network.named_modules() if isinstance(part[1], _NormBase))
    return list(dict.fromkeys([*owners, *(name for name, part in norms if part.track_running_stats)]))


def _check_names(network: nn.Module, targets: Iterable[str], saved: Iterable[str]) -> None:
    """Raise if peft, which finds layers by parts of their names, would confuse two layers."""
    for own in saved:
        for name, _ in network.named_modules():
            other = name != own and not name.startswith(f"{own}.")
            if other and (name.endswith(own) or (name in targets and f".{own}." in f".{name}.")):
                raise InputError(f"--format peft: peft would take layer {name} for {own}; give them unlike names")


def _config(card: ModelCard, lora: Lora, targets: list[str], saved: list[str]) -> dict[str, object]:
    """peft's LoraConfig, without default values."""
    base = card.network.removeprefix(LIBRARY) if card.network.startswith(LIBRARY) else None
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "modules_to_save": saved or None,
    }


def _state(network: nn.Module, targets: Iterable[str], saved: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of all client-specific tensors."""
    adapters = tuple(f"{name}.lora_" for name in targets)
    layers = tuple(f"{name}." for name in saved)
    for name, value in network.state_dict().items():
        if name.startswith((*adapters, *layers)):
            yield name, value


def _file(values: Mapping[str, Tensor]) -> bytes:
    content: bytes = save({name: value.clone().contiguous() for name, value in values.items()}, {"format": "pt"})
    return content
