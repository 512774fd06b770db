"""The rate that yields, against a line that is worked out: it fills the line, and keeps its queue short."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from node.serve.yielding_rate import FIRST_RATE, MIN_RATE, TARGET_SECONDS, YieldingRate

PIECE = 16 << 10


@dataclass
class Line:
    """A bottleneck with a queue: the transfer's bytes and those of others wait for one another.

    Attributes:
        per_second: bytes that it carries.
        base: round trip with an empty queue, in seconds.
        others: bytes a second that somebody else sends.
        busy: how often a second the machine makes round trips 10 to 60 ms longer for a moment.
    """

    per_second: float
    base: float
    others: float = 0.0
    busy: float = 0.0
    queued: float = 0.0
    rtt: float = 0.0  # smoothed, as QUIC has it, one round trip late
    sent: float = 0.0
    bump: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, rate: YieldingRate, begin: float, end: float) -> list[float]:
        """Send as the rate says; the queue in seconds, each millisecond."""
        self.rtt = self.rtt or self.base
        now, ready = begin, begin
        late: list[float] = [self.queued / self.per_second] * max(1, round(self.base * 1000))
        queues = []
        while now < end:
            while ready <= now:
                wait = rate.delay(PIECE, self.rtt + self.bump, now)
                ready = now + wait
                if wait > 0:
                    ready += 0.0005  # timers wake late
                self.sent += PIECE
                self.queued += PIECE
                if wait > 0:
                    break
            self.queued = max(0.0, self.queued + (self.others - self.per_second) * 0.001)
            late.append(self.queued / self.per_second)
            self.rtt += (self.base + late.pop(0) - self.rtt) / 8
            queues.append(self.queued / self.per_second)
            self.bump *= 0.966  # half of it is left after 20 ms
            if self.rng.random() < self.busy * 0.001:
                self.bump += self.rng.uniform(0.01, 0.06)
            now += 0.001
        return queues


@pytest.mark.parametrize("per_second", [1.25e6, 6.25e6, 12.5e6])
@pytest.mark.parametrize("base", [0.005, 0.04, 0.1])
@pytest.mark.parametrize("busy", [0, 6])
def test_it_fills_a_line_and_keeps_its_queue_short(per_second: float, base: float, busy: float) -> None:
    line, rate = Line(per_second, base, busy=busy), YieldingRate(0.0, most=100e6)
    line.run(rate, 0.0, 10.0)
    line.sent = 0.0
    queues = sorted(line.run(rate, 10.0, 30.0))
    assert line.sent >= 0.85 * per_second * 20
    assert queues[len(queues) // 2] < 2 * TARGET_SECONDS
    assert queues[int(len(queues) * 0.95)] < 4 * TARGET_SECONDS


@pytest.mark.parametrize(("per_second", "base"), [(6.25e6, 0.04), (6.25e6, 0.08), (12.5e6, 0.02)])
def test_a_busy_machine_does_not_end_the_beginning(per_second: float, base: float) -> None:
    for seed in range(5):
        line, rate = Line(per_second, base, busy=8, rng=random.Random(seed)), YieldingRate(0.0, most=100e6)
        line.run(rate, 0.0, 6.0)
        assert line.sent >= 0.75 * per_second * 6  # a third where the first noise is taken for a queue


def test_it_makes_room_for_others_and_comes_back() -> None:
    line, rate = Line(6.25e6, 0.04), YieldingRate(0.0, most=100e6)
    line.run(rate, 0.0, 10.0)
    line.others = 5e6
    line.run(rate, 10.0, 13.0)
    line.sent = 0.0
    queues = sorted(line.run(rate, 13.0, 23.0))
    assert line.sent <= 1.3e6 * 10
    assert queues[len(queues) // 2] < 2 * TARGET_SECONDS
    line.others = 0.0
    line.run(rate, 23.0, 26.0)
    line.sent = 0.0
    line.run(rate, 26.0, 36.0)
    assert line.sent >= 0.8 * 6.25e6 * 10


def test_somebody_elses_queue_leaves_it_the_least() -> None:
    line, rate = Line(6.25e6, 0.04), YieldingRate(0.0, most=100e6)
    line.run(rate, 0.0, 5.0)
    line.queued, line.others = 1.25e6, 6.25e6 - MIN_RATE  # a full queue that nothing empties: 200 ms
    line.run(rate, 5.0, 12.0)
    assert rate.per_second <= 1.5 * MIN_RATE


def test_the_owners_bound_holds() -> None:
    line, rate = Line(100e6, 0.01), YieldingRate(0.0, most=1e6)
    line.run(rate, 0.0, 10.0)
    assert line.sent <= 1.05e6 * 10
    tight = YieldingRate(0.0, most=20_000)
    assert 0 < tight.per_second <= 20_000
    Line(100e6, 0.01).run(tight, 0.0, 5.0)
    assert tight.per_second <= 20_000


def test_it_does_not_grow_while_little_is_sent() -> None:
    rate = YieldingRate(0.0, most=100e6)
    for step in range(200):
        rate.delay(PIECE, 0.02, step * 0.5)
    assert rate.per_second < 1.2 * FIRST_RATE


def test_a_longer_path_becomes_the_base() -> None:
    rate, line = YieldingRate(0.0, most=100e6), Line(6.25e6, 0.02)
    line.run(rate, 0.0, 10.0)
    line.base = 0.06  # another route: no queue, though the round trip is 40 ms longer
    line.run(rate, 10.0, 140.0)
    line.sent = 0.0
    line.run(rate, 140.0, 150.0)
    assert line.sent >= 0.8 * 6.25e6 * 10
