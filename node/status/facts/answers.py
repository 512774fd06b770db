"""Answers and the API in the status."""

from __future__ import annotations

from msgspec import Struct


class Trips(Struct, frozen=True):
    """What an answer cost (node.decode.ledger).

    Attributes:
        passes: times the model was run; trips: waits for remote experts.
        trips_per_token: trips over tokens chosen.
        sent_bytes, received_bytes: on the wire, frames included.
        waited_seconds: waiting for others; computed_seconds: in experts at home.
        drafted, accepted: guesses that were verified, and those that were right.
        hedges, hedges_won: requests sent twice, and those of use.
        late, failed: answers of peers that were late, and calls that failed.
        slowest_peer: the id of who was last to answer most often, "" without remote experts.
        cost: micro-credits that peers' work cost, 0 where nothing is priced.
        cost_by_peer: the same by peer id, of those who cost most.
    """

    passes: int
    trips: int
    trips_per_token: float
    sent_bytes: int
    received_bytes: int
    waited_seconds: float
    computed_seconds: float
    drafted: int
    accepted: int
    hedges: int
    hedges_won: int
    late: int
    failed: int
    slowest_peer: str
    cost: int = 0
    cost_by_peer: dict[str, int] = {}


class Answer(Struct, frozen=True):
    """An answer that was given lately. Never what was asked or answered.

    Attributes:
        number: counts answers since the start.
        at: when it ended.
        model: 64 hexadecimal digits.
        prompt_tokens: of these cached_tokens were known from before.
        tokens: chosen.
        stopped: why it ended: "end", "length", "context", "budget" (it, or the day, has cost as much as it
            may), "closed" (whoever asked went away, or had enough), "failed" (`error` says why).
        queued_seconds: before it had a place; prompt_seconds: from then to its first token; seconds: from
            then to its last.
        tokens_per_second: of writing, without the prompt.
        error: one line, "" if it did not fail.
    """

    number: int
    at: float
    model: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    stopped: str
    queued_seconds: float
    prompt_seconds: float
    seconds: float
    tokens_per_second: float
    trips: Trips
    error: str


class Gateway(Struct, frozen=True):
    """The OpenAI-compatible API of this node; null in `Status` if it has none.

    Attributes:
        model: 64 hexadecimal digits.
        ready: whether it answers now; reason: why not, "" if it does.
        context: tokens that one sequence may have.
        active, slots: answers being made, and how many can be at once; reading: those of the active whose
            prompt is not computed yet.
        waiting, queue: requests that wait, and how many may.
        kept_tokens: of ended answers, kept to be used again.
        answered, left, failed: answers since the start that ended, were given up by who asked, or failed;
            refused: requests for which there was no room.
        prompt_tokens, cached_tokens, tokens: sums over all answers.
        tokens_per_second: of all answers together, lately.
    """

    model: str
    ready: bool
    reason: str
    context: int
    active: int
    reading: int
    slots: int
    waiting: int
    queue: int
    kept_tokens: int
    answered: int
    left: int
    failed: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    tokens_per_second: float
