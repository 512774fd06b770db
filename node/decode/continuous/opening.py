"""A decoder's worker and all that it works on: caches, port, guesser. Made and closed on a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.decode.backbone import Backbone
from node.decode.batch import Batch
from node.decode.continuous.pass_port import PassPort
from node.decode.continuous.schedule import READING_SHARE
from node.decode.continuous.worker import News, Worker
from node.decode.drafting.choice import Guessers
from node.decode.guessed_pass import GuessedPass
from node.decode.live_backbone import LiveBackbone
from node.engine.tokenizer import Tokenizer

RESERVED_TOKENS = 256
"""Tokens of an answer that a shared cache must have room for before it is begun. Answers may be limited to
thousands and mostly are not so long: with all of it reserved only few could be under way."""

NO_SPARE = 2
"""Sessions up to which no cache is needed beside theirs: two that write are always consecutive."""

IDLE_PLACES = 2
"""Sequences for each session where all share a cache, so that what ended is found again: they cost nothing
but what they hold."""


@dataclass(frozen=True)
class DecoderSettings:
    """What a decoder is to be.

    Attributes:
        sessions: sequences decoded together.
        queue: asks that may wait for a place.
        prefix_cache: what finished sequences leave is kept, and prompts take what they have in common.
        context: tokens of a session (exact), or of the cache that all share; None for the live backbone's.
    """

    sessions: int = 8
    queue: int = 64
    prefix_cache: bool = True
    context: int | None = None


class Opened:
    """A worker with its backbone, on a live backbone's model.

    Args:
        n_ctx: tokens of a session (exact), or of the cache that all share.
        tell: see `Worker`.

    Raises:
        EngineError: llama.cpp makes no such context (too little memory for the caches).
        LocalError: the small model that should guess does not fit.
    """

    def __init__(
        self,
        live: LiveBackbone,
        settings: DecoderSettings,
        n_ctx: int,
        tell: Callable[[Sequence[News]], None],
    ) -> None:
        exact, slots = live.settings.exact, settings.sessions
        spare = 0 if slots <= NO_SPARE else 1
        places = slots + spare if exact else slots * IDLE_PLACES
        port = PassPort(live.port)
        model = live.backbone.model
        self._guessed: GuessedPass | None = None
        self._backbone = Backbone(
            model.library,
            live.backbone.stored,
            port,
            n_ctx=n_ctx,
            n_ubatch=live.settings.ubatch,
            threads=live.settings.threads,
            n_sequences=places,
            own_caches=exact,
            model=model,
        )
        try:
            batch = Batch(
                self._backbone,
                slots=slots,
                places=places,
                reading_share=READING_SHARE,
                keep=settings.prefix_cache,
                reserve=RESERVED_TOKENS,
                look=lambda member, row: self.worker.look(member, row),
            )
            guessers = Guessers(
                draft=live.settings.draft,
                draft_model=live.settings.draft_model,
                exact=exact,
                backbone=self._backbone,
                has_home=lambda: live.port.has_home,
                left_out=live.port.left_out,
                acceptance=live.guessers.acceptance,
            )
            guessing = guessers.make(lambda: batch.members[0].sequence)
            if guessing is not None:
                self._guessed = GuessedPass(self._backbone, guessing, exact=exact, spent=port.spent)
            self.worker = Worker(
                batch,
                self._backbone.context,
                port,
                slots=slots,
                queue=settings.queue,
                guessed=self._guessed,
                is_end=Tokenizer(model).is_end if model.has_vocab else lambda token: False,
                tell=tell,
                purse=live.port.purse,
                convictions=live.port.convictions,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._guessed is not None:
            self._guessed.close()
        self._backbone.close()
