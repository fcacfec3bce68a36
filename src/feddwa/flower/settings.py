"""The options of a run over Flower, as a dataclass and as Flower's run config: those of `feddwa run` and a few more."""

import dataclasses
import shlex
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feddwa import params
from feddwa.config import RunConfig
from feddwa.errors import InputError, require, unknown
from feddwa.options.federation import FederationOptions

NO_SECRET = "noise is drawn from the run's seed, which all nodes know"
OWN = "own"  # name of the dataset where every node has its own data


@dataclass(frozen=True)
class FlowerConfig(FederationOptions, RunConfig):
    """One run over Flower."""

    @property
    def usual_partition(self) -> str | None:
        """That of a named dataset; nodes that bring their own data hold one client for every owner."""
        return "natural" if self.dataset == OWN else super().usual_partition

    def _check(self) -> None:
        super()._check()
        for name in ("fault", "attack"):
            given, valid = getattr(self, name), f"left to the simulator: `feddwa run --{name}`"
            require(not given, f"--{name}", given, valid)
        for name, usual in (("dp", ""), ("disclose", "all")):
            require(
                getattr(self, name) == usual, f"--{name}", getattr(self, name), f"left to the simulator: {NO_SECRET}"
            )
        require(self.eval == "clients", "--eval", self.eval, "clients: over Flower nobody has all clients' test data")
        apart = self.holdout_clients
        require(not apart, "--holdout-clients", apart, "left to the simulator: `feddwa run --holdout-clients`")
        require(self.state == "auto", "--state", self.state, "left to the simulator: `feddwa run --state`")
        self.check_federation()


def to_run_config(config: FlowerConfig) -> dict[str, str | int | float | bool]:
    """The options as Flower's run config: plain values under names with hyphens; "" stands for None."""
    values = dataclasses.asdict(config)
    plain = {key: shlex.join(value) if isinstance(value, tuple | list) else value for key, value in values.items()}
    return {key.replace("_", "-"): "" if value is None else value for key, value in plain.items()}


def from_run_config(values: Mapping[str, Any]) -> FlowerConfig:
    """The options in a run config; those that are missing or "" have their defaults."""
    kinds = params.fields_of(FlowerConfig)
    given: dict[str, Any] = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in kinds:
            raise unknown("run config", name, [known.replace("_", "-") for known in kinds])
        if value != "":
            given[key] = _typed(name, value, kinds[key][0])
    return FlowerConfig(**given)


def _typed(name: str, value: Any, kind: Any) -> Any:
    if typing.get_origin(params.parts_of(kind)[0]) is tuple:
        try:
            return tuple(shlex.split(value))
        except (ValueError, AttributeError):  # a quotation that does not end; no text
            raise InputError(f"run config {name}: got {value!r}, must be text such as 'top_k=3 turns=2'") from None
    own = value if str in params.parts_of(kind) else params.parse(value, kind)  # the text "none" is a text there
    return params.typed(f"run config {name}", own, kind)
