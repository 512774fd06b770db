"""Who answers in a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class Partner(Protocol):
    """A node's API, wherever it is.

    Attributes:
        model: what it calls the model.
        where: who it is, in words.
    """

    @property
    def model(self) -> str: ...

    @property
    def where(self) -> str: ...

    def ask(self, body: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """The chunks of an answer. Leaving the context ends it, there too.

        Args:
            body: of /v1/chat/completions, which streams.

        Raises:
            Refused: one line; also while iterating.
        """
        ...
