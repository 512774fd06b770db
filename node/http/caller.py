"""Who sent a request, as far as the door knows."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

SCOPE_KEY = "panal.caller"
"""Where a request's ASGI scope carries its `Caller`."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request.

    Attributes:
        address: the IP address of the other end.
        key: the name of the API key it showed; "" at a door without keys.
    """

    address: str
    key: str = ""


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """The caller of a request that came through the door."""
    found = scope[SCOPE_KEY]
    assert isinstance(found, Caller)
    return found
