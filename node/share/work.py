"""What of a fetch is left to ask for, of whom, and who is asked no more. Pure: takes `now`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

from node.home.call_bits import first_run, run_bits

Key = TypeVar("Key", bound=Hashable)
"""What units are counted in: a MoE call, or a file. A unit is what is asked for and proven as one."""

EVERY = -1
"""All units, as bits."""

FAILURES = 5
"""In a row, without a unit between them, before a source is given up."""

FAILURES_UNHEARD = 2
"""The same for one that has never answered: most likely it does not share."""

FIRST_REST, LAST_REST = 0.5, 15.0
"""Seconds a source rests that has failed; doubled each time."""

RATE_SECONDS = 10.0
"""Over which a source's rate is measured: long enough that a pause of its line does not make it slow."""

LEAST_RATE_SECONDS = 1.0
"""Where it has nothing left to send before that, so long is enough."""

SLOW = 0.1
"""Of the median of the others that could send the same: who is slower leaves it to them. It would keep a
place, and at the end all would wait for it."""


@dataclass(eq=False)
class Source:
    """A peer that holds what is wanted.

    Attributes:
        refuses: units it was thought to hold and does not, as bits.
        failures: in a row.
        rests_until: when it may be asked again.
        is_asked: it is being asked now.
        was_heard: it has answered, if only by a refusal.
        given_up: why it is not asked any more; "" if it may be.
        is_hostile: it sent what it must not.
        n_bytes: that it sent.
        rate: bytes a second, as last measured; None before that.
    """

    peer_id: str
    refuses: dict[Any, int] = field(default_factory=dict)
    failures: int = 0
    rests_until: float = -math.inf
    is_asked: bool = False
    was_heard: bool = False
    given_up: str = ""
    is_hostile: bool = False
    n_bytes: int = 0
    rate: float | None = None
    _measured_since: float = 0.0
    _measured_bytes: int = 0

    def begin(self, now: float) -> None:
        """It is asked from now on."""
        self.is_asked = True
        self._measured_since, self._measured_bytes = now, 0

    def sent(self, n_bytes: int, now: float) -> None:
        """So much has come of it."""
        self.n_bytes += n_bytes
        self._measured_bytes += n_bytes
        self._measure(now, RATE_SECONDS)

    def end(self, now: float) -> None:
        """It is asked no more, for now."""
        self.is_asked = False
        if self._measured_bytes:
            self._measure(now, LEAST_RATE_SECONDS)

    def _measure(self, now: float, least: float) -> None:
        elapsed = now - self._measured_since
        if elapsed >= least:
            self.rate = self._measured_bytes / elapsed
            self._measured_since, self._measured_bytes = now, 0

    def rest(self, now: float) -> None:
        """It did nothing wrong, and is to be asked again only after a while."""
        self.rests_until = now + LAST_REST

    def fail(self, reason: str, now: float, rest: float = 0.0) -> None:
        """It gave nothing this time; `rest` is what it asks for, in seconds."""
        self.failures += 1
        if self.failures >= (FAILURES if self.was_heard else FAILURES_UNHEARD):
            self.given_up = reason
        pause = min(FIRST_REST * 2.0 ** (self.failures - 1), LAST_REST)
        self.rests_until = now + max(pause, min(rest, LAST_REST))

    def refuse(self, key: Hashable, asked: int, lacking: int) -> None:
        """It does not hold these of the units that it was asked for; 0: it does not say which."""
        self.refuses[key] = self.refuses.get(key, 0) | (lacking & asked or asked)


class Work(Generic[Key]):
    """The units that nobody is being asked for now, and the peers that may be asked.

    Args:
        lacking: what is to be fetched, as bits, in order.
        holders: who holds units of this key now, in order of preference: (peer id, units as bits).
        askable: (key, peer id) -> of the key's units those that this peer may be asked for now, as bits:
            others must have come before.
    """

    def __init__(
        self,
        lacking: Mapping[Key, int],
        holders: Callable[[Key], Iterable[tuple[str, int]]],
        askable: Callable[[Key, str], int] = lambda key, peer_id: EVERY,
    ) -> None:
        self._pending = dict(lacking)  # keys of which nothing is left stay, for their order
        self._holders = holders
        self._askable = askable
        self.sources: dict[str, Source] = {}

    def left(self) -> dict[Key, int]:
        return {key: bits for key, bits in self._pending.items() if bits}

    def useful(self, may: Callable[[str], bool]) -> list[Source]:
        """Sources that may give what is left, those resting or being asked included; cheapest first.

        Args:
            may: whether a peer can be asked now.
        """
        found: dict[str, Source] = {}
        for key, bits in self.left().items():
            for peer_id, held in self._holders(key):
                source = self.sources.setdefault(peer_id, Source(peer_id))
                can_give = bits & held & ~source.refuses.get(key, 0)
                if can_give and not source.given_up and peer_id not in found and may(peer_id):
                    found[peer_id] = source
        return list(found.values())

    def can_take(self, source: Source) -> bool:
        """Whether there is something that a source may be asked for now."""
        return any(self._can_give(source, key) for key in self._pending)

    def take(self, source: Source, fit: Callable[[Key, int, int], int]) -> tuple[Key, int, int] | None:
        """The next units for a source to send: key, the first, how many; None if there are none.

        Args:
            fit: (key, first, count) -> how many of these neighbours may be asked for together, at least one.
        """
        for key in self._pending:
            if can_give := self._can_give(source, key):
                first, count = first_run(can_give)
                count = fit(key, first, count)
                self._pending[key] &= ~run_bits(first, count)
                return key, first, count
        return None

    def _can_give(self, source: Source, key: Key) -> int:
        bits = self._pending[key]
        if not bits:
            return 0
        held = dict(self._holders(key)).get(source.peer_id, 0)
        can_give = bits & held & ~source.refuses.get(key, 0)
        return can_give & self._askable(key, source.peer_id) if can_give else 0

    def is_slow(self, source: Source, key: Key, bits: int, may: Callable[[str], bool]) -> bool:
        """Whether others, who are far faster, could send all of these units as well.

        Args:
            may: whether a peer can be asked now.
        """
        if source.rate is None:
            return False
        rates = []
        for peer_id, held in self._holders(key):
            other = self.sources.get(peer_id)
            if other is None or other is source or other.rate is None or other.given_up or not may(peer_id):
                continue
            if bits & ~(held & ~other.refuses.get(key, 0)) == 0:
                rates.append(other.rate)
        return bool(rates) and source.rate < SLOW * median(rates)

    def give_back(self, key: Key, bits: int) -> None:
        """These did not come."""
        self._pending[key] |= bits
