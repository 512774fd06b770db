"""Where a JSON object ends, although it comes in pieces. Pure."""

from __future__ import annotations

import re

_INSIDE = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')


class JsonEnd:
    """Follows one object or list from its first bracket on. What is between brackets is not checked."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Characters of this piece that belong to it, if it ends here; None while it goes on."""
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while found := (_IN_STRING if self._in_string else _INSIDE).search(text, at):
            at = found.end()
            match found[0]:
                case "\\":
                    self._escaped = at == len(text)
                    at += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return at
        return None
