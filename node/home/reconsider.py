"""When to have other cells at home than now: a pure decision with hysteresis.

1. Only for trips that fall by LEAST_GAIN, and not before the present set is LEAST_AGE old: each change costs
   reading or fetching cells, and the figures it rests on breathe. Which layers are whole is for the plan to
   say; what is counted in use moves the hot cells of the others (node.home.choosing).
2. A far change is made in steps of at most MOST_CHANGED of the budget, or a layer: whole layers first, for
   they are what saves trips. Steps follow each other until the target is reached, or has lost its advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.home.choosing import LEAST_GAIN, Prediction, choose, moved
from node.home.home_set import HomeSet, Shapes
from node.home.worth import chance_of, tokens_per_pass

LEAST_AGE = 600.0
"""Seconds that a home set stays at least: some dozens of answers, and far more than fetching a layer
takes."""

STEP_SECONDS = 60.0
"""Between the steps of one change."""

MOST_CHANGED = 0.25
"""Of the budget that may come at once, or one layer if that is more: what is on its way helps nobody yet."""

LEAST_TOKENS = 5_000
"""Tokens counted in use before anything is changed: some dozens of answers. A few may all be of one thing."""


LEAST_PASSES = 500
"""Passes with guesses in use before they are held against the plan."""

LEAST_OF_EXPECTED = 0.7
"""Share of the right guesses that the plan expects; with fewer the text is of another kind."""


@dataclass(frozen=True)
class Proposal:
    """A better home set.

    Attributes:
        target: the best one; home: the step towards it, what to have at home next.
        before, after: trips per layer and token, now and with the target.
    """

    target: HomeSet
    home: HomeSet
    before: float
    after: float


class Reconsideration:
    """Looks again now and then.

    Args:
        now: seconds on any clock, as in `look`.
    """

    def __init__(self, now: float) -> None:
        self._since = now  # the last change, or the last look that found none worth making
        self._stepped = now
        self._target: HomeSet | None = None

    def changed(self, now: float) -> None:
        """Something else changed what is at home (a new plan, cells that came)."""
        self._since = now
        self._target = None

    def look(
        self,
        now: float,
        current: HomeSet,
        prediction: Prediction,
        budget: int,
        free: HomeSet,
        tokens: float,
    ) -> Proposal | None:
        """The next step, if one is worth its cost; it counts as made.

        Args:
            current: what is at home now, `free` (what is there anyway) included.
            budget: bytes beyond `free`.
            tokens: counted in use.
        """
        if tokens < LEAST_TOKENS:
            return None
        if self._target is None and now - self._since < LEAST_AGE:
            return None
        if self._target is not None and now - self._stepped < STEP_SECONDS:
            return None
        shapes = prediction.estimator.shapes
        target = self._target or moved(prediction, choose(prediction, budget, free), free)
        alike = current.whole_layers(shapes) == target.whole_layers(shapes)
        trips = prediction.trips_now if alike else prediction.trips
        before, after = trips(current), trips(target)
        if target == current or after > before * (1 - LEAST_GAIN):
            self._target, self._since = None, now
            return None
        home = step(current, target, shapes, budget, free, prediction)
        self._target = None if home == target else target
        self._since = self._stepped = now
        return Proposal(target, home, before, after)


def step(
    current: HomeSet, target: HomeSet, shapes: Shapes, budget: int, free: HomeSet, prediction: Prediction
) -> HomeSet:
    """As far towards a target as may be gone at once; never over the budget."""
    comes, goes = target - current, current - target
    most = max(MOST_CHANGED * budget, max(shape.n_bytes for shape in shapes.values()))
    whole = target.whole_layers(shapes)
    layers = sorted((layer for layer, _ in comes.bits), key=lambda layer: (layer not in whole, layer))
    home, changed = current, 0
    for layer in layers:
        part = HomeSet.of_bits({layer: comes.held(layer)})
        cost = part.n_bytes(shapes)
        if changed and changed + cost > most:
            break
        home |= part
        changed += cost
    else:
        return target
    # Room for it: the coldest of what goes anyway.
    heat = (prediction.now or prediction.estimator).heat
    cells = sorted(
        (
            (float(heat.shares(layer)[expert]), layer, expert)
            for layer, experts in goes.experts().items()
            for expert in experts
        ),
    )
    for _, layer, expert in cells:
        if (home - free).n_bytes(shapes) <= budget:
            break
        home -= HomeSet.of({layer: [expert]})
    return home


def fall_short(expected_tokens: float, drafts: int, passes: int, drafted: int, accepted: int) -> float | None:
    """If guesses in use are right far less often than a plan has it: right ones a pass that it expects.

    Args:
        expected_tokens: of a pass, by the plan, with so many guesses.
        passes, drafted, accepted: what was counted; a pass may have had fewer guesses.
    """
    if passes < LEAST_PASSES or not drafted:
        return None
    made = drafted / passes
    chance = chance_of(expected_tokens, drafts)
    low, high = (tokens_per_pass(chance, count) for count in (int(made), int(made) + 1))
    expected = low + (made - int(made)) * (high - low) - 1
    return expected if accepted / passes < LEAST_OF_EXPECTED * expected else None
