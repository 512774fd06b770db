"""A pass over the last known token of a sequence and the guesses after it.

Each row is drawn from in turn, as one pass a token would do, and the first draw that is not the guess ends
the pass: its token is kept, the rest leaves the cache. So the tokens are those of plain decoding, drawn or
greedy, whoever guessed (node.decode.exactness says what that takes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from node.decode.backbone import Backbone
from node.decode.drafting.draft import Draft
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.rule import PassOutcome
from node.decode.exactness import MOST_ROWS
from node.decode.ledger import PassDone, Spent
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler


@dataclass(frozen=True)
class Found:
    """What a pass gave.

    Attributes:
        tokens: the next ones; all but the last are in the cache.
    """

    tokens: list[int]
    done: PassDone


class GuessedPass:
    """Makes such passes on a backbone.

    Args:
        guessing: who guesses, and how far; None for one token a pass. Models that cannot go back never guess.
        exact: keep the rules of node.decode.exactness.
        spent: what trips have cost so far; rules learn from it.
    """

    def __init__(
        self,
        backbone: Backbone,
        guessing: Guessing | None,
        *,
        exact: bool,
        spent: Callable[[], Spent] = Spent,
    ) -> None:
        self._backbone = backbone
        self._guessing = guessing if backbone.can_rewind else None
        self._exact = exact
        self._most_rows = backbone.most_rows if exact else min(MOST_ROWS, backbone.context.n_ubatch)
        self._spent = spent

    def run(
        self,
        tokens: Sequence[int],
        sequence: int,
        sampler: Sampler,
        limit: int,
        *,
        is_end: Callable[[int], bool],
        choose: Callable[[int], int] | None = None,
    ) -> Found:
        """One pass.

        Args:
            tokens: all of the sequence; all but the last are in the cache.
            limit: tokens at most, at least 1.
            is_end: tokens that end the text; only the last one found can be one.
            choose: the token after a row, by the sampler; to look at the row as well.

        Raises:
            PanalError: the pass failed; the cache is as it was, or the sequence lost.
        """
        backbone, start = self._backbone, len(tokens) - 1
        choose = choose or (lambda row: sampler.sample(backbone.context, row))
        begun = time.perf_counter()
        made, kept = self._guess(tokens, sampler, limit, is_end)
        drafting = time.perf_counter() - begun
        guessed = [draft.token for draft in made[:kept]]
        rows = [Row(token, start + i, sequence) for i, token in enumerate([tokens[-1], *guessed])]
        before = self._spent()
        begun = time.perf_counter()
        (backbone.compute_in_company if self._exact else backbone.compute)(rows)
        seconds = time.perf_counter() - begun
        after = self._spent()
        try:
            found = [choose(0)]
            while len(found) <= len(guessed) and found[-1] == guessed[len(found) - 1]:
                found.append(choose(len(found)))
        except BaseException:  # a sampler gave up: the cache is to be as if nothing had been computed
            backbone.context.remove(sequence, start)
            raise
        accepted = len(found) - 1
        if accepted < len(guessed) and not backbone.context.remove(sequence, start + 1 + accepted):
            raise EngineError("llama.cpp does not take back what was guessed; set backbone.draft to off")
        if self._guessing is not None:
            self._guessing.rule.learn(
                PassOutcome(
                    made=tuple(made),
                    kept=kept,
                    accepted=accepted,
                    draft_seconds=drafting,
                    pass_seconds=seconds,
                    waited=after.waited - before.waited,
                    trips=after.trips - before.trips,
                )
            )
        done = PassDone(
            len(rows),
            drafted=kept,
            accepted=accepted,
            tokens=len(found),
            decoding=True,
            drafting=drafting,
            seconds=seconds,
        )
        return Found(found, done)

    def close(self) -> None:
        """Free what guessing holds."""
        if self._guessing is not None:
            self._guessing.close()

    def _guess(
        self, tokens: Sequence[int], sampler: Sampler, limit: int, is_end: Callable[[int], bool]
    ) -> tuple[list[Draft], int]:
        """Guesses for what comes next, and how many of them are worth verifying."""
        room = min(limit, self._most_rows, self._backbone.n_ctx - len(tokens) + 1) - 1
        if self._guessing is None or room < 1 or not self._guessing.rule.begin():
            return [], 0
        rule, drafts = self._guessing.rule, list[Draft]()
        with closing(self._guessing.drafter.drafts(tokens, sampler, room)) as guesses:
            for draft in guesses:
                if is_end(draft.token):
                    break
                drafts.append(draft)
                if len(drafts) == room or not rule.wants(drafts):
                    break
        return drafts, rule.keep(drafts) if drafts else 0
