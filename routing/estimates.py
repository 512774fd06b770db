"""How soon a peer should answer, and how far to trust it: measured from its answers and failures. Pure.

Everything but garbage is kept per *path* (a peer and a route to it: what a relay loses is not the
fault of the direct way) and forgotten with it; who sends garbage does so on every path.

Rules
1. A call should be answered within mean + max(4 deviations, MARGIN), both smoothed as TCP smooths its
   round trips (RFC 6298), separately for messages of similar size. What was never measured gets a wide
   constant, not a guess.
2. A fault makes a peer *doubted*: others are asked first. Each fault after the doubt is over doubles it; an
   answer ends it, STEADY_ANSWERS in a row or quiet time clear the record. A late answer is still an answer:
   it takes the doubt back as if it had not been.
3. Garbage (no reply, not the reply to this, not numbers) makes a peer *distrusted*, for longer, and no
   later answer ends that, only time.
4. What a peer says of itself (its compute time, its load) moves only how its own seconds are divided.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto

# --- when an answer is late ---

MEAN_SHARE = 1 / 8
DEVIATION_SHARE = 1 / 4
DEVIATIONS = 4
"""RFC 6298's constants: the mean follows in about eight answers, and few per cent pass 4 deviations."""

MARGIN = 0.1
"""Seconds over the mean before an answer can be late: longer than the pauses of a healthy device (another
caller's rows, garbage collection), and than QUIC takes to repair one lost packet at a 40 ms round trip."""

UNKNOWN_WAIT = 1.0
"""Seconds for the first small answer on a path: three round trips of the worst links in use, and a cold slice
read from disk."""

SLOWEST_RATE = 125_000.0
"""Bytes per second (1 Mbit/s) that more bytes than were ever measured may take."""

SLOWEST_PAIR = 0.002
"""Seconds for each (token, expert) pair more than were ever measured: a slow phone's."""

SIZE_STEP = 4.0
"""Messages within a factor of this have their times kept together."""

# --- trust ---

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

LAST_BUSY = 5.0
"""Seconds at most that a server's word that it is overloaded is believed."""

MAX_STRIKES = 16  # doublings that matter are fewer

# --- choice ---

SMALL_BYTES = 256 * 1024
"""Calls up to this size tell peers apart: of larger ones the time is bandwidth, and peers are not asked for
equal ones."""

REFERENCE_PAIRS = 4
"""Pairs of the call by which peers are compared: a decoded token's share at one of a few servers."""

UNKNOWN_COST = 0.02
"""Seconds over its round trip that a peer is taken to need before it was ever asked: less than a slow one, so
that it is tried when the known ones are slow; more than a quick one, so that those are kept."""

LOAD_SECONDS = 1.0
"""How long a load hint says something about now."""

FREE_LOAD = 0.05
"""Seconds of queue with which a server still counts as free: a hedge that waits longer gains little."""

STALE_SECONDS = 30.0
"""A delay beyond the round trip counts half after so long without an answer: queues do not last."""

MAX_PATHS = 1024
"""Paths and peers remembered, those least recently heard of forgotten first: ten times a large swarm's."""

# --- hedging ---

HEDGE_SHARE = 0.1
"""Hedges for each request: a swarm that is slow as a whole gets at most a tenth more to do."""

HEDGE_BURST = 16.0
"""Hedges that may be saved up: enough for a server that dies in each layer of a short pass."""


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
class _Smooth:
    """Smoothed mean and mean deviation."""

    mean: float = 0.0
    deviation: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        if not self.count:
            self.mean, self.deviation = value, value / 2
        else:
            self.deviation += DEVIATION_SHARE * (abs(value - self.mean) - self.deviation)
            self.mean += MEAN_SHARE * (value - self.mean)
        self.count += 1


@dataclass
class _Size:
    """Calls of similar size: seconds on the way (queue included) and computing, and how large they were."""

    trip: _Smooth = field(default_factory=_Smooth)
    compute: _Smooth = field(default_factory=_Smooth)
    nbytes: _Smooth = field(default_factory=_Smooth)
    pairs: _Smooth = field(default_factory=_Smooth)

    def tail(self) -> float:
        mean = self.trip.mean + self.compute.mean
        return mean + max(DEVIATIONS * (self.trip.deviation + self.compute.deviation), MARGIN)


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
    sizes: dict[int, _Size] = field(default_factory=dict)
    beyond: _Smooth = field(default_factory=_Smooth)  # of small calls: seconds over round trip and computing
    per_pair: _Smooth = field(default_factory=_Smooth)  # of small calls: seconds computing
    answered_at: float = -math.inf
    load: float = 0.0
    load_at: float = -math.inf
    busy_until: float = -math.inf
    steady: int = 0
    record: _Record = field(default_factory=_Record)
    before_late: tuple[int, float, float] | None = None  # the record before it was late


class HedgeBudget:
    """How many requests may be sent a second time: a share of all, some of it saved up."""

    def __init__(self) -> None:
        self._left = HEDGE_BURST

    def earn(self) -> None:
        """A request was sent."""
        self._left = min(self._left + HEDGE_SHARE, HEDGE_BURST)

    def spend(self, count: int) -> bool:
        """Take so many hedges, if there are so many left."""
        if self._left < count:
            return False
        self._left -= count
        return True

    def give_back(self, count: int) -> None:
        """They replaced a request that failed: no load was doubled."""
        self._left = min(self._left + count, HEDGE_BURST)


class Estimates:
    """What is known of peers' answers. `now` is seconds on any one clock that does not go back.

    Attributes:
        changes: goes up when somebody becomes or ceases to be doubted other than by time.
        hedges: the budget of all calls together.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.hedges = HedgeBudget()
        self._paths: OrderedDict[tuple[str, str], _Path] = OrderedDict()
        self._distrust: OrderedDict[str, _Record] = OrderedDict()

    # --- what happened ---

    def answered(
        self,
        peer_id: str,
        path: str,
        now: float,
        *,
        wait: float,
        compute: float,
        rtt: float,
        nbytes: int,
        pairs: int,
        load: float,
    ) -> None:
        """A valid answer.

        Args:
            wait: seconds from sending to the answer.
            compute: seconds that the server says it computed.
            rtt: the connection's round trip in seconds.
            nbytes: of request and answer together.
            pairs: that were computed.
            load: seconds that a call arriving now would wait, as the server says.
        """
        known = self._of(peer_id, path)
        compute = min(compute, wait)
        size = known.sizes.setdefault(_size_class(nbytes), _Size())
        size.trip.add(wait - compute)
        size.compute.add(compute)
        size.nbytes.add(nbytes)
        size.pairs.add(pairs)
        if nbytes <= SMALL_BYTES:
            known.beyond.add(max(0.0, wait - compute - rtt))
            known.per_pair.add(compute / max(pairs, 1))
        known.load, known.load_at, known.answered_at = load, now, now
        known.steady += 1
        if known.before_late is not None:
            known.record = _Record(*known.before_late)
            known.before_late = None
            self.changes += 1
        if known.record.until > now or known.busy_until > now:
            known.record.until = known.busy_until = now
            self.changes += 1
        if known.steady >= STEADY_ANSWERS:
            known.record.strikes = 0

    def late(self, peer_id: str, path: str, now: float) -> None:
        """An answer is not there when it should be; it may still come."""
        known = self._of(peer_id, path)
        if now >= known.record.until:  # the same doubt is not counted for each call under way
            record = known.record
            known.before_late = (record.strikes, record.until, record.at)
            self._doubt(known, now)

    def failed(self, peer_id: str, path: str, fault: Fault, now: float) -> None:
        """A call failed."""
        known = self._of(peer_id, path)
        known.before_late = None
        if fault is Fault.WRONG:
            record = self._distrust.setdefault(peer_id, _Record())
            self._distrust.move_to_end(peer_id)
            _bound(self._distrust)
            record.strike(now, FIRST_DISTRUST, LAST_DISTRUST, FORGET_DISTRUST)
            self.changes += 1
        if now >= known.record.until:
            self._doubt(known, now)

    def overloaded(self, peer_id: str, path: str, load: float, now: float) -> None:
        """It refused, having too much to do for `load` more seconds: no fault, but others are asked first."""
        known = self._of(peer_id, path)
        known.busy_until = now + min(max(load, MARGIN), LAST_BUSY)
        known.load, known.load_at = load, now
        self.changes += 1

    # --- what follows ---

    def patience(self, peer_id: str, path: str, *, rtt: float, nbytes: int, pairs: int) -> float:
        """Seconds after which an answer of this size is late (rule 1)."""
        known = self._paths.get((peer_id, path))
        if known is None or not known.sizes:
            return UNKNOWN_WAIT + 2 * rtt + nbytes / SLOWEST_RATE + pairs * SLOWEST_PAIR
        wanted = _size_class(nbytes)
        size = known.sizes.get(wanted)
        if size is not None:
            return max(size.tail(), rtt + MARGIN)
        nearest = known.sizes[min(known.sizes, key=lambda each: (abs(each - wanted), each))]
        more_bytes = max(0.0, nbytes - nearest.nbytes.mean)
        more_pairs = max(0.0, pairs - nearest.pairs.mean)
        return max(nearest.tail(), rtt + MARGIN) + more_bytes / SLOWEST_RATE + more_pairs * SLOWEST_PAIR

    def cost(self, peer_id: str, path: str, now: float, *, rtt: float) -> float:
        """Seconds in which a small call should be answered: by this, replicas are compared."""
        known = self._paths.get((peer_id, path))
        if known is None or not known.beyond.count:
            return rtt + UNKNOWN_COST
        beyond = known.beyond.mean * math.exp2(-max(0.0, now - known.answered_at) / STALE_SECONDS)
        load = known.load if now - known.load_at < LOAD_SECONDS else 0.0
        return rtt + beyond + known.per_pair.mean * REFERENCE_PAIRS + load

    def doubted(self, peer_id: str, path: str, now: float) -> bool:
        """Whether others are to be asked first."""
        known = self._paths.get((peer_id, path))
        return self._distrusted(peer_id, now) or (
            known is not None and now < max(known.record.until, known.busy_until)
        )

    def free(self, peer_id: str, path: str, now: float) -> bool:
        """Whether a hedge may go there: it sent no garbage, is not busy, and did not fail just now.

        Doubt alone is no reason against it: when all are doubted, the one that failed longest ago is a
        better bet than the one that is late.
        """
        if self._distrusted(peer_id, now):
            return False
        known = self._paths.get((peer_id, path))
        if known is None:
            return True
        busy = now < known.busy_until or (now - known.load_at < LOAD_SECONDS and known.load > FREE_LOAD)
        return not busy and (now >= known.record.until or now - known.record.at >= FIRST_DOUBT)

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
        _bound(self._paths)
        return known


def _size_class(nbytes: int) -> int:
    return int(math.log(max(nbytes, 1), SIZE_STEP))


def _bound(table: OrderedDict[str, _Record] | OrderedDict[tuple[str, str], _Path]) -> None:
    while len(table) > MAX_PATHS:
        table.popitem(last=False)
