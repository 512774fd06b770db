"""Whether to guess before a pass, whether to guess on, and how many guesses to verify. Pure.

A pass with k guesses takes the guessing and a pass of 1 + k rows, and yields 1 + p1 + p1 p2 + ... tokens, p being the
chance of each guess (acceptance.py), seconds and trips from pass_costs.py.

1. A token is worth what one costs at present: the smaller of what plain passes and passes with guesses take for
   it. Everything is decided by that price, which makes tokens a second as many as they can be (a ratio is
   maximised by pricing its denominator).
2. One more guess is made if it and those likely to follow it, at their usual chances, bring more than they cost:
   their making, their rows in the pass, and the layers that these rows newly touch.
3. As many guesses are verified as bring most. What a guess took is spent by then.
4. Neither way is believed for good. What passes took is compared with what was expected of their kind, and
   the expectation corrected; and the other way is tried now and then, paid from a budget that is a
   share of all time. So a model of costs that is wrong costs little.
5. Time spent waiting enters the comparison as trips at their present length: a network that changes changes the
   price, not the judgement of guessing.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.decode.drafting.acceptance import Acceptance
from node.decode.drafting.draft import Draft
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.rule import PassOutcome
from node.decode.exactness import LEAST_ROWS

USUAL_CHANCE = 0.6
"""Chance of a guess before any was seen: look-up tables reach that."""

FIRST_CHANCE = 0.5
FIRST_GUESSES = 4
"""How far a first pass guesses, which knows no cost yet: while all of them are more likely right than not."""

CHANCE_MEMORY = 0.95
"""What each pass leaves of what the guesses before it had for chances."""

WAY_MEMORY = 0.95
"""What each pass leaves of the comparison of passes of its kind with what was expected: twenty passes count."""

WAY_PRIOR = 4.0
"""Passes of which it is taken that they went as expected, at the beginning."""

MOST_CORRECTION = 2.0
"""Factor by which an expectation is corrected at most."""

PROBE_SHARE = 0.02
"""Share of time that may be lost by trying the other way."""

PROBE_PASSES = 6
"""Passes at least between two such tries: to know is worth something, but not a try each time."""

PROBE_SAVED = 50.0
"""Passes whose share may be saved up: rare expensive tries stay possible."""


class _Way:
    """Passes of one kind (plain, with guesses): what they took against what was expected."""

    def __init__(self) -> None:
        self._spent = self._expected = 0.0
        self.since = 0  # passes since the last of this kind
        self.tried = False

    def add(self, seconds: float, expected: float) -> None:
        if not self.tried:
            self._spent = self._expected = WAY_PRIOR * expected
        self._spent = self._spent * WAY_MEMORY + seconds
        self._expected = self._expected * WAY_MEMORY + expected
        self.tried = True

    @property
    def correction(self) -> float:
        if not self._expected:
            return 1.0
        return max(1 / MOST_CORRECTION, min(MOST_CORRECTION, self._spent / self._expected))


class StopRule:
    """A `Rule` that guesses as far as it pays. Each session has its own.

    Args:
        most_rows: rows of a pass at most.
        acceptance, costs: what is known already; the sessions of a backbone may share them.
        least_rows: rows that a pass computes at least, where no `costs` are given.
    """

    def __init__(
        self,
        most_rows: int,
        acceptance: Acceptance,
        costs: PassCosts | None = None,
        *,
        least_rows: int = LEAST_ROWS,
    ) -> None:
        self._most = most_rows - 1
        self._acceptance = acceptance
        self._costs = costs or PassCosts(least_rows)
        self._chances: list[float] = []  # usual ones, by depth
        self._sources: list[str] = []  # who guessed last, by depth
        self._seen = 0  # guesses of this pass whose seconds are counted
        self._plain, self._guessed = _Way(), _Way()
        self._budget = 0.0
        self._guessing = self._probing = False
        self._price = 0.0

    # --- before the pass ---

    def begin(self) -> bool:
        self._guessing = self._probing = False
        self._seen = 0
        if self._most < 1:
            return False
        if not self._costs.known:
            self._guessing = self._probing = True
            return True
        plain, guessed = self._plain_price(), self._guessed_price()
        self._price = min(plain, guessed)
        self._guessing = guessed < plain
        if not self._guessed.tried:
            self._guessing = self._probing = True
        elif self._due(plain, guessed):
            self._guessing = self._probing = not self._guessing
        return self._guessing

    def _due(self, plain: float, guessed: float) -> bool:
        """Whether to try the other way; if so, it is paid."""
        if self._guessing:
            way, loss = self._plain, plain - guessed
            if plain / way.correction > MOST_CORRECTION * guessed:
                return False  # whatever it showed, guesses would go on
            if not way.tried:
                return True
        else:
            way, took = self._guessed, self._costs.around_seconds() + self._costs.draft_seconds("")
            loss = took + self._costs.pass_seconds(2) - (1 + self._usual(0)) * plain
        loss = max(0.0, loss)
        if way.since < PROBE_PASSES or loss > self._budget:
            return False
        self._budget -= loss
        return True

    def wants(self, drafts: Sequence[Draft]) -> bool:
        self._see(drafts)
        made = len(drafts)
        if made >= self._most:
            return False
        chance = self._of_all(drafts)
        if not self._costs.known:
            return made < FIRST_GUESSES and chance > FIRST_CHANCE
        before = drafts[-1].source if drafts else ""
        making, gain = 0.0, 0.0
        here = self._costs.pass_seconds(1 + made)
        like_these = chance ** (1 / made) if made else self._usual(0)
        for depth in range(made, self._most):
            chance *= (self._usual(depth) + like_these) / 2
            making += self._costs.draft_seconds(before)
            gain += chance * self._price
            if gain > making + self._costs.pass_seconds(2 + depth) - here:
                return True
        return False

    def keep(self, drafts: Sequence[Draft]) -> int:
        if not self._costs.known:
            return len(drafts)
        best, kept, gain, chance = 0.0, 0, 0.0, 1.0
        alone = self._costs.pass_seconds(1)
        for depth, draft in enumerate(drafts[: self._most]):
            chance *= self._acceptance.estimate(draft, depth)
            gain += chance * self._price
            net = gain - (self._costs.pass_seconds(2 + depth) - alone)
            if net >= best:
                best, kept = net, depth + 1
        # A try that verifies nothing would teach nothing.
        return max(kept, 1) if self._probing and drafts else kept

    # --- after it ---

    def learn(self, outcome: PassOutcome) -> None:
        self._see(outcome.made)
        stale = 1 - CHANCE_MEMORY ** (self._guessed.since + 1)
        for depth, draft in enumerate(outcome.made):
            chance = self._acceptance.estimate(draft, depth)
            if depth >= len(self._chances):
                self._chances.append(chance)
                self._sources.append(draft.source)
            self._sources[depth] = draft.source
            self._chances[depth] += stale * (chance - self._chances[depth])
        for depth, draft in enumerate(outcome.made[: min(outcome.kept, outcome.accepted + 1)]):
            self._acceptance.learn(draft, depth, depth < outcome.accepted)
        self._costs.learn(outcome)
        way, other = (self._guessed, self._plain) if self._guessing else (self._plain, self._guessed)
        tokens = outcome.accepted + 1
        waited = outcome.trips * self._costs.trip_seconds(outcome.rows)
        seconds = outcome.draft_seconds + max(0.0, outcome.pass_seconds - outcome.waited) + waited
        expected = self._best_guessing() if self._guessing else self._costs.pass_seconds(1)
        way.add(seconds, tokens * expected)
        way.since, other.since = 0, other.since + 1
        self._budget = min(
            self._budget + PROBE_SHARE * seconds, PROBE_SHARE * PROBE_SAVED * self._costs.pass_seconds(1)
        )

    # --- prices: seconds a token ---

    def _plain_price(self) -> float:
        return self._costs.pass_seconds(1) * self._plain.correction

    def _guessed_price(self) -> float:
        return self._best_guessing() * self._guessed.correction

    def _best_guessing(self) -> float:
        """Of the best number of guesses at their usual chances."""
        costs = self._costs
        making, tokens, chance = costs.around_seconds(), 1.0, 1.0
        best = float("inf")
        for depth in range(self._most):
            making += costs.draft_seconds(self._usual_source(depth - 1))
            chance *= self._usual(depth)
            tokens += chance
            best = min(best, (making + costs.pass_seconds(2 + depth)) / tokens)
        return best

    def _usual(self, depth: int) -> float:
        """Usual chance of a guess with so many before it."""
        if not self._chances:
            return USUAL_CHANCE
        return self._chances[min(depth, len(self._chances) - 1)]

    def _usual_source(self, depth: int) -> str:
        """Who makes it; "" before the first."""
        return self._sources[min(depth, len(self._sources) - 1)] if self._sources and depth >= 0 else ""

    def _see(self, drafts: Sequence[Draft]) -> None:
        for depth in range(self._seen, len(drafts)):
            self._costs.learn_draft(drafts[depth - 1].source if depth else "", drafts[depth].seconds)
        self._seen = len(drafts)

    def _of_all(self, drafts: Sequence[Draft]) -> float:
        chance = 1.0
        for depth, draft in enumerate(drafts):
            chance *= self._acceptance.estimate(draft, depth)
        return chance
