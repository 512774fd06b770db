"""Calls of functions in an answer, as far as the API needs to know. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Call(Protocol):
    """A call of a function, complete."""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a message."""
        ...


class ReadsCalls(Protocol):
    """Reads calls of functions out of the text of one answer.

    Attributes:
        found: there was one so far.
        spelt: tokens whose text is to be fed although they have none for people.
    """

    @property
    def found(self) -> bool: ...

    @property
    def spelt(self) -> Mapping[int, bytes]: ...

    def feed(self, text: str) -> tuple[str, Sequence[Call]]:
        """Text to show now, and calls that are complete."""
        ...

    def finish(self) -> tuple[str, Sequence[Call]]:
        """The rest."""
        ...
