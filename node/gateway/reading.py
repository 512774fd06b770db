"""One answer, read token by token: its text without stop strings, and the calls of functions in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from node.gateway.calls import Call, ReadsCalls
from node.gateway.text_flow import Piece, TextFlow

if TYPE_CHECKING:
    from node.engine.logprobs import Logprob

_CUT_SHORT = ("length", "context", "budget")
"""The decoder's words for a text that is not at its end."""

Told = Sequence[tuple[int, "Logprob | None"]]
"""Where in the text tokens begin, and how likely they were."""


@dataclass(frozen=True)
class Reading:
    """How the answers of a request are read.

    Attributes:
        stops: strings that end one.
        calls: makes what reads calls out of one; None: there are none.
        several: one may have several calls.
    """

    stops: Sequence[str] = ()
    calls: Callable[[], ReadsCalls | None] = lambda: None
    several: bool = True


class Heard(NamedTuple):
    """What may be passed on.

    Attributes:
        text: to be shown; calls: that are complete.
    """

    text: str
    calls: Sequence[Call]
    told: Told

    @property
    def is_something(self) -> bool:
        return bool(self.text or self.calls or self.told)


class Reader:
    """Reads one answer.

    Args:
        piece: a token's bytes.

    Attributes:
        is_over: the rest is not wanted: a stop string has come, or the only call there may be.
    """

    def __init__(self, reading: Reading, piece: Callable[[int], bytes]) -> None:
        self._flow: TextFlow[Logprob | None] = TextFlow(reading.stops)
        self._calls = reading.calls()
        self._several = reading.several
        self._piece = piece
        self.is_over = False

    def feed(self, token: int, logprob: Logprob | None) -> Heard:
        """Take the next token; not once it is over."""
        data = None if self._calls is None else self._calls.spelt.get(token)
        heard = self._read(self._flow.feed(self._piece(token) if data is None else data, logprob))
        self.is_over = self._flow.is_stopped or self._has_its_call
        return heard

    def finish(self) -> Heard:
        """What was held back."""
        if self._has_its_call:
            return Heard("", (), ())
        heard = Heard("", (), ()) if self._flow.is_stopped else self._read(self._flow.finish())
        if self._calls is None:
            return heard
        text, calls = self._calls.finish()
        return Heard(heard.text + text, self._allowed([*heard.calls, *calls]), heard.told)

    def finish_reason(self, stopped: str) -> str:
        """OpenAI's word for why it ended.

        Args:
            stopped: the decoder's.
        """
        if self._calls is not None and self._calls.found and stopped not in _CUT_SHORT:
            return "tool_calls"
        return "stop" if self.is_over or stopped == "end" else "length"

    @property
    def _has_its_call(self) -> bool:
        return self._calls is not None and self._calls.found and not self._several

    def _read(self, piece: Piece[Logprob | None]) -> Heard:
        if self._calls is None or not piece.text:
            return Heard(piece.text, (), piece.told)
        text, calls = self._calls.feed(piece.text)
        return Heard(text, self._allowed(calls), piece.told)

    def _allowed(self, calls: Sequence[Call]) -> Sequence[Call]:
        return calls if self._several else calls[:1]
