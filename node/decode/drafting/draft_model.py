"""Guessing by a small model of its own: a GGUF with the same vocabulary, whole here, in plain llama.cpp."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path

from node.decode.drafting.draft import Draft
from node.decode.drafting.self_draft import probability_of
from node.decode.drafting.shared_prefix import shared_prefix
from node.decode.drafting.vocabulary import difference
from node.decode.exactness import MOST_ROWS, can_rewind
from node.engine.context import DEFAULT_UBATCH, Context, Row
from node.engine.library import EngineError, Library
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler

KEPT_SHARE = 0.5
"""Share of the context that the end of a longer text fills anew when it is full: half of it must be computed
again, once in as many tokens as the other half holds."""


class DraftModel:
    """A `Drafter` on a model file. Its cache keeps what it guessed: what comes true is not computed again.

    Args:
        like: the model it guesses for; its vocabulary must be the same.
        n_ctx: tokens of its own cache, at most those it was trained with. Of a longer text it reads the end.

    Raises:
        EngineError: llama.cpp cannot load it, its vocabulary differs, or it cannot take tokens back.
    """

    name = "model"

    def __init__(
        self, library: Library, path: Path, like: LlamaModel, *, n_ctx: int, threads: int = 1
    ) -> None:
        self._model = LlamaModel(library, [path])
        try:
            if reason := _unfit(self._model, like):
                raise EngineError(f"{path}: cannot guess for {like.paths[0].name}: {reason}")
            self._context = Context(
                self._model,
                n_ctx=min(n_ctx, self._model.n_ctx_train or n_ctx),
                n_ubatch=DEFAULT_UBATCH,
                threads=threads,
            )
            if self._context.is_encoder:
                self._context.close()
                raise EngineError(f"{path}: cannot guess, an encoder has no next token")
        except BaseException:
            self._model.close()
            raise
        self._cached: list[int] = []  # tokens in the cache
        self._start = 0  # place in the text of the first of them

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        """Guesses until the context is full; the seconds of the first include reading the last tokens."""
        context, twin = self._context, sampler.clone()
        try:
            row, begun = self._read(tokens, limit)
            for count in range(1, limit + 1):
                token = twin.sample(context, row)
                probability = probability_of(token, context.outputs([row])[0], sampler.temperature)
                yield Draft(token, probability, source=self.name, seconds=time.perf_counter() - begun)
                begun = time.perf_counter()
                if count == limit or len(self._cached) == context.n_ctx:
                    return
                row = self._compute([token])
        finally:
            twin.close()

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def _read(self, tokens: Sequence[int], limit: int) -> tuple[int, float]:
        """Bring the cache up to the end of the text.

        Returns:
            The row of its last token, and when the last few tokens were begun: reading a prompt is not what a
            guess takes.
        """
        n_ctx = self._context.n_ctx
        kept = max(1, int(n_ctx * KEPT_SHARE))
        if len(tokens) < self._start + kept:  # another text, or taken back to where more of it fits
            self._start = 0
        if len(tokens) - self._start + min(limit, n_ctx - kept) > n_ctx:
            self._start = max(0, len(tokens) - kept)
        text = list(tokens[self._start :])
        common = min(shared_prefix(self._cached, text), len(text) - 1)  # the last token's output is wanted
        if not self._context.remove(0, common):
            raise EngineError(
                f"{self._model.paths[0]}: llama.cpp does not take back what was guessed; "
                "set backbone.draft_model to another model"
            )
        del self._cached[common:]
        few = max(common, len(text) - min(MOST_ROWS, self._context.n_ubatch))
        for begin in range(common, few, self._context.n_ubatch):
            self._compute(text[begin : min(begin + self._context.n_ubatch, few)])
        begun = time.perf_counter()
        return self._compute(text[few:]), begun

    def _compute(self, tokens: list[int]) -> int:
        """One pass over more tokens; returns the row of the last, whose output is there."""
        start, last = len(self._cached), len(tokens) - 1
        try:
            self._context.compute([Row(token, start + i, 0, i == last) for i, token in enumerate(tokens)])
        except BaseException:
            self._context.remove(0, start)
            raise
        self._cached += tokens
        return last


def _unfit(model: LlamaModel, like: LlamaModel) -> str:
    """Why a model cannot guess for another, and what to do; "" if it can."""
    if not can_rewind(model):
        return (
            "a recurrent or hybrid model does not take tokens back; set backbone.draft_model to another model"
        )
    if differs := difference(model, like):
        return f"{differs}; set backbone.draft_model to a model with the same tokenizer"
    return ""
