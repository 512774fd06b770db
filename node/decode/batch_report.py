"""What a batch of prompts came to: an answer each, and what all of them took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from node.decode.ledger import TripsReport, cost_rows


@dataclass(frozen=True)
class BatchAnswer:
    """The answer to one of the prompts.

    Attributes:
        prompt: its number, from 1.
        seconds: from the beginning of the batch to its last token.
        stopped: "end" (the model ended it), "length" (as many tokens as asked), "context" (it is full),
            "budget" (it, or the day, has cost as much as it may; perhaps before it was begun) or "failed" (it
            rested on false answers, again and again: there is no text).
        cost: micro-credits.
        budget: which one, in a line for people.
        error: why it failed, likewise.
    """

    prompt: int
    text: str
    prompt_tokens: int
    tokens: list[int]
    seconds: float
    stopped: str
    cost: int = 0
    budget: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "stopped": self.stopped,
            "seconds": round(self.seconds, 4),
            "cost": self.cost,
            **({"error": self.error} if self.error else {}),
        }


@dataclass(frozen=True)
class BatchReport:
    """What all of them took.

    Attributes:
        tokens: chosen, over all prompts; prompt_tokens: read.
        prompt_seconds: from the beginning to the first token of the last prompt that began with the others.
        seconds: from the beginning to the last token.
        trips: of all lanes together: waits that overlapped are counted each.
        wire, home, routes: as of an `Answer`.
        failed: numbers of prompts without an answer that is right.
    """

    prompts: int
    prompt_tokens: int
    tokens: int
    prompt_seconds: float
    seconds: float
    lanes: int
    trips: TripsReport
    model_id: str = ""
    wire: str = ""
    home: dict[str, Any] = field(default_factory=dict)
    routes: list[dict[str, object]] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Of everything, prompts included: while one is read, another is answered."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prompts": self.prompts,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "prompt_seconds": round(self.prompt_seconds, 4),
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "lanes": self.lanes,
            "model_id": self.model_id,
            "wire": self.wire,
            "panal": msgspec.to_builtins(self.trips),
            "home": self.home,
            "routes": self.routes,
            "failed": self.failed,
        }


def summary_rows(done: BatchReport) -> list[tuple[str, str]]:
    """The short table: names and values."""
    trips = done.trips
    return [
        ("prompts", str(done.prompts)),
        ("prompt tokens", str(done.prompt_tokens)),
        ("tokens", str(done.tokens)),
        ("lanes", str(done.lanes)),
        ("layers", str(trips.calls_per_pass)),
        ("passes", str(trips.passes)),
        ("trips", str(trips.trips)),
        ("trips per layer and token", f"{trips.trips_per_layer_token:.3f}" if trips.decoded else "-"),
        ("tokens/s, all together", f"{done.tokens_per_second:.1f}"),
        ("seconds to the last first token", f"{done.prompt_seconds:.2f}"),
        ("seconds", f"{done.seconds:.2f}"),
        *cost_rows(trips, done.wire, done.routes),
    ]
