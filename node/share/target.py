"""What a fetch needs of the place where things go, and what it says of itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from node.share.requests import Request
from node.share.work import Key
from routing.wire.experts import Refusal


class WrongBytes(Exception):
    """What was sent is not what its digest says; the text says what it should have been. The caller knows who
    sent it."""


class Incoming(Protocol):
    """Units that are coming, one after another.

    Attributes:
        complete: units that have come, are right and in their places.
    """

    @property
    def size(self) -> int: ...
    @property
    def complete(self) -> Sequence[int]: ...

    def take(self, data: memoryview) -> None:
        """The next bytes, on any thread. Whatever is raised, `complete` says what came before it.

        Raises:
            WrongBytes: a unit is there to its end and not right.
            LocalError: the disk is full, or fails.
        """

    def close(self) -> None:
        """Give up what has come of a unit that is not complete."""


class Target(Protocol[Key]):
    """Where what is fetched goes."""

    def bytes_of(self, units: Mapping[Key, int]) -> int:
        """What these units take."""

    def fit(self, key: Key, first: int, count: int) -> int:
        """How many of these neighbours are asked for together."""

    def incoming(self, key: Key, first: int, count: int) -> Incoming:
        """A place for units that are not there yet.

        Raises:
            LocalError: the file cannot be made.
        """

    def taken(self, key: Key, first: int, count: int, peer_id: str) -> None:
        """These are being asked of a peer."""

    def given_back(self, key: Key, first: int, count: int, peer_id: str) -> None:
        """These are not, or not all of them, asked of it any more."""

    def request(self, key: Key, first: int, count: int, offset: int, length: int, call_id: int) -> Request:
        """How a range of bytes of these units is asked for."""

    def missed(self, key: Key, refusal: Refusal) -> int:
        """The units that a source says it does not hold, as bits; 0: it does not say which."""

    def note(self, key: Key, units: Iterable[int]) -> None:
        """These have come (`Incoming.complete`)."""

    def seal(self) -> None:
        """Have what is there survive a power cut. May wait for the disk.

        Raises:
            LocalError: the disk fails.
        """


@dataclass(frozen=True)
class Progress:
    """How far it is.

    Attributes:
        units, n_bytes: that have come; bytes count as they come.
        all_units, all_bytes: that were lacking when it began.
        sources: peers that are being asked.
    """

    units: int
    n_bytes: int
    all_units: int
    all_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Result(Generic[Key]):
    """What came of it.

    Attributes:
        units: that have come.
        by_peer: bytes that each peer sent.
        missing: units that nobody gave; empty if all is there.
        dropped: peers that sent what they must not, with what it was.
        given_up: peers that failed again and again, or do not share, with the last reason.
    """

    units: int
    by_peer: dict[str, int]
    missing: dict[Key, int]
    dropped: dict[str, str]
    given_up: dict[str, str]
