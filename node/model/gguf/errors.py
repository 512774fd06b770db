"""The one error of this package."""

from __future__ import annotations

from routing.errors import LocalError

# A name out of a broken file may be long or hold line ends; errors stay one readable line.
MAX_SHOWN_CHARACTERS = 80


class GGUFError(LocalError):
    """A GGUF file is broken, is not what its name or its user says, or can't be written."""


def shown(name: str) -> str:
    """`name` quoted, on one line and not longer than a person wants to read."""
    if len(name) > MAX_SHOWN_CHARACTERS:
        return repr(name[:MAX_SHOWN_CHARACTERS]) + "..."
    return repr(name)
