"""What a pass and a guess cost: running estimates of seconds and trips. Pure.

A pass of so many rows takes

    seconds computing (rows) + trips (rows) x seconds of a trip (rows)

The first two are lines, fitted by recursive least squares that forgets: computing over rows, trips over
1 - LEFT_ALONE^(rows - 1), as a further row needs fewer and fewer layers that none before it needed. Where
rows do not vary nothing is learnt of a slope, and what was known of it stays. What a pass without guesses
computes is a mean of its own: nobody computes experts for the row that keeps its only row company. The length
of a trip follows the network within a few passes.
"""

from __future__ import annotations

from node.decode.drafting.rule import PassOutcome

LEFT_ALONE = 0.6
"""Share of the layers that no row has asked for, and that a further row leaves so (hot experts at home)."""

ALONE_MEMORY = 0.9
COMPUTE_MEMORY = 0.95
TRIPS_MEMORY = 0.97
TRIP_MEMORY = 0.8
"""What each pass leaves of the weight of those before it. Rows cost what they cost; networks change."""

DRAFT_MEMORY = 0.8
"""The same of the time that a guess takes."""

PRIOR_ROW = 0.2
"""Seconds that a row adds to a pass, as a share of the first pass's, before there were several rows."""

PRIOR_TRIPS = 0.2
"""Trips that many rows need beyond those of one, as a share of them, likewise."""

COMPUTE_TRUST = 1.0
TRIPS_TRUST = 1.0
"""Variance of these slopes, where an observation's is 1: a few passes of other rows say what a row does."""

GROWTH_STEP = 0.05
MOST_GROWTH = 1.0
"""How fast it is learnt what a row adds to a trip, as a share, and the most: links jitter by more."""

CHANGED = 0.5
"""Share by which a trip differs from what was expected, from which on it says nothing about rows."""

LEAP = 4.0
"""Times the expected value that an observation counts at most: one server that fails is not the network. Two
trips in a row that are longer are believed."""


class _Mean:
    """Of what was seen, then of what was seen lately."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        if self.mean > 0:
            value = min(value, LEAP * self.mean)
        self.count += 1
        self.mean += max(1 / self.count, 1 - ALONE_MEMORY) * (value - self.mean)


class _Line:
    """y = level + slope * x, with slope >= 0."""

    def __init__(self, memory: float, prior_slope: float, trust: float) -> None:
        self._memory = memory
        self._trust = trust
        self._prior_slope = prior_slope  # as a share of the first value
        self.known = False
        self._level = self._slope = 0.0
        self._p = (1.0, 0.0, trust)  # variances of level and slope, covariance between them

    def at(self, x: float) -> float:
        return max(0.0, self._level + self._slope * x)

    def add(self, x: float, y: float) -> None:
        if not self.known:
            self.known = True
            self._slope = self._prior_slope * y / (1 + self._prior_slope * x)
            self._level = y - self._slope * x
            return
        expected = self._level + self._slope * x
        if expected > 0:
            y = min(y, LEAP * expected)
        a, b, c = self._p
        to_level, to_slope = a + b * x, b + c * x
        scale = self._memory + to_level + to_slope * x
        error = y - expected
        self._level += to_level / scale * error
        self._slope += to_slope / scale * error
        a, b, c = (
            a - to_level * to_level / scale,
            b - to_level * to_slope / scale,
            c - to_slope * to_slope / scale,
        )
        # Forgetting must not make a direction that is not seen count without bound.
        a, b, c = a / self._memory, b / self._memory, c / self._memory
        level, slope = min(a, 1.0), min(c, self._trust)
        self._p = level, b * ((level / a) * (slope / c)) ** 0.5, slope
        if self._slope < 0:  # the line through the same place, without it
            self._level += self._slope * x
            self._slope = 0.0
        elif self._level < 0:
            self._slope, self._level = max(0.0, self._slope + self._level / x) if x else 0.0, 0.0


class _Trip:
    """Seconds of a trip = level * (1 + growth * (rows - 1)); the level moves fast, growth slowly."""

    def __init__(self) -> None:
        self._known = self._leapt = False
        self._level = self._growth = self._rows = 0.0

    def at(self, rows: int) -> float:
        return self._level * (1 + self._growth * (rows - 1))

    def add(self, rows: int, seconds: float) -> None:
        if not self._known:
            self._known, self._level, self._rows = True, seconds, rows
            return
        expected = self.at(rows)
        if expected > 0:
            once, self._leapt = self._leapt, seconds > LEAP * expected
            if not once:
                seconds = min(seconds, LEAP * expected)
            # Rows that differ from the usual tell what rows do, unless it is the network that changes.
            apart, surprise = rows - self._rows, seconds / expected - 1
            if abs(surprise) < CHANGED:
                self._growth += GROWTH_STEP * surprise * apart / (1 + apart * apart)
                self._growth = max(0.0, min(MOST_GROWTH, self._growth))
        self._rows += (1 - TRIPS_MEMORY) * (rows - self._rows)
        self._level += (1 - TRIP_MEMORY) * (seconds / (1 + self._growth * (rows - 1)) - self._level)


class PassCosts:
    """Running estimates; the sessions of a backbone may share them.

    Args:
        least_rows: rows that a pass computes at least (node.decode.exactness): its first guess costs no row.
    """

    def __init__(self, least_rows: int) -> None:
        self._least_rows = least_rows
        self._alone = _Mean()
        self._compute = _Line(COMPUTE_MEMORY, PRIOR_ROW, COMPUTE_TRUST)
        self._trips = _Line(TRIPS_MEMORY, PRIOR_TRIPS, TRIPS_TRUST)
        self._trip = _Trip()
        self._draft: dict[str, float] = {}  # by who guessed before it, "" for the first of a pass
        self._around = 0.0  # seconds of guessing beyond those of the guesses

    @property
    def known(self) -> bool:
        """Whether there was a pass at all."""
        return self._compute.known

    def learn(self, outcome: PassOutcome) -> None:
        rows = outcome.rows
        computed = max(0.0, outcome.pass_seconds - outcome.waited)
        if rows == 1:
            self._alone.add(computed)
        if rows > 1 or not self._compute.known:
            self._compute.add(max(rows, self._least_rows), computed)
        self._trips.add(_touched(rows), outcome.trips)
        if outcome.trips:
            self._trip.add(rows, outcome.waited / outcome.trips)
        if outcome.made:
            around = max(0.0, outcome.draft_seconds - sum(draft.seconds for draft in outcome.made))
            # A draft model that reads a prompt takes its time once, not each pass.
            around = min(around, LEAP * max(self._around, self.draft_seconds("")))
            self._around += (1 - DRAFT_MEMORY) * (around - self._around)

    def learn_draft(self, before: str, seconds: float) -> None:
        """A guess was made, after one of this source; "" for the first of a pass."""
        old = self._draft.get(before, seconds)
        self._draft[before] = old + (1 - DRAFT_MEMORY) * (seconds - old)

    def pass_seconds(self, rows: int) -> float:
        """Of a pass of so many rows, waiting included."""
        return self.compute_seconds(rows) + self.trips(rows) * self.trip_seconds(rows)

    def compute_seconds(self, rows: int) -> float:
        if rows == 1 and self._alone.count:
            return self._alone.mean
        return self._compute.at(max(rows, self._least_rows))

    def trips(self, rows: int) -> float:
        """Waits that a pass of so many rows has."""
        return self._trips.at(_touched(rows))

    def trip_seconds(self, rows: int) -> float:
        """Of one wait in such a pass."""
        return self._trip.at(rows)

    def draft_seconds(self, before: str) -> float:
        """Of the guess that follows one of this source; "" for the first of a pass."""
        return self._draft.get(before, self._draft.get("", 0.0))

    def around_seconds(self) -> float:
        """Of guessing in a pass, beyond those of the guesses."""
        return self._around


def _touched(rows: int) -> float:
    return float(1 - LEFT_ALONE ** (rows - 1))
