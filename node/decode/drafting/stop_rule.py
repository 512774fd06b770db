"""Whether to guess before a pass, whether to guess on, and how many guesses to verify. Pure.

A pass with k guesses takes the guessing and a pass of 1 + k rows, and yields 1 + p1 + p1 p2 + ... tokens,
p being the chance of each guess (acceptance.py), seconds and trips from pass_costs.py.

1. A token is worth what one costs at present: the smaller of what plain passes and passes with guesses take
   for it. Everything is decided by that price, which makes tokens a second as many as they can be (a ratio is
   maximised by pricing its denominator).
2. One more guess is made if it and those likely to follow it bring more than they cost: their making, their
   rows in the pass, and the layers that these rows newly touch. Guesses not yet made are taken to be halfway
   between the usual ones and those just made.
3. As many guesses are verified as bring most. What they took is spent by then.
4. Neither way is believed for good. What passes took is compared with what was expected of their kind, and
   the expectation corrected; and the other way is tried now and then, paid from a budget that is a share of
   all time. So a model of costs that is wrong costs little.
5. Waiting enters that comparison as trips at their present length: a network that changes changes the price,
   not the judgement of guessing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.decode.drafting.acceptance import Acceptance
from node.decode.drafting.draft import Draft
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.rule import PassOutcome

FIRST_CHANCE = 0.5
FIRST_GUESSES = 4
"""How far a first pass guesses, which knows no cost yet: while all of them are more likely right than not."""

USUAL_CHANCE = 0.6
"""Chance of a guess before any was seen: look-up tables reach that."""

CHANCE_MEMORY = 0.95
"""What each pass leaves of what guesses before it had for chances: twenty passes count."""

WAY_MEMORY = 0.95
"""The same of the comparison of what passes of a kind took with what was expected."""

WAY_PRIOR = 4.0
"""Passes of which it is taken that they went as expected, at the beginning."""

MOST_CORRECTION = 4.0
"""Factor by which an expectation is corrected at most."""

TRY_SHARE = 0.01
"""Share of time that may be lost by trying the other way."""

TRY_PASSES = 6
"""Passes at least between two tries: knowing is worth something even where both ways seem equal."""

TRY_SAVED = 2.0
"""Plain passes that may be saved up for tries. A guess that takes longer than that cannot pay."""


class _Way:
    """Passes of one kind (plain, with guesses): what they took against what was expected."""

    def __init__(self) -> None:
        self._spent = self._expected = 0.0
        self.tried = False
        self.since = 0  # passes of the other kind since the last of this one

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
    """

    def __init__(self, most_rows: int, acceptance: Acceptance, costs: PassCosts) -> None:
        self._most = most_rows - 1
        self._acceptance = acceptance
        self._costs = costs
        self._usual: list[tuple[float, str]] = []  # chance and source of guesses, by depth
        self._plain, self._guessed = _Way(), _Way()
        self._budget = 0.0
        self._price = 0.0  # seconds that a token is worth
        # Of the pass under way:
        self._guessing = self._trying = False
        self._chances: list[float] = []  # of the guesses made so far

    # --- before the pass ---

    def begin(self) -> bool:
        self._reset()
        if self._most < 1:
            return False
        if not (self._costs.known and self._guessed.tried):
            self._guessing = self._trying = True
        plain, guessed = self._plain_price(), self._guessed_price()
        self._price = min(plain, guessed)
        if not self._guessing:
            self._guessing = guessed < plain
            if self._is_due(plain, guessed):
                self._guessing = self._trying = not self._guessing
        return self._guessing

    def wants(self, drafts: Sequence[Draft]) -> bool:
        self._see(drafts)
        made, chance = len(drafts), math.prod(self._chances)
        if made >= self._most:
            return False
        if not self._costs.known:
            return made < FIRST_GUESSES and chance > FIRST_CHANCE
        like_these = chance ** (1 / made) if made else self._usual_at(0)[0]
        before = drafts[-1].source if drafts else ""
        without = self._costs.pass_seconds(1 + made)
        gain = making = 0.0
        for depth in range(made, self._most):
            chance *= (self._usual_at(depth)[0] + like_these) / 2
            gain += chance * self._price
            making += self._costs.draft_seconds(before)
            if gain > making + self._costs.pass_seconds(2 + depth) - without:
                return True
        return False

    def keep(self, drafts: Sequence[Draft]) -> int:
        self._see(drafts)
        if not self._costs.known:
            return min(len(drafts), self._most)
        without = self._costs.pass_seconds(1)
        best = gain = 0.0
        kept, chance = 0, 1.0
        for depth in range(min(len(drafts), self._most)):
            chance *= self._chances[depth]
            gain += chance * self._price
            net = gain - (self._costs.pass_seconds(2 + depth) - without)
            if net >= best:
                best, kept = net, depth + 1
        # A try that verifies nothing would teach nothing.
        return max(kept, 1) if self._trying and drafts else kept

    def _is_due(self, plain: float, guessed: float) -> bool:
        """Whether to try the way that seems worse; if so, it is paid."""
        if self._guessing:
            way, loss = self._plain, plain - guessed
            if plain / way.correction > MOST_CORRECTION * guessed:
                return False  # whatever it showed, guessing would go on
            if not way.tried:
                return True
        else:
            way, costs = self._guessed, self._costs
            took = costs.around_seconds() + costs.draft_seconds("") + costs.pass_seconds(2)
            loss = took - (1 + self._usual_at(0)[0]) * plain
        loss = max(0.0, loss)
        if way.since < TRY_PASSES or loss > self._budget:
            return False
        self._budget -= loss
        return True

    # --- after it ---

    def learn(self, outcome: PassOutcome) -> None:
        self._see(outcome.made)
        # After passes without guesses, those seen before them say less.
        fresh = 1 - CHANCE_MEMORY ** (self._guessed.since + 1)
        for depth, (draft, chance) in enumerate(zip(outcome.made, self._chances, strict=True)):
            usual = self._usual[depth][0] if depth < len(self._usual) else chance
            self._usual[depth : depth + 1] = [(usual + fresh * (chance - usual), draft.source)]
        for depth, draft in enumerate(outcome.made[: min(outcome.kept, outcome.accepted + 1)]):
            self._acceptance.learn(draft, depth, depth < outcome.accepted)
        self._costs.learn(outcome)

        waited = outcome.trips * self._costs.trip_seconds(outcome.rows)
        seconds = outcome.draft_seconds + max(0.0, outcome.pass_seconds - outcome.waited) + waited
        alone = self._costs.pass_seconds(1)
        way, other = (self._guessed, self._plain) if self._guessing else (self._plain, self._guessed)
        way.add(seconds, (outcome.accepted + 1) * (self._best_guessing() if self._guessing else alone))
        way.since, other.since = 0, other.since + 1
        self._budget = min(self._budget + TRY_SHARE * seconds, TRY_SAVED * alone)
        self._reset()

    def _reset(self) -> None:
        self._guessing = self._trying = False
        self._chances.clear()

    def _see(self, drafts: Sequence[Draft]) -> None:
        """Note chance and seconds of those guesses of this pass that are new."""
        for depth in range(len(self._chances), len(drafts)):
            draft = drafts[depth]
            self._chances.append(self._acceptance.estimate(draft, depth))
            self._costs.learn_draft(drafts[depth - 1].source if depth else "", draft.seconds)

    # --- seconds a token ---

    def _plain_price(self) -> float:
        return self._costs.pass_seconds(1) * self._plain.correction

    def _guessed_price(self) -> float:
        return self._best_guessing() * self._guessed.correction

    def _best_guessing(self) -> float:
        """With the best number of usual guesses."""
        costs, before = self._costs, ""
        making, tokens, chance, best = costs.around_seconds(), 1.0, 1.0, math.inf
        for depth in range(self._most):
            usual, source = self._usual_at(depth)
            chance *= usual
            tokens += chance
            making += costs.draft_seconds(before)
            before = source
            best = min(best, (making + costs.pass_seconds(2 + depth)) / tokens)
        return best

    def _usual_at(self, depth: int) -> tuple[float, str]:
        """Usual chance of a guess with so many before it, and who makes it."""
        if not self._usual:
            return USUAL_CHANCE, ""
        return self._usual[min(depth, len(self._usual) - 1)]
