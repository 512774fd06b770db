"""What plain llama.cpp writes after a prompt, with the whole file here: what answers are compared with."""

from __future__ import annotations

from pathlib import Path

from node.decode.exactness import LEAST_ROWS, can_rewind
from node.engine.context import Context, Row
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import TextStream, Tokenizer


class PlainText:
    """A whole model in stock llama.cpp; a context manager.

    Decoding keeps to node.decode.exactness: a single row has company, which leaves the cache again.
    """

    def __init__(self, library: Library, model: Path, *, n_ctx: int, n_ubatch: int = 512) -> None:
        self._model = LlamaModel(library, [model])
        self._context = Context(self._model, n_ctx=n_ctx + LEAST_ROWS, n_ubatch=n_ubatch)
        self._n_ubatch = n_ubatch
        self._can_rewind = can_rewind(self._model)
        self.tokenizer = Tokenizer(self._model)

    def tokens(self, prompt: str, limit: int, sampling: SamplingSettings) -> list[int]:
        """The tokens chosen after a prompt, until one ends the text."""
        context, known = self._context, self.tokenizer.encode(prompt)
        context.clear()
        sampler = Sampler(self._model.library, sampling)
        try:
            for start in range(0, len(known), self._n_ubatch):
                piece = known[start : start + self._n_ubatch]
                context.compute([Row(token, start + i) for i, token in enumerate(piece)])
            found = [sampler.sample(context, len(piece) - 1)]
            while len(found) < limit and not self.tokenizer.is_end(found[-1]):
                position = len(known) + len(found) - 1
                rows = [Row(found[-1], position)]
                if self._can_rewind:
                    rows.append(Row(found[-1], position + 1))
                context.compute(rows)
                if self._can_rewind:
                    context.remove(0, position + 1)
                found.append(sampler.sample(context, 0))
        finally:
            sampler.close()
        return found[:-1] if self.tokenizer.is_end(found[-1]) else found

    def text(self, tokens: list[int]) -> str:
        """As a stream of pieces gives it."""
        stream = TextStream(self.tokenizer)
        return stream.feed(tokens) + stream.finish()

    def __enter__(self) -> PlainText:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._model.close()
