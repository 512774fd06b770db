"""What plain llama.cpp answers with the whole file here: what a swarm's answers must be equal to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.decode.exactness import MOST_ROWS
from node.engine.context import Context, Row
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.logprobs import Logprob, logprob_of
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer

GREEDY = SamplingSettings()


@dataclass(frozen=True)
class PlainAnswer:
    """An answer; `ended`: the model ended it."""

    tokens: list[int]
    logprobs: list[Logprob]
    text: str
    ended: bool


class PlainAnswers:
    """A whole model in stock llama.cpp, nothing hooked. Keeps the rules of node.decode.exactness."""

    def __init__(self, library: Library, path: Path, *, n_ctx: int) -> None:
        self.model = LlamaModel(library, [path])
        self.context = Context(self.model, n_ctx=n_ctx + MOST_ROWS)
        self.tokenizer = Tokenizer(self.model)
        self.n_ctx = n_ctx

    def answer(
        self, prompt: str | list[int], limit: int, sampling: SamplingSettings = GREEDY, *, top: int = 0
    ) -> PlainAnswer:
        """One token a pass, each with company."""
        known = self.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt
        context, found, logprobs = self.context, list[int](), list[Logprob]()
        sampler = Sampler(self.model.library, sampling, self.model)
        sampler.accept_prompt(known)
        context.clear()
        context.compute([Row(token, i, wanted=i == len(known) - 1) for i, token in enumerate(known)])
        row, ended = len(known) - 1, False
        while len(found) < limit:
            token = sampler.sample(context, row)
            if self.tokenizer.is_end(token):
                ended = True
                break
            logprobs.append(logprob_of(context.outputs([row])[0], token, top))
            found.append(token)
            position, row = len(known) + len(found) - 1, 0
            if position >= self.n_ctx:
                break
            context.compute([Row(token, position), Row(token, position + 1)])
            assert context.remove(0, position + 1)
        sampler.close()
        text = b"".join(map(self.tokenizer.piece, found)).decode(errors="replace")
        return PlainAnswer(found, logprobs, text, ended)

    def close(self) -> None:
        self.context.close()
        self.model.close()


@contextmanager
def plain_answers(library: Library, path: Path, *, n_ctx: int) -> Iterator[PlainAnswers]:
    """For a `with`."""
    plain = PlainAnswers(library, path, n_ctx=n_ctx)
    try:
        yield plain
    finally:
        plain.close()
