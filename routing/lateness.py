"""By how much a path counts slower for being late now and then. Pure.

A hedge hides most of a late answer, so the mean hardly tells a server with one answer in twenty late from a
calm one. But a layer waits for its slowest server, and the call in a hundred that takes twice its time is
what people notice: lateness weighs more than its seconds.

Rules
1. Of the last WINDOW answers the late ones are counted. One is excused, and so are as many as would be no
   wonder if the path were like all others: where packets get lost everybody is late now and then, and nobody
   is to be passed over for that.
2. The path counts slower by WEIGHT times the share of the rest, at most by MOST, of what its usual late
   answer is late by. So two or three late answers are enough against a replica about as far away; none are
   against one two and a half times as far: there hedges are the better remedy.
3. A late answer counts half after each HALF_LIFE. So the path is tried again after a minute or two, and left
   at its first or second late answer.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

WINDOW = 128
"""Answers by which a path is judged. Of so many one in twenty is six; where one packet in a thousand is lost,
two are late, and six or more once in a hundred windows (a call of a wide model is 14 packets)."""

DEVIATIONS = 2.0
"""Standard deviations of the count of late answers, if all paths are alike, that are no wonder."""

DOUBT = 16
"""As many answers in time are taken for granted beside those that were seen."""

WEIGHT = 25.0
MOST = 0.4
"""The most is reached at a share of 1.6 %: a layer's 99th percentile cannot bear more from one server. A
hedged late answer is late by about the replica's round trip, so with two fifths no replica is preferred that
would make every call more than twice as slow."""

HALF_LIFE = 60.0
"""Seconds. Trying again costs one or two late answers, with ten calls a second in a thousand."""


@dataclass
class Everybody:
    """The last answers of all paths."""

    answers: int = 0
    late: int = 0


@dataclass
class Lateness:
    """Of one path. `now` is seconds on any one clock that does not go back.

    Attributes:
        everybody: what this path and all others count towards.
    """

    everybody: Everybody
    _answers: int = 0
    _late: deque[tuple[int, float, float]] = field(default_factory=deque)  # which answer, when, by how much

    def answered(self, now: float, overrun: float) -> None:
        """An answer, so many seconds late; 0 if in time."""
        self._answers += 1
        if self._answers <= WINDOW:
            self.everybody.answers += 1
        if self._late and self._late[0][0] <= self._answers - WINDOW:
            self._late.popleft()
            self.everybody.late -= 1
        if overrun > 0.0:
            self._late.append((self._answers, now, overrun))
            self.everybody.late += 1

    def forgotten(self) -> None:
        """This path counts towards everybody no more."""
        self.everybody.answers -= min(self._answers, WINDOW)
        self.everybody.late -= len(self._late)

    def seconds(self, now: float) -> float:
        """Seconds by which the path counts slower than its answers in time."""
        late = len(self._late)
        if late < 2:
            return 0.0
        answers = min(self._answers, WINDOW)
        others = (self.everybody.late - late) / (self.everybody.answers - answers + DOUBT)
        expected = others * answers
        excused = max(1.0, expected + DEVIATIONS * math.sqrt(expected))
        counted = sum(math.exp2(-max(0.0, now - at) / HALF_LIFE) for _, at, _ in self._late)
        share = max(0.0, counted - excused) / (answers + DOUBT)
        usual = sorted(overrun for _, _, overrun in self._late)[(late - 1) // 2]
        return usual * min(WEIGHT * share, MOST)
