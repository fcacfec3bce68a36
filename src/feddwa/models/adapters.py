"""Low-rank adapters (LoRA): W x + (alpha / r) B A x, where W is frozen and the same for all clients.

Hu et al., ICLR 2022. A (r, in) is drawn Kaiming-uniform and B (out, r) is zero, so that the initial network is that of
W. For a convolution, A is a convolution with r output channels and B a pointwise one.

Names and values are those of the package `peft`, whose files have the prefix `base_model.model.`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from feddwa.errors import InputError, require
from feddwa.models import arguments

OPTION = "--adapter-arg"
SHOWN = 10  # layers named in an error


@dataclass(frozen=True)
class Lora:
    """The adapter's settings; the defaults are those of peft."""

    rank: int = 8
    """r: rows of A and columns of B."""
    alpha: float = 8.0
    """The addition is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the adapted layers, or the last parts of such names [all linear and 2-d convolutional but the head]."""
    save: tuple[str, ...] = ("head",)
    """Names of further layers that are trained in full: head, the last linear one; or none."""

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"{OPTION} rank", self.rank, "at least 1")
        require(0 < self.alpha < math.inf, f"{OPTION} alpha", self.alpha, "a finite number above 0")

    @property
    def entries(self) -> tuple[str, ...]:
        """The settings as --adapter-arg KEY=VALUE, with all defaults but the targets, which depend on the network."""
        targets = (f"targets={','.join(self.targets)}",) if self.targets else ()
        return f"rank={self.rank}", f"alpha={self.alpha!r}", *targets, f"save={','.join(self.save) or 'none'}"


def read(entries: Iterable[str]) -> Lora:
    """The adapter of --adapter-arg KEY=VALUE; InputError for an unknown key or an invalid value."""
    return Lora(**arguments.read(entries, arguments.arguments_of(Lora), "lora", option=OPTION))


class LowRank(nn.Module):
    """A frozen layer with its low-rank addition."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        own: dict[str, Any] = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        self.base_layer, self.scale = layer, alpha / rank
        self.lora_A: nn.Linear | nn.Conv2d
        self.lora_B: nn.Linear | nn.Conv2d
        if isinstance(layer, nn.Conv2d):
            place: dict[str, Any] = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
            self.lora_A = nn.Conv2d(layer.in_channels, rank, **place, **own)
            self.lora_B = nn.Conv2d(rank, layer.out_channels, 1, **own)
        else:
            self.lora_A = nn.Linear(layer.in_features, rank, **own)
            self.lora_B = nn.Linear(rank, layer.out_features, **own)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Linear: (B, ..., in) -> (B, ..., out); convolution: (B, C, H, W) -> (B, O, H', W')."""
        outputs: Tensor = self.base_layer(x) + self.scale * self.lora_B(self.lora_A(x))
        return outputs

    @property
    def weight(self) -> Tensor:
        """W + (alpha / r) B A, of W's shape, for code that reads a layer's weight, such as torch's transformer."""
        change = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        return self.base_layer.weight + self.scale * change.reshape(self.base_layer.weight.shape)

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's bias."""
        return self.base_layer.bias


def adapted(module: nn.Module, lora: Lora, head: str | None) -> nn.Module:
    """The module itself, frozen, with low-rank additions at its targets, and the layers of `save` trainable.

    head: the name of its last linear layer, if it has one. A is drawn from torch's generator.
    """
    saved = _saved(module, lora.save, head)
    targets = _targets(module, lora, {*saved, *([head] if head else ())})
    module.requires_grad_(False)
    for name in saved:
        module.get_submodule(name).requires_grad_(True)
    layers = {layer: LowRank(layer, lora.rank, lora.alpha) for layer in dict.fromkeys(targets.values())}
    for name, layer in targets.items():
        _replace(module, name, layers[layer])
    return module


def merged(module: nn.Module) -> nn.Module:
    """The module itself with its original layers and the weights W + (alpha / r) B A."""
    parts = {name: part for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, LowRank)}
    for part in dict.fromkeys(parts.values()):
        part.base_layer.weight = nn.Parameter(part.weight.detach(), requires_grad=False)
    for name, part in parts.items():
        _replace(module, name, part.base_layer)
    return module


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, layer)


def _is_called(name: str, wanted: str) -> bool:
    """Whether a module's name equals `wanted` or ends with it, as in peft."""
    return f".{name}".endswith(f".{wanted}")


def _is_within(name: str, parts: Iterable[str]) -> bool:
    """Whether a module is one of these, or inside one."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def _saved(module: nn.Module, save: tuple[str, ...], head: str | None) -> list[str]:
    """The names of the modules that are trained in full."""
    if save == ("none",):
        return []
    own = [name for name, part in module.named_modules() if name and any(True for _ in part.parameters())]
    found = []
    for wanted in save:
        names = [head] if wanted == "head" and head else [name for name in own if _is_called(name, wanted)]
        found_any = bool(names) or save == ("head",)  # a network may have no linear layer
        require(found_any, f"{OPTION} save", wanted, f"none, head, or layers of the network: {_listed(own)}")
        found += names
    return list(dict.fromkeys(found))


def _targets(module: nn.Module, lora: Lora, others: Iterable[str]) -> dict[str, nn.Linear | nn.Conv2d]:
    """Name -> layer that is adapted; others: modules that are not."""
    layers = {name: layer for name, layer in _layers(module).items() if name and not _is_within(name, others)}
    if not layers:
        raise InputError("--adapter lora: the network has no linear and no 2-d convolutional layer that it could adapt")
    unknown = next((each for each in lora.targets if not any(_is_called(name, each) for name in layers)), None)
    what = "names of linear and ungrouped 2-d convolutional layers that are not trained in full"
    require(unknown is None, f"{OPTION} targets", unknown, f"{what}: {_listed(layers)}")
    chosen = {
        name: layer
        for name, layer in layers.items()
        if not lora.targets or any(_is_called(name, each) for each in lora.targets)
    }
    full = max(min(layer.weight.flatten(1).shape) for layer in chosen.values())
    require(lora.rank <= full, f"{OPTION} rank", lora.rank, f"at most {full}: no target has a weight of higher rank")
    return chosen


def _layers(module: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Name -> layer that can be adapted. Excluded are convolutions that peft adapts differently, and layers that are
    never called, because nn.MultiheadAttention reads their weight.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    attention = [name for name, part in modules.items() if isinstance(part, nn.MultiheadAttention)]
    return {
        name: part
        for name, part in modules.items()
        if (isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and _is_plain(part)))
        and not _is_within(name, attention)
    }


def _is_plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
