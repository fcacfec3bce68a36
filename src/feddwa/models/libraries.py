"""Networks of installed packages by name: torchvision:NAME, timm:NAME and hf:PATH_OR_NAME (transformers).

The number of classes and the input size are adapted. Weights come from a file (@FILE) or, for hf:, from the folder.
Nothing is downloaded unless hf: names a model of the hub.
"""

import difflib
import functools
import importlib
import inspect
import logging
import os
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from feddwa.data.inputs import Inputs
from feddwa.errors import InputError, one_line, require
from feddwa.models.arguments import Argument, arguments_of
from feddwa.models.weights import tell_once
from feddwa.plugins import Unfit

Build = Callable[..., nn.Module]  # of (inputs, classes, **arguments)
Arguments = dict[str, Argument]
PACKAGES = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}


def find(library: str, name: str) -> tuple[Build, Arguments]:
    """The builder of the model LIBRARY:NAME, and its further arguments; raises Unfit if there is none."""
    package = _package(PACKAGES[library])
    return {"torchvision": _torchvision, "timm": _timm, "hf": _transformers}[library](package, name)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise Unfit(f"the package {missing} is not installed: pip install {missing}") from None
    except Exception as error:  # for example a build for another torch
        why = one_line(str(error).strip().splitlines()[0])
        raise Unfit(f"the package {name} cannot be imported ({why}): pip install --force-reinstall {name}") from error


def _check_name(name: str, known: Iterable[str], library: str) -> None:
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, 5, 0.5)
        like = f"; like it: {', '.join(near)}" if near else ""
        raise Unfit(f"{library} has no network {name}{like}")


def _torchvision(package: Any, name: str) -> tuple[Build, Arguments]:
    """A classifier of torchvision.models. Its first convolution is replaced unless images have three channels."""
    models = importlib.import_module("torchvision.models")
    _check_name(name, models.list_models(module=models), "torchvision")
    builder = models.get_model_builder(name)
    known = _constructor_arguments(builder)

    def build(inputs: Inputs, classes: int, **arguments: Any) -> nn.Module:
        channels, height, width = _image_shape(inputs)
        given = {"num_classes": classes, **arguments}
        if "image_size" in known:
            require(height == width, "its images", f"{height}x{width}", "square: --resize N")
            given.setdefault("image_size", height)
        if "aux_logits" in known:  # additional outputs in training mode
            given.setdefault("aux_logits", False)
        return _with_channels(builder(weights=None, **given), channels)

    build.__doc__ = f"torchvision's {name}, for images (C, H, W)."
    return build, {key: each for key, each in known.items() if key != "num_classes"}


def _with_channels(module: nn.Module, channels: int) -> nn.Module:
    """The module with a first convolution for `channels` channels."""
    name, first = next((name, part) for name, part in module.named_modules() if isinstance(part, nn.Conv2d))
    if first.in_channels != channels:
        names = ("kernel_size", "stride", "padding", "dilation", "groups")
        size: dict[str, Any] = {name: getattr(first, name) for name in names}
        parent, _, key = name.rpartition(".")
        new = nn.Conv2d(channels, first.out_channels, **size, bias=first.bias is not None)
        module.get_submodule(parent)._modules[key] = new
    return module


def _timm(package: Any, name: str) -> tuple[Build, Arguments]:
    """A classifier of timm, which adapts channels itself, and the image size for networks that depend on it."""
    plain = name.partition(".")[0]  # the part after the dot names pretrained weights
    if not package.is_model(plain):
        _check_name(plain, package.list_models(), "timm")
    known = _constructor_arguments(package.model_entrypoint(plain))

    def build(inputs: Inputs, classes: int, **arguments: Any) -> nn.Module:
        channels, *size = _image_shape(inputs)
        given = {"num_classes": classes, "in_chans": channels, **arguments}
        if "img_size" in known:
            given.setdefault("img_size", tuple(size))
        module: nn.Module = package.create_model(plain, pretrained=False, **given)
        return module

    build.__doc__ = f"timm's {plain}, for images (C, H, W)."
    return build, {key: each for key, each in known.items() if key not in ("num_classes", "in_chans")}


def _constructor_arguments(builder: Callable[..., Any]) -> Arguments:
    """The arguments of a builder NAME(**kwargs) -> CLASS: its own, and those of the class."""
    try:
        kind = typing.get_type_hints(builder).get("return")
    except Exception:  # names known to type checkers only
        kind = None
    own = {**(arguments_of(kind) if inspect.isclass(kind) else {}), **arguments_of(builder)}
    own |= {name: own[name]._replace(default=None) for name in ("image_size",) if name in own}  # which we give
    hidden = ("weights", "progress", "pretrained")
    return {name: each for name, each in own.items() if name not in hidden and not each.required}


def _image_shape(inputs: Inputs) -> tuple[int, ...]:
    require(inputs.kind == "image", "its samples", str(inputs), "images (C, H, W)")
    return inputs.shape


class Logits(nn.Module):
    """A Hugging Face model whose outputs are its logits; padding ids are masked."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """(B, L) ids -> (B, classes)."""
        if attention_mask is None and self.padding is not None:
            attention_mask = (input_ids != self.padding).long()
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        found: Tensor = self.model(**{key: value for key, value in given.items() if value is not None}).logits
        return found


def _transformers(package: Any, name: str) -> tuple[Build, Arguments]:
    """A network for token ids: from a config.json (new values), a folder with weights, or a name of the hub.

    A classifier of sequences, or with every=true a causal language model.
    """
    local = os.path.exists(name)
    if not local and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise Unfit("there is no such file or folder; must be a config.json, a folder with one, or a name of the hub")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt to reach the hub
    package.logging.set_verbosity_error()
    package.logging.disable_progress_bar()
    config = _configuration(package, name, local)
    settings = config.to_dict()
    known = {key: Argument(type(value), value) for key, value in settings.items() if _is_setting(value)}
    known["every"] = Argument(bool, False)
    _let_masks_be_mapped()
    weighted = not local or (os.path.isdir(name) and any(_is_weights(file) for file in os.listdir(name)))

    def build(inputs: Inputs, classes: int, every: bool = False, **arguments: Any) -> nn.Module:
        asked = {"use_cache": False} if every else {"num_labels": classes}
        own = _configuration(package, name, local, **{**asked, **arguments})
        _check_tokens(own, inputs)
        kind = package.AutoModelForCausalLM if every else package.AutoModelForSequenceClassification
        if type(own) not in kind._model_mapping:
            what = "language model, which every=true asks for" if every else "classifier of sequences"
            raise InputError(f"transformers has no {what}, with a {type(own).__name__}")
        if not weighted:
            made = kind.from_config(own, attn_implementation="eager")
        else:
            made, report = kind.from_pretrained(
                name, config=own, local_files_only=local, ignore_mismatched_sizes=True, output_loading_info=True,
                attn_implementation="eager",
            )  # fmt: skip
            _tell_new(name, report)
        module = Logits(made.float(), own.pad_token_id)
        if every:
            _check_predicts(module, inputs, classes)
        return module

    build.__doc__ = f"{type(config).__name__} of transformers, for token ids (length,)."
    return build, known


@functools.cache
def _let_masks_be_mapped() -> None:
    """Let transformers use an attention mask that is mapped over clients, without reading its values.

    It omits a mask without masked positions, which would branch on each client's values; unmapped it still does. Such a
    mask adds zeros, so that the outputs are the same.
    """
    try:
        masks = importlib.import_module("transformers.masking_utils")
    except ModuleNotFoundError:  # before 4.53, which made every mask
        return
    made = masks.ALL_MASK_ATTENTION_FUNCTIONS["eager"]

    def eager(*args: Any, attention_mask: Tensor | None = None, **settings: Any) -> Tensor | None:
        if attention_mask is not None and torch._C._functorch.is_functorch_wrapped_tensor(attention_mask):
            settings["allow_is_bidirectional_skip"] = False
        mask: Tensor | None = made(*args, attention_mask=attention_mask, **settings)
        return mask

    masks.AttentionMaskInterface.register("eager", eager)


def _configuration(package: Any, name: str, local: bool, **settings: Any) -> Any:
    try:
        return package.AutoConfig.from_pretrained(name, local_files_only=local, **settings)
    except Exception as error:  # of JSON, of the hub, of an unknown architecture
        why = one_line(str(error).strip().splitlines()[0][:200])
        raise Unfit(f"no configuration of a network there: {why}") from None


def _is_setting(value: Any) -> bool:
    return value is not None and isinstance(value, bool | int | float | str)


def _is_weights(file: str) -> bool:
    return file.endswith((".safetensors", ".bin", ".safetensors.index.json"))


def _check_tokens(config: Any, inputs: Inputs) -> None:
    """Raise unless the ids and their number are within the network's embeddings."""
    tokens = inputs.parts.get("input_ids", inputs)
    require(tokens.kind == "tokens", "its samples", str(inputs), "token ids (length,)")
    size, longest = getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)
    if size is not None and tokens.vocabulary > size:
        raise InputError(f"the data have token ids up to {tokens.vocabulary - 1}, must be below its vocab_size {size}")
    if longest is not None and tokens.shape[0] > longest:
        raise InputError(f"the data have {tokens.shape[0]} tokens a sample, must be at most {longest}")


@torch.no_grad()
def _check_predicts(module: nn.Module, inputs: Inputs, classes: int) -> None:
    """Raise unless a language model has a score for every token, from earlier tokens alone."""
    tokens = torch.ones(2, inputs.shape[0], dtype=torch.int64)
    tokens[1, -1] = 2  # 1 and 2: 0 is often padding
    training = module.training
    one, other = module.eval()(tokens)
    module.train(training)
    if one.shape[-1] < classes:
        raise InputError(
            f"the targets have token ids up to {classes - 1}, must be below its vocab_size {one.shape[-1]}"
        )
    if not torch.equal(one[:-1], other[:-1]):
        raise InputError("it sees the tokens that it is to predict; an encoder needs the argument is_decoder=true")


def _tell_new(name: str, report: dict[str, Any]) -> None:
    """Report tensors that are not in the folder: usually those of a head for another number of classes."""
    mismatched = [key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]]
    if fresh := sorted({*report["missing_keys"], *mismatched}):
        tell_once(f"--model hf:{name}: new initial values for {', '.join(fresh)}")
