"""How soon a peer should answer: measured from its answers, by path and by size of call. Pure.

Rules
1. An answer is late after the median of the last ones + max(SPREADS times from there to the upper fifth,
   PAUSE). Ranks and not means: one answer in twenty that is half a second late leaves both where they are, so
   the next such is known as late, while a path that has become slower as a whole moves them within a dozen
   answers. What was measured seldom or never is given longer.
2. The answer expected of a peer, by which replicas are compared, is its round trip + what its last answers
   took beyond that and beyond computing until they were late + what it computes for each pair + its queue +
   what it counts slower for being late now and then (routing.lateness). Of the first few answers the worst is
   left out: a peer would not be asked again for long, for one stroke of bad luck.
3. What a peer says of itself (its compute time, its load) moves only how its own seconds are divided.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from routing.lateness import Everybody, Lateness

# --- when an answer is late ---

WINDOW = 32
"""Answers by which the next one is judged. With one in twenty an outlier, the seven that would move the upper
fifth of so many come together once in a thousand times."""

UPPER = 0.8
SPREADS = 4.0
"""Of answers with normal jitter 6 in 1,000 are later than four times from the median to the upper fifth of
the WINDOW before them, with exponential jitter 25."""

PAUSE = 0.010
"""Seconds over the median before an answer can be late: a healthy device's pauses (its core given to somebody
else, another caller's rows, garbage collection)."""

UNKNOWN_WAIT = 1.0
"""Seconds for the first small answer on a path: three round trips of the worst links in use, and a cold slice
read from disk."""

LESS_UNKNOWN = 8.0
"""What is granted beyond what was measured becomes so many times less with each answer: an eighth of a second
is left after one, nothing that matters after three."""

KNOWN_ELSEWHERE = 1
"""Answers to calls of other sizes count as so many at most."""

SLOWEST_RATE = 125_000.0
"""Bytes per second (1 Mbit/s) that more bytes than were ever measured may take."""

SLOWEST_PAIR = 0.002
"""Seconds for each (token, expert) pair more than were ever measured: a slow phone's."""

SIZE_STEP = 4.0
"""Messages within a factor of this have their times kept together."""

OVERRUNS = 8
KNOWN_OVERRUNS = 4
"""Late answers of a path that are remembered, and how many of them tell by how much the next will be late."""

# --- what to expect ---

MEAN_SHARE = 1 / 8
"""Weight of the newest in a smoothed mean (RFC 6298's): of seconds a pair, and of sizes."""

SMALL_BYTES = 256 * 1024
"""Calls up to this size tell peers apart: of larger ones the time is bandwidth, and peers are not asked for
equal ones."""

FIRST_FEW = 16
"""Answers from which a slow one in twenty is no bad luck any more."""

UNKNOWN_COST = 0.01
"""Seconds over its round trip that a peer is taken to need before it was ever asked: less than a slow one, so
that it is tried when the known ones are slow; more than a quick one of the same distance (2 to 7 ms), so that
those are kept."""

LOAD_SECONDS = 1.0
"""How long a load hint says something about now."""

FREE_LOAD = 0.05
"""Seconds of queue with which a server still counts as free: a hedge that waits longer gains little."""

STALE_SECONDS = 10.0
"""A delay beyond the round trip counts half after so long without an answer: queues do not last, and a pause
of this very device that looked like the peer's must not keep the nearest from being asked."""

MAX_PATHS = 1024
"""Paths remembered, those least recently heard of forgotten first: ten times a large swarm's."""


class Cost(NamedTuple):
    """The answer that is expected of a peer.

    Attributes:
        seconds: of a small call, but for computing.
        per_pair: seconds more for each (token, expert) pair.
        guessed: it was never asked.
    """

    seconds: float
    per_pair: float
    guessed: bool = False

    def of(self, pairs: int) -> float:
        """Seconds for a small call of so many pairs."""
        return self.seconds + self.per_pair * pairs


@dataclass
class _Mean:
    """Smoothed."""

    value: float = 0.0
    known: bool = False

    def add(self, value: float) -> None:
        self.value += (value - self.value) * (MEAN_SHARE if self.known else 1.0)
        self.known = True


@dataclass
class _Size:
    """Calls of similar size: seconds from sending to the answer, and how large they were."""

    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    nbytes: _Mean = field(default_factory=_Mean)
    pairs: _Mean = field(default_factory=_Mean)

    def late_after(self, elsewhere: int) -> float:
        """Seconds after which an answer is late; `elsewhere`: answers of other sizes on this path."""
        ordered = sorted(self.waits)
        middle, upper = ordered[len(ordered) // 2], ordered[int(len(ordered) * UPPER)]
        known = len(ordered) + min(elsewhere, KNOWN_ELSEWHERE)
        return middle + max(SPREADS * (upper - middle), PAUSE) + UNKNOWN_WAIT / LESS_UNKNOWN**known


@dataclass
class _Path:
    lateness: Lateness
    sizes: dict[int, _Size] = field(default_factory=dict)
    overruns: deque[float] = field(default_factory=lambda: deque(maxlen=OVERRUNS))
    beyond: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # of small calls: the rest
    per_pair: _Mean = field(default_factory=_Mean)  # of small calls: seconds computing
    answered_at: float = -math.inf
    load: float = 0.0
    load_at: float = -math.inf


class Latencies:
    """Kept per *path*, a peer and a route to it. `now` is seconds on any one clock that does not go back."""

    def __init__(self) -> None:
        self._paths: OrderedDict[tuple[str, str], _Path] = OrderedDict()
        self._everybody = Everybody()

    # --- what happened ---

    def answered(
        self, peer_id: str, path: str, now: float, *, wait: float, compute: float, rtt: float, nbytes: int,
        pairs: int, overrun: float,
    ) -> None:  # fmt: skip
        """An answer; `overrun`: seconds by which it was late, 0 if it was not."""
        known = self._of(peer_id, path)
        compute = min(compute, wait)
        self._waited(known, now, wait, wait - compute - rtt, nbytes, pairs, overrun)
        if nbytes <= SMALL_BYTES:
            known.per_pair.add(compute / max(pairs, 1))
        if overrun > 0.0:
            known.overruns.append(overrun)

    def beaten(
        self, peer_id: str, path: str, now: float, *, wait: float, rtt: float, nbytes: int, pairs: int,
        overrun: float,
    ) -> None:  # fmt: skip
        """It was so late that another's answer was there first, `wait` seconds after it was asked."""
        known = self._of(peer_id, path)
        self._waited(known, now, wait, wait - known.per_pair.value * pairs - rtt, nbytes, pairs, overrun)
        known.overruns.append(math.inf)

    def loaded(self, peer_id: str, path: str, load: float, now: float) -> None:
        """It says that a call arriving now would wait for `load` seconds."""
        known = self._of(peer_id, path)
        known.load, known.load_at = load, now

    def _waited(
        self, known: _Path, now: float, wait: float, beyond: float, nbytes: int, pairs: int, overrun: float
    ) -> None:
        size = known.sizes.setdefault(_size_class(nbytes), _Size())
        size.waits.append(wait)
        size.nbytes.add(nbytes)
        size.pairs.add(pairs)
        if nbytes <= SMALL_BYTES:
            known.beyond.append(max(0.0, beyond - overrun))
        known.lateness.answered(now, overrun)
        known.answered_at = now

    # --- what follows ---

    def patience(self, peer_id: str, path: str, *, rtt: float, nbytes: int, pairs: int) -> float:
        """Seconds after which an answer of this size is late (rule 1)."""
        known = self._paths.get((peer_id, path))
        if known is None or not known.sizes:
            return UNKNOWN_WAIT + 2 * rtt + nbytes / SLOWEST_RATE + pairs * SLOWEST_PAIR
        wanted = _size_class(nbytes)
        answers = sum(len(size.waits) for size in known.sizes.values())
        size = known.sizes.get(wanted)
        if size is not None:
            return max(size.late_after(answers - len(size.waits)), rtt + PAUSE)
        nearest = known.sizes[min(known.sizes, key=lambda each: (abs(each - wanted), each))]
        more_bytes = max(0.0, nbytes - nearest.nbytes.value)
        more_pairs = max(0.0, pairs - nearest.pairs.value)
        soon = nearest.late_after(answers - len(nearest.waits))
        return max(soon, rtt + PAUSE) + more_bytes / SLOWEST_RATE + more_pairs * SLOWEST_PAIR

    def overrun(self, peer_id: str, path: str) -> float:
        """Seconds after which half of its late answers have come; infinite if that is not known."""
        known = self._paths.get((peer_id, path))
        if known is None or len(known.overruns) < KNOWN_OVERRUNS:
            return math.inf
        return sorted(known.overruns)[len(known.overruns) // 2]

    def cost(self, peer_id: str, path: str, now: float, *, rtt: float) -> Cost:
        """The answer expected of a peer (rule 2)."""
        known = self._paths.get((peer_id, path))
        if known is None or not known.beyond:
            return Cost(rtt + UNKNOWN_COST, 0.0, guessed=True)
        beyond, count = sum(known.beyond), len(known.beyond)
        if count == 1:
            beyond = min(beyond, UNKNOWN_COST)
        elif count < FIRST_FEW:
            beyond, count = beyond - max(known.beyond), count - 1
        beyond /= count
        beyond *= math.exp2(-max(0.0, now - known.answered_at) / STALE_SECONDS)
        seconds = rtt + beyond + known.lateness.seconds(now) + self.load(peer_id, path, now)
        return Cost(seconds, known.per_pair.value)

    def load(self, peer_id: str, path: str, now: float) -> float:
        """Seconds that a call would wait in its queue."""
        known = self._paths.get((peer_id, path))
        return known.load if known is not None and now - known.load_at < LOAD_SECONDS else 0.0

    def _of(self, peer_id: str, path: str) -> _Path:
        key = (peer_id, path)
        known = self._paths.get(key)
        if known is None:
            known = self._paths[key] = _Path(Lateness(self._everybody))
        self._paths.move_to_end(key)
        while len(self._paths) > MAX_PATHS:
            self._paths.popitem(last=False)[1].lateness.forgotten()
        return known


def _size_class(nbytes: int) -> int:
    return int(math.log(max(nbytes, 1), SIZE_STEP))
