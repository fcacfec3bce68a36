"""The one exception that means "the request is wrong", as opposed to "the program is wrong"."""

from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one line that names the field, the value and what would be valid. The CLI exits with 2."""


def unknown(field: str, value: object, valid: Iterable[object]) -> InputError:
    """The error for a name that is not in a closed list."""
    return InputError(f"{field}: unknown name {value!r}; valid: {', '.join(map(str, valid))}")


def require(condition: bool, field: str, value: object, valid: str) -> None:
    """Raise InputError unless `condition` holds; `valid` says what would be accepted."""
    if not condition:
        raise InputError(f"{field}: got {value!r}, must be {valid}")
