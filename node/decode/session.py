"""A session: one sequence of the backbone, from prompt to generated tokens, by guesses where they pay.

Tokens are those of plain decoding, whoever guessed (node.decode.guessed_pass).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from node.decode.backbone import Backbone, SequenceLost
from node.decode.drafting.guessing import Guessing
from node.decode.guessed_pass import GuessedPass
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
        is_over: asked after each pass; once it is, `next_tokens` may give none and `generate` ends.

    Attributes:
        is_over: it was ended by that.
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
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backbone = backbone
        self._sequence = sequence
        self._pass = GuessedPass(backbone, guessing, exact=exact, spent=spent)
        self._exact = exact
        self._on_pass = on_pass
        self._may_end = is_over
        self.is_over = False
        self.tokens: list[int] = []
        self._computed = 0  # tokens whose keys and values are in the cache

    def close(self) -> None:
        """Free what guessing holds."""
        self._pass.close()

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
                if self._is_over_now():
                    return []
                continue
            token = sampler.sample(self._backbone.context, len(rows) - 1)
            self._on_pass(PassDone(len(rows), tokens=1, seconds=seconds))
            return [token]

    def _decode(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> list[int]:
        """One pass over the last token and the guesses after it."""
        try:
            found = self._pass.run(self.tokens, self._sequence, sampler, limit, is_end=is_end)
        except SequenceLost:
            self._computed = 0
            raise
        self.tokens += found.tokens[:-1]
        self._computed = len(self.tokens)
        self._on_pass(found.done)
        return found.tokens

    def _compute(self, rows: list[Row]) -> float:
        """One pass; seconds it took."""
        begun = time.perf_counter()
        try:
            (self._backbone.compute_in_company if self._exact else self._backbone.compute)(rows)
        except SequenceLost:
            self._computed = 0
            raise
        return time.perf_counter() - begun

    def _is_over_now(self) -> bool:
        self.is_over = self.is_over or self._may_end()
        return self.is_over

    def generate(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> Iterator[int]:
        """Tokens one by one, until one ends the text, `limit` of them, the context is full or it is over."""
        left = limit
        while left > 0:
            found = self.next_tokens(sampler, left, is_end)
            if not found:
                return
            if is_end(found[-1]):
                yield from found[:-1]
                return
            yield from found
            left -= len(found)
            if len(self.tokens) >= self._backbone.n_ctx or (left and self._is_over_now()):
                return
            self.append([found[-1]])
