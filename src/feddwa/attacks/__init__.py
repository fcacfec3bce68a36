"""Attacks: what hostile clients send in place of honest updates (`--attack NAME=SHARE,...`)."""

from typing import Any

from feddwa.attacks.base import Attack, Seen
from feddwa.attacks.data import Backdoor, LabelFlip
from feddwa.attacks.simple import FreeRider, RandomModel, Scaled, SignFlip
from feddwa.attacks.statistics import ALIE, IPM, Collusion, MinMax, MinSum
from feddwa.plugins import dataclass_of

__all__ = ["ATTACKS", "Attack", "Seen", "adopt"]

ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "random": RandomModel,
    "free-rider": FreeRider,
    "alie": ALIE,
    "ipm": IPM,
    "min-max": MinMax,
    "min-sum": MinSum,
    "collusion": Collusion,
    "label-flip": LabelFlip,
    "backdoor": Backdoor,
}


def adopt(attack: Any) -> type[Attack]:
    """Check an attack from outside the package; raises Unfit if it cannot be one."""
    return dataclass_of(Attack, attack)
