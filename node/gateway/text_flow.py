"""Tokens in, text out: whole characters, nothing of a stop string, and which tokens the text is made of.
Pure.

A character may be spread over several tokens, a token may hold the beginning of a stop string, and text is
given out later than its tokens came. What is told of a token (its logprob) goes out with the text that it
ends in; tokens that lie wholly in what a stop string cut off are never told of.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from node.gateway.stop_strings import StopStrings

T = TypeVar("T")


@dataclass(frozen=True)
class Piece(Generic[T]):
    """Text that may be given out, and what is told of the tokens that have begun in it.

    Attributes:
        told: with the character of the whole text that each token begins at.
    """

    text: str
    told: tuple[tuple[int, T], ...]

    def __bool__(self) -> bool:
        return bool(self.text or self.told)


class TextFlow(Generic[T]):
    """The text of one answer.

    Attributes:
        is_stopped: a stop string has ended it: nothing more is to be fed.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopStrings(stops)
        self._waiting: deque[tuple[int, int, T]] = deque()  # begin, end in characters, what is told
        self._decoded = 0
        self._given = 0

    @property
    def is_stopped(self) -> bool:
        return bool(self._stops.found)

    def feed(self, data: bytes, told: T) -> Piece[T]:
        """Add a token.

        Args:
            data: its bytes; told: what is said of it.
        """
        text = self._decoder.decode(data)
        begin = self._decoded
        self._decoded += len(text)
        self._waiting.append((begin, self._decoded, told))
        given = self._stops.feed(text)
        if self.is_stopped:
            return self._last(given)
        return self._give(given) if given else Piece("", ())

    def finish(self) -> Piece[T]:
        """The rest, when the answer has ended by itself."""
        given = self._stops.feed(self._decoder.decode(b"", final=True))
        if self.is_stopped:  # a broken character at the very end, and a stop string that is one
            return self._last(given)
        given += self._stops.finish()
        self._given += len(given)
        return Piece(given, self._take(len(self._waiting)))

    def _give(self, text: str) -> Piece[T]:
        self._given += len(text)
        whole = 0
        for _, end, _ in self._waiting:
            if end > self._given:
                break
            whole += 1
        return Piece(text, self._take(whole))

    def _last(self, text: str) -> Piece[T]:
        """What comes before the stop string; a token that it cuts in two is told of."""
        self._given += len(text)
        return Piece(text, self._take(sum(begin < self._given for begin, _, _ in self._waiting)))

    def _take(self, count: int) -> tuple[tuple[int, T], ...]:
        taken = [self._waiting.popleft() for _ in range(count)]
        return tuple((begin, told) for begin, _, told in taken)
