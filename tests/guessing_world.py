"""A world for rules of guessing: guesses that come true by seeded chance, passes with costs in no real time.

What a rule achieves is counted in expectations (a guess counts by its chance, a layer by the chance that it
needs a trip), while the rule sees what happened. So a few hundred tokens tell ways apart that differ by few
per cent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.decode.drafting.draft import Draft
from node.decode.drafting.rule import PassOutcome, Rule
from node.decode.exactness import LEAST_ROWS

JITTER = 0.1
"""Times are off by up to this share."""


@dataclass
class World:
    """Costs in seconds.

    Attributes:
        chance: mean chance of a guess; spread: how much guesses differ in it, 0 for not at all. Guessers say
            it as it is.
        draft: of a guess; base, row: of a pass, and of each row in it; rtt: of a trip.
        layers: for each layer the chance that a row needs a trip there.
    """

    seed: int
    rtt: float
    chance: float
    draft: float
    base: float = 0.010
    row: float = 0.002
    layers: Sequence[float] = (1.0, 1.0, 0.5, 0.0)
    spread: float = 0.0
    most_rows: int = 16
    source: str = "model"
    tokens: float = 0.0
    seconds: float = 0.0
    passes: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def step(self, rule: Rule) -> None:
        """One pass; notes (guesses made, kept, accepted)."""
        made, chances = list[Draft](), list[float]()
        if rule.begin():
            while len(made) < self.most_rows - 1:
                chances.append(self._chance())
                made.append(Draft(5, chances[-1], source=self.source, seconds=self.draft * self._jitter()))
                if not rule.wants(made):
                    break
        kept = rule.keep(made) if made else 0
        accepted = 0
        while accepted < kept and self._rng.random() < chances[accepted]:
            accepted += 1
        asked = [1 - (1 - each) ** (1 + kept) for each in self.layers]
        trips = sum(self._rng.random() < each for each in asked)
        waited = sum(self.rtt * self._jitter() for _ in range(trips))
        computed = self.base + self.row * max(LEAST_ROWS, 1 + kept)
        drafting = sum(draft.seconds for draft in made)
        outcome = PassOutcome(
            tuple(made), kept, accepted, drafting, computed * self._jitter() + waited, waited, trips
        )
        rule.learn(outcome)
        self.passes.append((len(made), kept, accepted))
        self.seconds += len(made) * self.draft + computed + sum(asked) * self.rtt
        right = 1.0
        self.tokens += right
        for chance in chances[:kept]:
            right *= chance
            self.tokens += right

    def run(self, rule: Rule, tokens: int) -> float:
        """Seconds a token over so many."""
        self.tokens = self.seconds = 0.0
        self.passes.clear()
        while self.tokens < tokens:
            self.step(rule)
        return self.seconds / self.tokens

    def fixed(self, guesses: int) -> float:
        """Seconds a token with always so many guesses."""
        tokens = sum(self.chance**depth for depth in range(guesses + 1))
        trips = sum(1 - (1 - each) ** (1 + guesses) for each in self.layers)
        computed = self.base + self.row * max(LEAST_ROWS, 1 + guesses)
        return (guesses * self.draft + computed + trips * self.rtt) / tokens

    def best_fixed(self) -> float:
        """The same with the best number, none included."""
        return min(self.fixed(guesses) for guesses in range(self.most_rows))

    def _chance(self) -> float:
        if not self.spread:
            return self.chance
        return self._rng.betavariate(self.chance / self.spread, (1 - self.chance) / self.spread)

    def _jitter(self) -> float:
        return self._rng.uniform(1 - JITTER, 1 + JITTER)
