"""Stop strings: where a text ends, although it comes in pieces. Pure.

1. No character that belongs to a stop string is given out. Text is held back only as long as it may be the
   beginning of one.
2. What is found does not depend on how the text is cut into pieces: the stop string that is complete first
   counts, of several at once the one that began first.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in one text.

    Attributes:
        found: the one that ended the text; "" while there is none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""

    def feed(self, text: str) -> str:
        """What may be given out now that this has come; nothing once a stop string was found."""
        if self.found:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What was held back, as the text ends by itself."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that begin a stop string, which is not whole there."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
