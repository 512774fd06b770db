"""How fast to send what must not be in the way: the rate of a transfer that yields to everything else.

Delay-based, in the spirit of LEDBAT (RFC 6817): what a path takes beyond its shortest round trip is a queue
that somebody fills, and the rate is steered so that this queue stays short, whoever fills it. Expert calls on
the same line then find it nearly empty, and where nobody else sends the transfer has nearly all of it. Pure.

Rules
1. The base is the shortest round trip of the last one to two BASE_SECONDS: a path may change.
2. A step takes a round trip, STEP_SECONDS at least. The queue is what the shortest round trip of the step is
   above the base: a busy machine makes single ones longer.
3. The rate doubles each step until a queue shows; from then on it moves by GAIN times how far the queue is
   off its target, FAST_GAIN after a while without a queue. What is sent at once leans by LEAN the same way,
   which keeps the two from swinging.
   A queue that has gone one step later was none, but a busy machine: it goes on doubling.
4. It does not fall while the queue gets shorter by DRAINS of the time: that is low enough.
5. It does not grow while clearly less is sent than it allows.
"""

from __future__ import annotations

TARGET_SECONDS = 0.01
"""Queue that a transfer may keep: what it costs a call on the same line. With less, the noise of an ordinary
path and machine looks like a queue. Measured on 50 Mbit/s and 40 ms: calls take 57 ms instead of 44 (211
beside a transfer that does not yield), and the transfer 89 % of the line instead of 94."""

GAIN = 0.03
LEAN = 0.10
"""The pair that swings least on lines of 10 to 100 Mbit/s and 5 to 100 ms (test_yielding_rate.py): with 0.05
and 0.15 a line of 50 Mbit/s and 80 ms carried 95 % instead of 98, with a longer queue."""

FAST_GAIN = 0.08
QUIET_STEPS = 8
"""After so many steps without half the queue that it may keep the line is far from full: others have gone."""

FIRST_RATE = 1 << 20
"""Bytes a second: at 80 ms what a new connection sends at once to fill its window (routing.quic.warmup)."""

MIN_RATE = 128 << 10
"""Bytes a second: a megabit is less than any line that calls experts, and a cell arrives some time."""

BASE_SECONDS = 60.0
STEP_SECONDS = 0.1
"""With half of it, a machine with more work than cores (round trips 10 to 60 ms longer, several times a
second) was taken for a full line."""

CATCH_UP_SECONDS = 0.05
"""Time lost by waking up late is made good up to this; else every pause would be longer than meant."""

AFTER_SLOW_START = 0.5
"""What is kept of the rate at which the queue showed: by then it has been doubled once too often."""

RESUMES = 3
"""Times that the end of doubling may have been a mistake: where the machine is busy at the wrong moment, the
rate would start from a tenth of the line and take ten seconds to get there."""

DRAINS = 0.2
"""The queue that the beginning leaves is 200 ms long; while it empties, a rate that fell on would end far
below the line's, and take a second to come back."""

USED = 0.75
"""Of what the rate allows: with less sent, something else sets the pace, and a higher rate would only show
later that it is too high."""

MOST_OFF = 3.0
"""How far a queue counts as off its target: at four targets the rate falls by a seventh each step."""


class YieldingRate:
    """The rate of the cells sent on one connection.

    Args:
        most: bytes a second that it never passes.
    """

    def __init__(self, now: float, *, most: float) -> None:
        self._most = most
        self._rate = float(min(FIRST_RATE, most))
        self._lean = 1.0
        self._starting = True
        self._resumes = RESUMES
        self._queue = 0.0  # of the step before, in seconds
        self._quiet = 0  # steps since there was a queue
        self._before = 0.0  # the rate at which a queue showed in the step before; 0 if it did not then
        self._bases = [float("inf"), float("inf")]  # of this minute and of the one before
        self._base_since = now
        self._stepped_at = now
        self._shortest = float("inf")  # since the last step
        self._sent = 0  # since the last step
        self._next = now

    @property
    def per_second(self) -> float:
        """Bytes a second now."""
        return self._rate * self._lean

    def delay(self, size: int, rtt: float, now: float) -> float:
        """Count a piece that is about to be sent; how many seconds to wait before.

        Args:
            rtt: the path's smoothed round trip, in seconds.
        """
        self._step(rtt, now)
        self._sent += size
        start = max(self._next, now - CATCH_UP_SECONDS)
        self._next = start + size / self.per_second
        return max(0.0, start - now)

    def _step(self, rtt: float, now: float) -> None:
        if now - self._base_since >= BASE_SECONDS:
            self._bases = [rtt, self._bases[0]]
            self._base_since = now
        self._bases[0] = min(self._bases[0], rtt)
        self._shortest = min(self._shortest, rtt)
        base = min(self._bases)
        passed = now - self._stepped_at
        if passed < max(base, STEP_SECONDS):
            return
        queue = self._shortest - base
        off = max(-MOST_OFF, (TARGET_SECONDS - queue) / TARGET_SECONDS)
        is_used = self._sent >= USED * self.per_second * passed
        if self._starting and off < 0.5:
            self._starting = False
            self._before = self._rate
            self._rate *= AFTER_SLOW_START
        elif self._before:
            if off >= 0.5 and self._resumes:
                self._resumes -= 1
                self._starting = True
                self._rate = self._before
            self._before = 0.0
        gain = FAST_GAIN if self._quiet >= QUIET_STEPS else GAIN
        self._quiet = self._quiet + 1 if off >= 0.5 else 0
        drains = self._queue - queue >= DRAINS * passed
        self._queue = queue
        if is_used if off >= 0 else not drains:
            self._rate *= 2 if self._starting else 1 + gain * off
        self._rate = min(max(self._rate, MIN_RATE), self._most)
        self._lean = min(1 + LEAN * off, self._most / self._rate)
        self._stepped_at, self._sent, self._shortest = now, 0, float("inf")
