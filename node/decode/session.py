"""A session: one sequence of the backbone, from prompt to generated tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from node.decode.backbone import Backbone, SequenceLost
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler


class Session:
    """Owns a sequence of a backbone. What was accepted stays; a failed pass can be made again.

    Args:
        on_pass: called with the rows of each pass that succeeded.
    """

    def __init__(
        self, backbone: Backbone, sequence: int = 0, *, on_pass: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._backbone = backbone
        self._sequence = sequence
        self._on_pass = on_pass
        self.tokens: list[int] = []
        self._computed = 0  # tokens whose keys and values are in the cache

    def append(self, tokens: list[int]) -> None:
        """Add tokens; they are computed with the next one that is asked for.

        Raises:
            EngineError: they do not fit the context.
        """
        if len(self.tokens) + len(tokens) > self._backbone.context.n_ctx:
            raise EngineError(
                f"{len(self.tokens) + len(tokens)} tokens do not fit a context of "
                f"{self._backbone.context.n_ctx}; "
                f"raise backbone.context or shorten the prompt"
            )
        self.tokens += tokens

    def next_token(self, sampler: Sampler) -> int:
        """Compute what is not computed yet and choose the next token; it is not appended.

        Raises:
            PanalError: a pass failed; calling again continues where it stopped.
        """
        if self._computed >= len(self.tokens):
            raise EngineError(
                "there is nothing to compute: the prompt is empty, or its last token was not appended"
            )
        step = self._backbone.context.n_ubatch
        last = 0
        while self._computed < len(self.tokens):
            end = min(self._computed + step, len(self.tokens))
            final = end == len(self.tokens)
            rows = [
                Row(self.tokens[i], i, self._sequence, wanted=final and i == end - 1)
                for i in range(self._computed, end)
            ]
            self._compute(rows)
            last = len(rows) - 1
        return sampler.sample(self._backbone.context, last)

    def _compute(self, rows: list[Row]) -> None:
        try:
            self._backbone.compute(rows)
        except SequenceLost:
            self._computed = 0
            raise
        self._computed = rows[-1].position + 1
        self._on_pass(len(rows))

    def generate(self, sampler: Sampler, limit: int, is_end: Callable[[int], bool]) -> Iterator[int]:
        """Tokens one by one, until one ends the text, `limit` of them, or the context is full."""
        for _ in range(limit):
            token = self.next_token(sampler)
            if is_end(token):
                return
            yield token
            if len(self.tokens) >= self._backbone.context.n_ctx:
                return
            self.append([token])
