"""What an answer cost, as its client gets it: `usage`, with the ledger of trips in `usage.panal`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.decode.continuous.report import AnswerReport


@dataclass(frozen=True)
class Cost:
    """One choice's.

    Attributes:
        prompt: number of its prompt; choices of one prompt pay for it once.
        tokens: of the answer that were read, those of a stop string included.
    """

    prompt: int
    tokens: int
    report: AnswerReport


def usage(costs: Sequence[Cost]) -> dict[str, Any]:
    """`usage` of a response."""
    prompts = {cost.prompt: cost.report.prompt_tokens for cost in costs}
    # What the first of several choices computed, the others found in the cache: that saved nobody a thing.
    cached: dict[int, int] = {}
    for cost in costs:
        found = cost.report.cached_tokens
        cached[cost.prompt] = min(found, cached.get(cost.prompt, found))
    prompt_tokens, tokens = sum(prompts.values()), sum(cost.tokens for cost in costs)
    ledgers = [ledger(cost.report) for cost in costs]
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        "panal": ledgers[0] if len(ledgers) == 1 else {"choices": ledgers},
    }


def ledger(report: AnswerReport) -> dict[str, Any]:
    """An answer's trips, bytes and seconds, in one flat object."""
    told = report.as_dict()
    trips: Mapping[str, Any] = told.pop("panal")
    # The ledger's own `tokens` are rows of passes; here the word means what it means in `usage`.
    return {**told, **{("rows" if name == "tokens" else name): value for name, value in trips.items()}}


def server_timing(reports: Sequence[AnswerReport], *, complete: bool) -> str:
    """The Server-Timing header (W3C), in milliseconds. Of several choices the slowest.

    Args:
        complete: the answers have ended; else only what comes before the first token is known.
    """
    slowest = max(reports, key=lambda report: report.queued + report.seconds)
    computed = slowest.prompt_tokens - slowest.cached_tokens
    parts = [
        f"queue;dur={slowest.queued * 1000:.1f}",
        f'prompt;dur={slowest.prompt_seconds * 1000:.1f};desc="{computed} of {slowest.prompt_tokens} tokens"',
    ]
    if complete:
        trips = slowest.trips
        decode = max(slowest.seconds - slowest.prompt_seconds, 0.0)
        parts += [
            f'decode;dur={decode * 1000:.1f};desc="{slowest.tokens} tokens"',
            f'wait;dur={trips.waited * 1000:.1f};desc="{trips.trips} trips"',
            f"compute;dur={trips.computed_home * 1000:.1f}",
        ]
    return ", ".join(parts)
