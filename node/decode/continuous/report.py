"""What an answer took, and how a decoder is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from node.decode.ledger import TripsReport


@dataclass(frozen=True)
class AnswerReport:
    """What an answer took; so far, until it has ended.

    Attributes:
        cached_tokens: of the prompt: found in a cache, not computed anew.
        tokens: chosen, one that ended the text not counted. Some of the last may not have been read by who
            left early.
        stopped: "end" (the model ended it), "length" (as many tokens as asked), "context" (it is full),
            "budget" (it, or the day, has cost as much as it may), "closed" (who asked left), "failed" (an
            error ended it), "" (it has not ended).
        queued: seconds until it had a place; prompt_seconds: from then to its first token; seconds: from then
            to its last one.
        trips: its part of the passes it was in: passes and trips count whole, bytes and seconds by rows.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    stopped: str
    queued: float
    prompt_seconds: float
    seconds: float
    trips: TripsReport

    @property
    def tokens_per_second(self) -> float:
        """Of the answer, its first token and the prompt not counted."""
        spent = self.seconds - self.prompt_seconds
        return (self.tokens - 1) / spent if self.tokens > 1 and spent > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "stopped": self.stopped,
            "queued": round(self.queued, 4),
            "prompt_seconds": round(self.prompt_seconds, 4),
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "panal": msgspec.to_builtins(self.trips),
        }


@dataclass(frozen=True)
class DecoderStats:
    """How a decoder is doing.

    Attributes:
        slots: sequences at once; active: under way; reading: of these, those whose prompt is not computed.
        waiting: for a place; queue: how many may.
        cached: tokens that finished sequences have left.
        asked: taken in since the start; answered, left, failed: how they ended; refused: not taken in.
        prompt_tokens, cached_tokens, tokens: sums since the start.
        tokens_per_second: chosen, over the last ten seconds, all together.
        trips: of all passes since the start, each once.
    """

    slots: int
    active: int
    reading: int
    waiting: int
    queue: int
    cached: int
    asked: int
    answered: int
    left: int
    failed: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    tokens_per_second: float
    trips: TripsReport
