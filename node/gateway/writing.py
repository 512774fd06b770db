"""What has come of answers, written as a whole response or as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from node.engine.logprobs import Logprob
from node.gateway.answering import Spoken
from node.gateway.answers import DONE, Choice, Heading, event
from node.gateway.logprobs import PieceOf, Placed, chat_logprobs, completion_logprobs
from node.gateway.reading import Heard
from node.gateway.usage import Cost, ledger, server_timing, usage
from node.http.event_stream import EventStream, Write


class Writing:
    """What both ways of writing know of a request.

    Args:
        top_logprobs: as it was asked for; None: no logprobs.
        prompts: texts that come before the answers (echo), one for each choice; empty for none.
        piece: a token's bytes.
    """

    def __init__(
        self, heading: Heading, top_logprobs: int | None, prompts: Sequence[str], piece: PieceOf
    ) -> None:
        self.heading = heading
        self._top = top_logprobs
        self._prompts = prompts
        self._piece = piece

    def prompt(self, index: int) -> str:
        """What a choice begins with."""
        return self._prompts[index] if self._prompts else ""

    def logprobs(self, placed: Sequence[tuple[int, Logprob | None]]) -> dict[str, Any] | None:
        """Of some tokens, in the endpoint's shape; None if nobody asked."""
        if self._top is None:
            return None
        told: list[Placed] = [(begin, logprob) for begin, logprob in placed if logprob is not None]
        if self.heading.chat:
            return chat_logprobs(told, self._piece)
        return completion_logprobs(told, self._piece, top=self._top)


class Whole:
    """A response that comes when all answers have ended."""

    def __init__(self, writing: Writing, choices: int) -> None:
        self._writing = writing
        self._texts: list[list[str]] = [[writing.prompt(i)] for i in range(choices)]
        self._placed: list[list[tuple[int, Logprob | None]]] = [[] for _ in range(choices)]
        self._calls: list[list[dict[str, Any]]] = [[] for _ in range(choices)]
        self._finish: list[str | None] = [None] * choices

    async def tell(self, spoken: Spoken) -> None:
        """Keep what has come."""
        heard = spoken.heard
        self._texts[spoken.index].append(heard.text)
        self._placed[spoken.index] += heard.told
        self._calls[spoken.index] += [call.as_dict() for call in heard.calls]
        self._finish[spoken.index] = spoken.finish

    def response(self, costs: Sequence[Cost]) -> dict[str, Any]:
        """The JSON."""
        choices = [
            Choice(i, "".join(texts), calls, self._writing.logprobs(placed), finish)
            for i, (texts, calls, placed, finish) in enumerate(
                zip(self._texts, self._calls, self._placed, self._finish, strict=True)
            )
        ]
        return self._writing.heading.whole(choices, usage(costs))


class Stream:
    """A response that comes piece by piece.

    Args:
        with_usage: a chunk of usage comes before the end.
        stream: gets the Server-Timing header with the first token.
    """

    def __init__(self, writing: Writing, write: Write, stream: EventStream, *, with_usage: bool) -> None:
        self._writing = writing
        self._write = write
        self._stream = stream
        self._with_usage = with_usage
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}  # number of the last call, by choice

    @property
    def has_begun(self) -> bool:
        """Whether it is too late for a status."""
        return bool(self._begun)

    async def tell(self, spoken: Spoken) -> None:
        """Send what has come."""
        if not self.has_begun:
            self._stream.headers["Server-Timing"] = server_timing([spoken.report], complete=False)
        events = b""
        if spoken.index not in self._begun:
            self._begun.add(spoken.index)
            events += self._first(spoken.index)
        events += self._heard(spoken.index, spoken.heard)
        if spoken.finish is not None:
            empty = {} if self._writing.heading.chat else {"text": ""}
            events += self._chunk(spoken.index, empty, finish=spoken.finish, ledger=ledger(spoken.report))
        await self._write(events)

    async def end(self, costs: Sequence[Cost]) -> None:
        """Send what ends it."""
        last = event(self._writing.heading.usage_chunk(usage(costs))) if self._with_usage else b""
        await self._write(last + DONE)

    def _first(self, index: int) -> bytes:
        if self._writing.heading.chat:
            return self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
        prompt = self._writing.prompt(index)
        return self._chunk(index, {"text": prompt}) if prompt else b""

    def _heard(self, index: int, heard: Heard) -> bytes:
        events = b""
        if heard.text or heard.told:
            name = "content" if self._writing.heading.chat else "text"
            events += self._chunk(index, {name: heard.text}, logprobs=self._writing.logprobs(heard.told))
        for call in heard.calls:
            number = self._calls[index] = self._calls.get(index, -1) + 1
            events += self._chunk(index, {"tool_calls": [{"index": number, **call.as_dict()}]})
        return events

    def _chunk(self, index: int, delta: dict[str, Any], **rest: Any) -> bytes:
        return event(self._writing.heading.chunk(index, delta, with_usage=self._with_usage, **rest))
