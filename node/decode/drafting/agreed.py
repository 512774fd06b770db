"""Two guessers as one: a model's guesses, and look-up's continuation for free where both agree.

1. The model guesses first. If look-up has the same first token, its copy is taken for the rest: two
   independent witnesses, and it costs nothing. If not, the model goes on alone.
2. A copy that experience holds sure is taken without asking the model.
3. Where the model has to leave out nearly all of the experts, it is not asked and look-up guesses alone; now
   and then it is asked again, as what is at home may change.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from node.decode.drafting.draft import Draft, Drafter
from node.engine.sampler import Sampler

LITTLE_AT_HOME = 0.85
"""Share of the router's weight that is missing, from which on the model is not asked. With the hottest
quarter of the experts at home half is missing, and its guesses are still worth more than look-up's."""

SURE = 0.85
"""Chance of a copy's first token from which on the model is not asked: it is seldom surer of its own."""

ASK_AGAIN = 64
"""Passes after which a model that was not asked is asked again: one lost guess among them."""

MISSING_MEMORY = 0.9
"""What each first guess leaves of what was missing before it."""


class AgreedDrafter:
    """A `Drafter` of two.

    Args:
        model: guesses by computing (self-draft, draft model).
        look_up: guesses for nothing (n-grams).
    """

    def __init__(self, model: Drafter, look_up: Drafter) -> None:
        self._model = model
        self._look_up = look_up
        self.name = f"{model.name}+{look_up.name}"
        self._missing: float | None = None
        self._unasked = 0

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        with closing(self._look_up.drafts(tokens, sampler, limit)) as copied:
            copy = next(copied, None)
            if (copy is None or copy.probability < SURE) and self._ask():
                with closing(self._model.drafts(tokens, sampler, limit)) as guessed:
                    first = next(guessed, None)
                    if first is not None:
                        self._saw(first.missing_mean)
                        yield first
                        if copy is None or copy.token != first.token:
                            yield from guessed
                            return
                        copy = None
            if copy is not None:
                yield copy
            yield from copied

    def close(self) -> None:
        self._model.close()
        self._look_up.close()

    def _ask(self) -> bool:
        if self._missing is None or self._missing < LITTLE_AT_HOME:
            return True
        self._unasked += 1
        if self._unasked < ASK_AGAIN:
            return False
        self._unasked = 0
        return True

    def _saw(self, missing: float) -> None:
        if self._missing is None or self._missing >= LITTLE_AT_HOME:
            self._missing = missing
        self._missing += (1 - MISSING_MEMORY) * (missing - self._missing)
