"""Logprobs as OpenAI writes them, in the chat's shape and in that of plain completions. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from node.engine.logprobs import Logprob

NEVER = -9999.0
"""OpenAI's number for a logprob that JSON cannot say (minus infinity)."""

PieceOf = Callable[[int], bytes]
"""A token's bytes."""

Placed = tuple[int, Logprob]
"""Where in the text a token begins, and how likely it was."""


def chat_logprobs(placed: Sequence[Placed], piece: PieceOf) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    return {"content": [_chat_token(each, piece) for _, each in placed], "refusal": None}


def _chat_token(told: Logprob, piece: PieceOf) -> dict[str, Any]:
    top = [_alone(token, logprob, piece) for token, logprob in told.top]
    return {**_alone(told.token, told.logprob, piece), "top_logprobs": top}


def _alone(token: int, logprob: float, piece: PieceOf) -> dict[str, Any]:
    data = piece(token)
    return {"token": data.decode(errors="replace"), "logprob": _number(logprob), "bytes": list(data)}


def completion_logprobs(placed: Sequence[Placed], piece: PieceOf, *, top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a plain completion.

    Args:
        top: how many of the likeliest were asked for; the chosen one is among them in any case.
    """
    return {
        "tokens": [_name(told.token, piece) for _, told in placed],
        "token_logprobs": [_number(told.logprob) for _, told in placed],
        "top_logprobs": [_by_name(told, piece) for _, told in placed] if top else None,
        "text_offset": [begin for begin, _ in placed],
    }


def _by_name(told: Logprob, piece: PieceOf) -> dict[str, float]:
    found = {_name(token, piece): _number(logprob) for token, logprob in reversed(told.top)}
    found = dict(reversed(found.items()))  # of two with one name the likelier counts
    found.setdefault(_name(told.token, piece), _number(told.logprob))
    return found


def _name(token: int, piece: PieceOf) -> str:
    """A token's text; of a part of a character its bytes, as OpenAI writes them."""
    data = piece(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER
