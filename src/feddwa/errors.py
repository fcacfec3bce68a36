"""The exception for a wrong request, as opposed to a wrong program."""

from collections.abc import Iterable

SHOWN = 100  # characters of a value in an error


class InputError(ValueError):
    """Bad input: one line that names the field, the value and what would be valid. The CLI exits with 2."""

    def __init__(self, text: object = "") -> None:
        super().__init__(one_line(text))


class InputWarning(UserWarning):
    """A deviation from what the user may expect: one line, which the CLI prints."""


def unknown(field: str, value: object, valid: Iterable[object]) -> InputError:
    """The error for a name that is not in a closed list."""
    return InputError(f"{field}: unknown name {shown(value)}; valid: {', '.join(map(str, valid))}")


def require(condition: bool, field: str, value: object, valid: str) -> None:
    """Raise InputError unless `condition` holds; `valid` says what would be accepted."""
    if not condition:
        raise InputError(f"{field}: got {shown(value)}, must be {valid}")


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 image", "2 images": a number and its noun; many: the plural if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def one_line(text: object) -> str:
    """A text with all characters escaped that would begin a new line or control a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def shown(value: object) -> str:
    """A value's repr, with the middle left out if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...{text[-SHOWN // 4 :]} ({len(text)} characters)"
