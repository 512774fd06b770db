"""What a two-way stream of bytes offers, whoever carries it: a libp2p stream, a circuit through a relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Left(NamedTuple):
    """What is left of a stream that its carrier limits: seconds, and bytes of both ways together.

    None where there is no limit.
    """

    seconds: float | None
    bytes: int | None


Meter = Callable[[], Left]
"""Tells what is left now."""


class ByteStream(Protocol):
    """An ordered, reliable stream to one authenticated peer. One task reads, one task writes.

    A stream that breaks raises PeerError from `read` and `write`.
    """

    @property
    def peer_id(self) -> str:
        """Who is at the other end, as its transport has proven it."""

    @property
    def remote(self) -> str:
        """Where it goes, for people and for limits by origin: an IP address, or "relay PEER-ID"."""

    async def read(self, max_bytes: int) -> bytes:
        """What has arrived, at least one byte and at most `max_bytes`; b"" once the peer has ended it."""

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`; waits while the way is full."""

    async def aclose(self) -> None:
        """End it in good order: the peer reads what was written, then the end."""

    def abort(self) -> None:
        """End it at once, without waiting; safe to call at any time, also twice."""
