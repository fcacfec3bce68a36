"""The terminal that commands write to."""

from typing import Any

from rich.console import Console


def make_console(**options: Any) -> Console:
    """A console that prints what it is given: square brackets in a path or a name are no markup."""
    return Console(markup=False, emoji=False, **options)
