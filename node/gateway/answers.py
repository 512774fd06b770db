"""Answers as OpenAI writes them: whole, and as the chunks of a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Heading:
    """What every object of a response begins with.

    Attributes:
        chat: of a chat; else of a plain completion.
        model: the model's name; fingerprint: which model and program it was.
    """

    chat: bool
    id: str
    created: int
    model: str
    fingerprint: str

    def _begin(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def whole(self, choices: Sequence[Choice], usage: Mapping[str, Any]) -> Json:
        """A response that does not stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            **self._begin(kind),
            "choices": [choice.as_dict(chat=self.chat) for choice in choices],
            "usage": usage,
        }

    def chunk(
        self,
        index: int,
        delta: Json,
        *,
        logprobs: Json | None = None,
        finish: str | None = None,
        with_usage: bool = False,
        ledger: Mapping[str, Any] | None = None,
    ) -> Json:
        """A piece of one choice.

        Args:
            delta: of a chat the part of the message, of a completion {"text": ...}.
            finish: why it ended, in its last chunk.
            with_usage: the stream ends with a chunk of usage, and the others say that it is not there yet.
            ledger: what the choice has cost, in its last chunk.
        """
        choice: Json = {"index": index}
        choice |= {"delta": delta} if self.chat else delta
        choice |= {"logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._begin(self._chunk_kind), "choices": [choice]}
        if with_usage:
            chunk["usage"] = None
        if ledger is not None:
            chunk["panal"] = ledger
        return chunk

    def usage_chunk(self, usage: Mapping[str, Any]) -> Json:
        """The chunk of usage."""
        return {**self._begin(self._chunk_kind), "choices": [], "usage": usage}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"


@dataclass
class Choice:
    """One answer, as far as it has come.

    Attributes:
        calls: of tools.
        logprobs: in the endpoint's shape; None: not asked for.
    """

    index: int
    text: str = ""
    calls: list[Json] = field(default_factory=list)
    logprobs: Json | None = None
    finish: str | None = None

    def as_dict(self, *, chat: bool) -> Json:
        """An element of `choices`."""
        if not chat:
            return {
                "index": self.index,
                "text": self.text,
                "logprobs": self.logprobs,
                "finish_reason": self.finish,
            }
        message: Json = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = self.calls
        return {
            "index": self.index,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.finish,
        }


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no line ends outside its strings, and in them they are escaped."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
