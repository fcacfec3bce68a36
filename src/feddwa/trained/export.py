"""A client's model as a file for another program: safetensors, torch.export or ONNX; its adapter as files for peft."""

import dataclasses
import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from feddwa.data.federated import as_input
from feddwa.engine.network import call
from feddwa.errors import InputError, one_line, require, shown
from feddwa.storage import write_whole
from feddwa.trained import peft
from feddwa.trained.card import ModelCard
from feddwa.trained.store import TrainedModels

Format = Literal["safetensors", "torch-export", "onnx", "peft"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}  # peft: a folder
INDEX = "index.json"
COMMON = (  # fields of the card that the index repeats
    "network", "arguments", "inputs", "samples", "classes", "class_names", "dtype", "mean", "std", "algorithm",
    "evaluated",
)  # fmt: skip
AT_ONCE = 1024  # samples per batch


class Deployed(nn.Module):
    """A trained network preceded by its normalisation: raw samples in, scores out.

    Raw samples have the data's form: (n, C, H, W) bytes of pixels, (n, features) numbers, (n, length) token ids.
    Several inputs are separate arguments, in the order of the data. Scores (n, outputs) are the network's outputs;
    softmax turns a classifier's into probabilities.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, network: nn.Module, card: ModelCard) -> None:
        super().__init__()
        self.network, self.dtype = network, getattr(torch, card.dtype)
        self.inputs = tuple(card.sample.parts)  # names, if there are several inputs
        for name, values in (("scale", card.scale), ("shift", card.shift)):
            self.register_buffer(
                name, None if values is None else torch.tensor(values, dtype=torch.float64).to(self.dtype)
            )

    def forward(self, *samples: Tensor) -> Tensor:
        """(n, *shape) raw samples -> (n, outputs) scores."""
        if self.inputs:
            values = [as_input(each, self.dtype) for each in samples]
            return call(self.network, {}, dict(zip(self.inputs, values, strict=True)))
        if self.scale is not None and self.shift is not None:
            return call(self.network, {}, torch.addcmul(self.shift, samples[0].to(self.dtype), self.scale))
        return call(self.network, {}, as_input(samples[0], self.dtype))


def deployed(trained: TrainedModels, client: str | int) -> Deployed:
    """A client's model for raw samples, in evaluation mode, on the CPU."""
    return Deployed(trained.model(client), trained.card).eval()


def predict(trained: TrainedModels, client: str | int, x: Any) -> Tensor:
    """Scores (n, outputs) of raw samples x (n, *shape) by a client's model."""
    model, samples = deployed(trained, client), raw_samples(trained.card, x)
    pieces = zip(*(each.split(AT_ONCE) for each in samples), strict=True)
    with torch.no_grad():
        return torch.cat([model(*piece) for piece in pieces])


def raw_samples(card: ModelCard, x: Any) -> list[Tensor]:
    """Arrays or tensors as raw samples of the model, one for each of its inputs; raises if they do not fit.

    x: for several inputs a mapping, a tuple or a structured array, in the form of the training data.
    """
    names = tuple(card.sample.parts)
    if not names:
        return [_raw("samples", x, card.shapes["0"], card.samples["0"])]
    several = dict(enumerate(x)) if isinstance(x, tuple | list) else x
    several = several if isinstance(several, dict) else {name: x[name] for name in names}
    given = {str(name): value for name, value in several.items()}
    require(set(given) == set(names), "samples", ", ".join(given), f"the inputs {', '.join(names)}")
    return [_raw(f"samples {name}", given[name], card.shapes[name], card.samples[name]) for name in names]


def _raw(what: str, x: Any, shape: tuple[int, ...], kind: str) -> Tensor:
    """(n, *shape) of one input, in the type of the training data."""
    array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
    wanted = f"(n, {', '.join(map(str, shape))})"
    fits = array.ndim == 1 + len(shape) and array.shape[1:] == shape and len(array) > 0
    require(fits, what, array.shape, f"of shape {wanted}, as the training data have them")
    kinds = {"uint8": "u", "int64": "iu"}.get(kind, "fiub")
    right = array.dtype.kind in kinds and (kind != "uint8" or array.dtype == np.uint8)
    require(right, what, str(array.dtype), f"{kind} as in the training data")
    require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), what, "NaN or infinity", "finite numbers")
    return torch.from_numpy(np.ascontiguousarray(array).astype(kind))


def export(trained: TrainedModels, client: str | int, path: Path, form: Format = "safetensors") -> None:
    """Write a client's model to a file, atomically.

    safetensors holds the network's parameters, for `--model NAME@FILE`, and the card in its metadata. torch-export and
    onnx are whole programs from raw samples to scores, for any number of samples. peft: a folder with the adapter and
    the frozen base; the other formats merge adapters into their layers.
    """
    _write(trained, trained.card.client(client), path, form)
    if form == "peft":
        peft.write_base(trained, path)


def _write(trained: TrainedModels, client: int, path: Path, form: Format) -> None:
    """Write the client's own files."""
    if form == "peft":
        peft.write(trained, client, path)
    else:
        content = WRITERS[form](trained, client)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def format_of(form: Format | None, path: Path, single: bool = True) -> Format:
    """The format of a file: the given one, else that of its suffix, else safetensors; raises if the two differ.

    single: whether the path is a single file, not a folder.
    """
    named = next((each for each, suffix in SUFFIXES.items() if path.suffix == suffix), None)
    if single and path.suffix and not (form or named):
        valid = " or ".join(SUFFIXES.values())
        raise InputError(f"-o {path}: does not say what to write; must end in {valid}, or give --format")
    if form and named and form != named:
        raise InputError(f"-o {path}: is the name of a {named} file, and --format says {form}; leave one of them out")
    return form or named or "safetensors"


def export_all(trained: TrainedModels, folder: Path, form: Format = "safetensors") -> list[Path]:
    """Write every client's model into a folder, and index.json with their clients; for peft the base once."""
    card, entries, paths = trained.card, [], []
    for number, name in enumerate(card.clients):
        paths.append(folder / file_name(card, number, form))
        _write(trained, number, paths[-1], form)
        facts = {
            "test_samples": card.test_samples[number],
            "accuracy": card.accuracy[number],
            "loss": card.loss[number],
        }
        entries.append({"client": name, "file": paths[-1].name, **facts})
    if form == "peft":
        peft.write_base(trained, folder)
    common = {name: getattr(card, name) for name in COMMON}
    write_whole(folder / INDEX, json.dumps({"format": form, **common, "models": entries}, indent=1) + "\n")
    return paths


def file_name(card: ModelCard, client: int, form: Format) -> str:
    """A unique name of letters, digits, dots and dashes for a client's file."""
    width, plain = len(str(len(card.clients) - 1)), plain_name(card.clients[client])
    named = plain not in ("", str(client))
    return f"{client:0{width}d}{f'-{plain}' if named else ''}{SUFFIXES.get(form, '')}"


def plain_name(name: str) -> str:
    """A client's name as part of a file name; may be empty or not unique."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]


def _card(trained: TrainedModels, client: int) -> str:
    """The card of a model whose adapter is merged."""
    return dataclasses.replace(trained.card.of(client), adapter=None).to_text()


def _safetensors(trained: TrainedModels, client: int) -> bytes:
    values = {name: value.detach().clone().contiguous() for name, value in trained.model(client).state_dict().items()}
    return save(values, metadata={"format": "pt", "feddwa": _card(trained, client)})


def _torch_export(trained: TrainedModels, client: int) -> bytes:
    module, content = deployed(trained, client), io.BytesIO()
    with _Quiet():
        program = _traced(
            lambda: torch.export.export(module, _example(trained.card), dynamic_shapes=_any_number(trained.card))
        )
        torch.export.save(program, content, extra_files={"feddwa.json": _card(trained, client)})
    return content.getvalue()


def _onnx(trained: TrainedModels, client: int) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"--format onnx: needs the packages onnx and onnxscript (missing: {error.name}); pip install 'feddwa[onnx]'"
        ) from None
    module = deployed(trained, client)
    with _Quiet(), tempfile.TemporaryDirectory() as folder:
        program = _traced(
            lambda: torch.onnx.export(
                module, _example(trained.card), dynamo=True, dynamic_shapes=_any_number(trained.card), verbose=False,
                input_names=list(trained.card.sample.parts) or ["samples"], output_names=["scores"],
            )
        )  # fmt: skip
        file = os.path.join(folder, "model.onnx")
        program.save(file, external_data=False)
        found = onnx.load(file)
    onnx.helper.set_model_props(found, {"feddwa": _card(trained, client)})
    content: bytes = found.SerializeToString()
    return content


WRITERS: dict[Format, Callable[[TrainedModels, int], bytes]] = {
    "safetensors": _safetensors,
    "torch-export": _torch_export,
    "onnx": _onnx,
}


def _example(card: ModelCard) -> tuple[Tensor, ...]:
    """Two samples: from one, torch.export would conclude that there is always one."""
    shapes = card.shapes.items()
    return tuple(torch.zeros(2, *shape, dtype=getattr(torch, card.samples[name])) for name, shape in shapes)


def _any_number(card: ModelCard) -> dict[str, Any]:
    number = torch.export.Dim("n")
    return {"samples": tuple({0: number} for _ in card.shapes)}


def _traced(trace: Callable[[], Any]) -> Any:
    """torch's program of a module; a one-line error if that fails."""
    try:
        return trace()
    except Exception as error:  # torch raises exceptions of many types
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"--format: torch cannot export this network: {one_line(shown(first))}; --format safetensors always works"
        ) from error


class _Quiet(warnings.catch_warnings):
    """Suppress torch's warnings and log about its own export."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        self._level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        return found

    def __exit__(self, *error: Any) -> None:
        logging.getLogger("torch.onnx").setLevel(self._level)
        super().__exit__(*error)
