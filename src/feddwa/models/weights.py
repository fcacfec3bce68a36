"""Parameters of networks in files: `store` keeps those of a module, `load` starts a network from a file's."""

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from feddwa.checkpoint import to_stderr
from feddwa.data import cache
from feddwa.errors import InputError, one_line, require
from feddwa.plugins import label

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
COUNTER = "num_batches_tracked"  # of BatchNorm, which files may lack: nothing depends on it
SHOWN = 3  # names of tensors in an error


def check(name: str, file: str) -> None:
    """Raise InputError unless `file` is there and has the name of a file of parameters."""
    valid = f"a file of parameters ({', '.join(SUFFIXES)}) that exists"
    require(os.path.isfile(file) and file.endswith(SUFFIXES), f"--model {name}@", file, valid)


def load(module: nn.Module, name: str, file: str) -> nn.Module:
    """The module with the parameters and buffers of a file.

    Its head (the last linear layer) may have another number of classes, and its first convolution another number of
    channels: such tensors keep their initial values, which is told once on stderr. Anything else must fit.
    """
    own = {key: value for key, value in module.state_dict().items() if not key.endswith(COUNTER)}
    values = {key: value for key, value in _read(name, file).items() if not key.endswith(COUNTER)}
    if not own.keys() & values.keys() and all(key.startswith("model.") for key in own):  # in a wrapper of ours
        values = {f"model.{key}": value for key, value in values.items()}
    replaceable = set(_prefixed(module, nn.Linear, last=True)) | set(_prefixed(module, nn.Conv2d, last=False))
    unlike = [key for key, value in values.items() if key in own and value.shape != own[key].shape]
    mismatches = [
        *(f"{key} has shape {tuple(values[key].shape)}, not {tuple(own[key].shape)}" for key in unlike
          if key not in replaceable),
        *(f"{key} is missing" for key in own if key not in values and key not in replaceable),
        *(f"{key} has no place" for key in values if key not in own),
    ]  # fmt: skip
    if mismatches:
        more = f" and {len(mismatches) - SHOWN} more" if len(mismatches) > SHOWN else ""
        why = "; ".join(mismatches[:SHOWN]) + more
        raise InputError(
            f"--model {name}: the parameters do not fit what {label(name)} makes: {one_line(why)}; "
            "--model-arg gives the arguments of its constructor"
        )
    module.load_state_dict({key: values[key] for key in values if key in own and key not in unlike}, strict=False)
    if fresh := [key for key in own if key in unlike or key not in values]:
        tell_once(f"--model {name}: new initial values for {', '.join(fresh)}, which the file has in another shape")
    return module


def _prefixed(module: nn.Module, kind: type[nn.Module], last: bool) -> list[str]:
    """The names of the tensors of the last (or first) layer of a kind; of a layer called `head` before any other."""
    names = [name for name, part in module.named_modules() if isinstance(part, kind)]
    if not names:
        return []
    chosen = "head" if last and "head" in names else names[-1 if last else 0]
    return [f"{chosen}.{key}" if chosen else key for key, _ in module.get_submodule(chosen).named_parameters()]


def _read(name: str, file: str) -> dict[str, Tensor]:
    """Name -> tensor of a file; of a checkpoint that holds more, its `state_dict` or `model`. Tensors and
    plain containers alone are unpickled."""
    try:
        found: Any = (
            load_file(file)
            if file.endswith(".safetensors")
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except (SafetensorError, OSError) as error:
        raise InputError(f"--model {name}: {file} is no safetensors file: {one_line(error)}") from None
    except Exception as error:  # of zip, pickle and torch
        why = one_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise InputError(f"--model {name}: {file} cannot be read as plain tensors ({why[:200]})") from None
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"--model {name}: {file} holds no parameters by name; store module.state_dict()")
    return {str(key): value for key, value in found.items()}


@functools.cache
def tell_once(text: str) -> None:
    """Print a line on stderr the first time it is said: a comparison makes the same network many times."""
    to_stderr(text)


def store(module: nn.Module) -> Path:
    """Write a module's parameters and buffers into the cache, under a name that tells their content."""
    content = save({name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()})
    path = cache.root() / "models" / f"{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    os.replace(part, path)
    return path
