"""What a client is told of what went wrong on the way to its answer."""

from __future__ import annotations

from math import ceil

from market.budget import UsedUp
from node.decode.continuous.ask import QueueFull, Stopping
from node.decode.convictions import Spoiled
from node.decode.not_covered import NotCovered
from node.engine.grammar import GrammarError
from node.gateway.speaker import NotReady
from node.http.refusals import UNAVAILABLE, Refusal
from routing.dispatch.errors import ExpertsUnavailable
from routing.errors import PanalError

NO_MONEY = "insufficient_quota"
"""OpenAI's type and code for it. Its status is 429 there, at which clients ask again at once; 402 they pass
on."""

SPOILED_SECONDS = 1
"""Until a client should ask again for an answer that rested on a false server's: that one is not asked
now."""

UNPAID_SECONDS = 60
"""Until a client should ask again where servers want to be paid first: that takes a person, or work."""

INCOMPLETE_SECONDS = 5
"""Until a client should ask again for experts that nobody holds now: a peer that restarts is back in so
long."""


def refusal_for(error: PanalError) -> Refusal:
    """The response to an answer that failed."""
    if isinstance(error, QueueFull):
        return Refusal(
            429,
            str(error),
            kind="rate_limit_error",
            code="queue_full",
            headers=[_retry_after(error.retry_after)],
        )
    if isinstance(error, UsedUp):
        return Refusal(
            402,
            str(error),
            kind=NO_MONEY,
            code=NO_MONEY,
            headers=[_retry_after(error.retry_after)],
        )
    if isinstance(error, ExpertsUnavailable) and error.unpaid:
        return Refusal(
            402, str(error), kind=NO_MONEY, code="credit_used_up", headers=[_retry_after(UNPAID_SECONDS)]
        )
    if isinstance(error, ExpertsUnavailable | NotCovered):
        return Refusal(503, str(error), code="model_incomplete", headers=[_retry_after(INCOMPLETE_SECONDS)])
    if isinstance(error, Spoiled):
        return Refusal(503, str(error), code="false_answers", headers=[_retry_after(SPOILED_SECONDS)])
    if isinstance(error, Stopping):
        return Refusal(503, "this node is ending", code="ending")
    if isinstance(error, GrammarError):
        return Refusal(400, str(error), param="response_format", code="invalid_grammar")
    return Refusal(500, str(error), kind=UNAVAILABLE, code="failed")


def not_ready(standing: NotReady) -> Refusal:
    """The response while nobody answers."""
    if not standing.model:
        return Refusal(
            404,
            "this node runs no model: name one in [backbone] of its config",
            param="model",
            code="model_not_found",
        )
    return Refusal(
        503,
        f"{standing.model} is not ready: {standing.why}",
        code="model_incomplete" if standing.missing else "model_loading",
        headers=[_retry_after(standing.retry_after)],
    )


def unknown_model(asked: str, known: str) -> Refusal:
    """The response to another model's name."""
    return Refusal(
        404,
        f"the model {asked[:100]!r} is not here; this node answers as {known!r}",
        param="model",
        code="model_not_found",
    )


def too_long(tokens: int, n_ctx: int, param: str, *, at_least: bool = False) -> Refusal:
    """The response to a prompt that no context holds.

    Args:
        at_least: nobody has counted; it cannot be fewer.
    """
    least = "at least " if at_least else ""
    return Refusal(
        400,
        f"the prompt has {least}{tokens} tokens, and this model's context holds {n_ctx}, the answer "
        "included: shorten the prompt, or raise backbone.context in the node's config",
        param=param,
        code="context_length_exceeded",
    )


def _retry_after(seconds: float) -> tuple[str, str]:
    return "Retry-After", str(max(1, ceil(seconds)))
