"""Convolution and pooling in forms that stay fast when mapped over clients."""

from collections.abc import Callable
from typing import Any

STACKED: dict[Any, Callable[..., Any]] = {}
