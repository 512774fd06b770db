"""What is asked of a decoder, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass

from node.engine.library import EngineError
from node.engine.logprobs import Logprob
from node.engine.sampler import SamplingSettings
from routing.errors import LocalError


@dataclass(frozen=True)
class Ask:
    """A prompt to be answered.

    Attributes:
        tokens: of the prompt, at least one.
        limit: tokens chosen at most.
        user: whose turn it is: places and passes are shared out fairly among these.
        top_logprobs: None: no logprobs; 0: of the chosen token; n: of the n likeliest as well.
    """

    tokens: tuple[int, ...]
    limit: int
    sampling: SamplingSettings
    user: str = ""
    top_logprobs: int | None = None

    def check(self, n_ctx: int, n_vocab: int) -> None:
        """Refuse what no pass can be made of.

        Raises:
            EngineError: no tokens, more than the context, one that is none, or none to be chosen.
        """
        if not self.tokens:
            raise EngineError(
                "the prompt is empty, and this model needs at least one token: give it some text"
            )
        if len(self.tokens) > n_ctx:
            raise EngineError(
                f"the prompt has {len(self.tokens)} tokens, and a context holds {n_ctx}; "
                f"shorten the prompt or raise backbone.context"
            )
        if min(self.tokens) < 0 or max(self.tokens) >= n_vocab:
            wrong = next(token for token in self.tokens if not 0 <= token < n_vocab)
            raise EngineError(f"token {wrong} is outside the vocabulary of {n_vocab}")
        if self.limit < 1:
            raise EngineError(f"{self.limit} tokens of answer: at least one has to be asked for")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token of an answer; never one that ends the text."""

    token: int
    logprob: Logprob | None = None


class QueueFull(LocalError):
    """All places are taken, and so is the queue.

    Attributes:
        waiting: how many wait.
        retry_after: seconds after which there may be room, from how long answers took.
    """

    def __init__(self, waiting: int, retry_after: float) -> None:
        many = "1 request is" if waiting == 1 else f"{waiting} requests are"
        super().__init__(
            f"{many} waiting already, as many as backbone.queue allows: try again in {retry_after:.0f} s"
        )
        self.waiting = waiting
        self.retry_after = retry_after


class Stopping(LocalError):
    """The decoder does not run, or not any more."""
