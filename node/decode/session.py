"""A session: one sequence of the backbone, from prompt to generated tokens, by guesses where they pay.

A pass may hold guesses after the last known token. Each row is drawn from in turn, as one pass a token would
do, and the first draw that is not the guess ends the pass: its token is kept, the rest leaves the cache. So
the tokens are those of plain decoding, drawn or greedy, whoever guessed (node.decode.exactness says what that
takes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from node.decode.backbone import Backbone, SequenceLost
from node.decode.drafting.draft import Draft
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.rule import PassOutcome
from node.decode.exactness import MOST_ROWS
from node.decode.ledger import PassDone, Spent
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler


class Session:
    """Owns a sequence of a backbone. What was accepted stays; a failed pass can be made again.

    Args:
        guessing: who guesses, and how far; None for one token a pass. Models that cannot go back never guess.
        exact: keep the rules of node.decode.exactness.
        on_pass: told of each pass that succeeded.
        spent: what trips have cost so far; rules learn from it.
    """

    def __init__(
        self,
        backbone: Backbone,
        sequence: int = 0,
        *,
        guessing: Guessing | None = None,
        exact: bool = True,
        on_pass: Callable[[PassDone], None] = lambda done: None,
        spent: Callable[[], Spent] = Spent,
    ) -> None:
        self._backbone = backbone
        self._sequence = sequence
        self._guessing = guessing if backbone.can_rewind else None
        self._exact = exact
        self._most_rows = backbone.most_rows if exact else min(MOST_ROWS, backbone.context.n_ubatch)
        self._on_pass = on_pass
        self._spent = spent
        self.tokens: list[int] = []
        self._computed = 0  # tokens whose keys and values are in the cache

    def close(self) -> None:
        """Free what guessing holds."""
        if self._guessing is not None:
            self._guessing.close()

    def append(self, tokens: list[int]) -> None:
        """Add tokens; they are computed with the next one that is asked for.

        Raises:
            EngineError: they do not fit the context.
        """
        if len(self.tokens) + len(tokens) > self._backbone.n_ctx:
            raise EngineError(
                f"{len(self.tokens) + len(tokens)} tokens do not fit a context of {self._backbone.n_ctx}; "
                f"raise backbone.context or shorten the prompt"
            )
        self.tokens += tokens

    def next_token(self, sampler: Sampler) -> int:
        """Compute what is not computed yet and choose the next token; it is not appended.

        Raises:
            PanalError: a pass failed; calling again continues where it stopped.
        """
        return self.next_tokens(sampler, 1)[0]

    def next_tokens(
        self, sampler: Sampler, limit: int, is_end: Callable[[int], bool] = lambda token: False
    ) -> list[int]:
        """The next token, and those that were guessed right with it.

        All but the last are appended and computed already; the last one is not appended.

        Args:
            limit: tokens at most, at least 1.
            is_end: tokens that end the text; only the last one returned can be one.

        Raises:
            PanalError: a pass failed; calling again continues where it stopped.
        """
        if self._computed >= len(self.tokens):
            raise EngineError(
                "there is nothing to compute: the prompt is empty, or its last token was not appended"
            )
        if self._computed == len(self.tokens) - 1 and self._computed:
            return self._decode(sampler, limit, is_end)
        step = self._backbone.context.n_ubatch
        while True:
            end = min(self._computed + step, len(self.tokens))
            final = end == len(self.tokens)
            rows = [
                Row(self.tokens[i], i, self._sequence, wanted=final and i == end - 1)
                for i in range(self._computed, end)
            ]
            seconds = self._compute(rows)
            self._computed = end
            if not final:
                self._on_pass(PassDone(len(rows), seconds=seconds))
                continue
            token = sampler.sample(self._backbone.context, len(rows) - 1)
            self._on_pass(PassDone(len(rows), tokens=1, seconds=seconds))
            return [token]

    def _decode(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> list[int]:
        """One pass over the last token and the guesses after it."""
        backbone, start = self._backbone, self._computed
        begun = time.perf_counter()
        made, kept = self._guess(sampler, limit, is_end)
        drafting = time.perf_counter() - begun
        guessed = [draft.token for draft in made[:kept]]
        rows = [Row(token, start + i, self._sequence) for i, token in enumerate([self.tokens[-1], *guessed])]
        before = self._spent()
        seconds = self._compute(rows)
        after = self._spent()
        found = [sampler.sample(backbone.context, 0)]
        while len(found) <= len(guessed) and found[-1] == guessed[len(found) - 1]:
            found.append(sampler.sample(backbone.context, len(found)))
        accepted = len(found) - 1
        self.tokens += found[:-1]
        self._computed = start + 1 + accepted
        if accepted < len(guessed):
            self._forget(self._computed)
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
        self._on_pass(
            PassDone(
                len(rows),
                drafted=kept,
                accepted=accepted,
                tokens=len(found),
                decoding=True,
                drafting=drafting,
                seconds=seconds,
            )
        )
        return found

    def _guess(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> tuple[list[Draft], int]:
        """Guesses for what comes next, and how many of them are worth verifying."""
        room = min(limit, self._most_rows, self._backbone.n_ctx - len(self.tokens) + 1) - 1
        if self._guessing is None or room < 1 or not self._guessing.rule.begin():
            return [], 0
        rule, drafts = self._guessing.rule, list[Draft]()
        with closing(self._guessing.drafter.drafts(self.tokens, sampler, room)) as guesses:
            for draft in guesses:
                if is_end(draft.token):
                    break
                drafts.append(draft)
                if len(drafts) == room or not rule.wants(drafts):
                    break
        return drafts, rule.keep(drafts) if drafts else 0

    def _compute(self, rows: list[Row]) -> float:
        """One pass; seconds it took."""
        begun = time.perf_counter()
        try:
            (self._backbone.compute_in_company if self._exact else self._backbone.compute)(rows)
        except SequenceLost:
            self._computed = 0
            raise
        return time.perf_counter() - begun

    def _forget(self, position: int) -> None:
        if not self._backbone.context.remove(self._sequence, position):
            raise EngineError("llama.cpp does not take back what was guessed; set backbone.draft to off")

    def generate(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> Iterator[int]:
        """Tokens one by one, until one ends the text, `limit` of them, or the context is full."""
        left = limit
        while left > 0:
            found = self.next_tokens(sampler, left, is_end)
            if is_end(found[-1]):
                yield from found[:-1]
                return
            yield from found
            left -= len(found)
            if len(self.tokens) >= self._backbone.n_ctx:
                return
            self.append([found[-1]])
