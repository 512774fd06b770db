"""How far to trust a peer: whom to ask last, and for how long. Pure.

Doubt is of a *path*, a peer and a route to it: what a relay loses is not the fault of the direct way. Who
sends garbage does so on every path.

Rules
1. A fault makes a path *doubted*: others are asked first. Each fault after the doubt is over doubles it; an
   answer ends it, STEADY_ANSWERS in a row or quiet time clear the record.
2. A late answer is a fault if the path was not steady before (STEADY_ANSWERS in a row), or if the next one
   is late as well: packets get lost and devices pause, but not twice in a row. It is still an answer: if it
   comes after all, or the next one comes in time, the fault is taken back as if it had not been.
3. Garbage (no reply, not the reply to this, not numbers) makes a peer *distrusted*, for longer, and no
   later answer ends that, only time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum, auto

FIRST_DOUBT = 1.0
LAST_DOUBT = 60.0
"""Seconds of doubt after a first fault (a pause; a process that starts again takes as long), doubled up to a
minute: a server that is back serves again within that."""

FIRST_DISTRUST = 30.0
LAST_DISTRUST = 3600.0
"""The same after garbage. Nobody sends that by bad luck."""

STEADY_ANSWERS = 16
"""Answers in a row after which earlier faults no longer count."""

FORGET_DOUBT = 120.0
FORGET_DISTRUST = 3600.0
"""Seconds without a fault that take one doubling back: twice the longest doubt; the longest distrust."""

FIRST_BUSY = 0.1
LAST_BUSY = 5.0
"""Seconds at least and at most that a server's word that it is overloaded is believed."""

MAX_STRIKES = 16  # doublings that matter are fewer

MAX_REMEMBERED = 1024
"""Paths and peers remembered, those least recently heard of forgotten first: ten times a large swarm's."""


class Fault(Enum):
    """What a peer did wrong, as far as trust goes."""

    LATE = auto()
    """No answer in time."""
    GONE = auto()
    """The connection or the stream ended."""
    REFUSED = auto()
    """It refused for a reason other than load."""
    WRONG = auto()
    """What it sent is no answer to what it was asked."""


@dataclass
class _Record:
    """Faults, and how long they are held against somebody."""

    strikes: int = 0
    until: float = -math.inf
    at: float = -math.inf

    def strike(self, now: float, first: float, last: float, forget: float) -> None:
        if self.strikes and now > self.at:
            self.strikes = max(0, self.strikes - int((now - self.at) / forget))
        self.strikes = min(self.strikes + 1, MAX_STRIKES)
        self.until = now + min(first * 2.0 ** (self.strikes - 1), last)
        self.at = now


@dataclass
class _Path:
    record: _Record = field(default_factory=_Record)
    before_late: tuple[_Record, int] | None = None  # record and steadiness before it was late
    busy_until: float = -math.inf
    steady: int = 0


class Trust:
    """`now` is seconds on any one clock that does not go back.

    Attributes:
        changes: goes up when somebody becomes or ceases to be doubted other than by time.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._paths: OrderedDict[tuple[str, str], _Path] = OrderedDict()
        self._distrust: OrderedDict[str, _Record] = OrderedDict()

    def answered(self, peer_id: str, path: str, now: float) -> None:
        """A valid answer."""
        known = self._of(peer_id, path)
        if known.before_late is not None:
            doubted = known.record.until
            known.record, known.steady = known.before_late
            known.before_late = None
            self.changes += known.record.until != doubted
        known.steady += 1
        if known.record.until > now or known.busy_until > now:
            known.record.until = known.busy_until = now
            self.changes += 1
        if known.steady >= STEADY_ANSWERS:
            known.record.strikes = 0

    def late(self, peer_id: str, path: str, now: float) -> None:
        """An answer is not there when it should be; it may still come."""
        known = self._of(peer_id, path)
        if now < known.record.until:
            return  # the same doubt is not counted for each call under way
        if known.before_late is None:
            known.before_late = replace(known.record), known.steady
        if known.steady >= STEADY_ANSWERS:
            known.steady = 0
        else:
            self._doubt(known, now)

    def failed(self, peer_id: str, path: str, fault: Fault, now: float) -> None:
        """A call failed."""
        known = self._of(peer_id, path)
        known.before_late = None
        if fault is Fault.WRONG:
            record = self._distrust.setdefault(peer_id, _Record())
            self._distrust.move_to_end(peer_id)
            if len(self._distrust) > MAX_REMEMBERED:
                self._distrust.popitem(last=False)
            record.strike(now, FIRST_DISTRUST, LAST_DISTRUST, FORGET_DISTRUST)
            self.changes += 1
        if now >= known.record.until:
            self._doubt(known, now)

    def overloaded(self, peer_id: str, path: str, load: float, now: float) -> None:
        """It refused, having too much to do for `load` more seconds: no fault, but others are asked first."""
        self._of(peer_id, path).busy_until = now + min(max(load, FIRST_BUSY), LAST_BUSY)
        self.changes += 1

    def doubted(self, peer_id: str, path: str, now: float) -> bool:
        """Whether others are to be asked first."""
        known = self._paths.get((peer_id, path))
        return self._distrusted(peer_id, now) or (
            known is not None and now < max(known.record.until, known.busy_until)
        )

    def free(self, peer_id: str, path: str, now: float) -> bool:
        """Whether a hedge may go there: it sent no garbage, is not busy, and did not fail just now.

        Doubt alone is no reason against it: when all are doubted, the one that failed longest ago is a
        better bet than the one that is late. Nor is a first late answer: it is doubted only because little is
        known of it.
        """
        if self._distrusted(peer_id, now):
            return False
        known = self._paths.get((peer_id, path))
        if known is None:
            return True
        record, only_late = known.record, known.before_late is not None and known.record.strikes == 1
        failed_just_now = now < record.until and now - record.at < FIRST_DOUBT and not only_late
        return now >= known.busy_until and not failed_just_now

    def _distrusted(self, peer_id: str, now: float) -> bool:
        record = self._distrust.get(peer_id)
        return record is not None and now < record.until

    def _doubt(self, known: _Path, now: float) -> None:
        known.steady = 0
        known.record.strike(now, FIRST_DOUBT, LAST_DOUBT, FORGET_DOUBT)
        self.changes += 1

    def _of(self, peer_id: str, path: str) -> _Path:
        key = (peer_id, path)
        known = self._paths.setdefault(key, _Path())
        self._paths.move_to_end(key)
        if len(self._paths) > MAX_REMEMBERED:
            self._paths.popitem(last=False)
        return known
