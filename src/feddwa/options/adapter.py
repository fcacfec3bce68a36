"""Options of adapters, which are trained in place of the network's parameters."""

from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.errors import InputError
from feddwa.params import Option


@dataclass(frozen=True)
class AdapterOptions:
    """Low-rank additions to the layers of a frozen network. By default the network itself is trained."""

    adapter: Literal["lora"] | None = None
    """Freeze the network and train low-rank additions to its layers, and its head."""
    adapter_arg: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE", repeated=True)] = ()
    """KEY=VALUE of the adapter: rank [8], alpha [8], targets=NAME,... [all], save=NAME,... [head]. Repeatable."""

    def check_adapter(self) -> None:
        """Raise InputError if arguments are given without an adapter."""
        if self.adapter_arg and self.adapter is None:
            raise InputError("--adapter-arg: needs an adapter; give --adapter lora, or leave it out")
