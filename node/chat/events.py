"""The API's stream of an answer, read: bytes in, chunks out. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.errors import LocalError

MOST_EVENT_BYTES = 4 << 20
"""Of one event: a chunk with some text and the ledger has a few hundred."""

DONE = b"[DONE]"


class Refused(LocalError):
    """The node does not answer this; in its words.

    Attributes:
        code: as the API has it.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class EventReader:
    """Splits a stream into chunks."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The chunks that are complete now.

        Raises:
            Refused: the stream tells of an error; or it is no stream of the API.
        """
        *events, self._held = (self._held + data).split(b"\n\n")
        if len(self._held) > MOST_EVENT_BYTES:
            raise Refused("what comes is no stream of answers")
        chunks = []
        for event in events:
            text = event.removeprefix(b"data:").strip()
            if text != DONE and event.startswith(b"data:"):
                chunks.append(_chunk(text))
        return chunks


def refusal_in(data: bytes, otherwise: str) -> Refused:
    """The error that a response's body tells of."""
    try:
        error = json.loads(data)["error"]
        return Refused(str(error["message"]), str(error.get("code") or ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Refused(otherwise)


def _chunk(text: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(text)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise Refused("what comes is no stream of answers")
    if "error" in chunk:
        raise refusal_in(text, "the answer failed")
    return chunk


@dataclass
class Heard:
    """An answer, as far as it has come.

    Attributes:
        finish: OpenAI's word for why it ended; "" while it has not.
        usage: tokens, and in `panal` the ledger of trips.
    """

    text: str = ""
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, chunk: Mapping[str, Any]) -> str:
        """Add a chunk; the text in it.

        Raises:
            Refused: it is not laid out as the API's.
        """
        try:
            if chunk.get("usage"):
                self.usage = dict(chunk["usage"])
            elif chunk.get("panal"):
                self.usage = {**self.usage, "panal": dict(chunk["panal"])}
            text = ""
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                self.finish = choice.get("finish_reason") or self.finish
        except (KeyError, TypeError, AttributeError, ValueError):
            raise Refused("what comes is no stream of answers") from None
        self.text += text
        return text

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"text": self.text, "finish_reason": self.finish, "usage": dict(self.usage)}
