"""Telling what users wrote from what a chat template wrote, in a text made of both. Pure.

1. Every character of a user's text that a control token begins or ends with (`<`, `>`, `[`, ...) is replaced
   by a stand-in: a private-use character that occurs nowhere else. The template moves, cuts and strips it
   like any other; lengths and white space stay as they were.
2. So in the rendered text a control token is the template's own if none of its characters is a stand-in, even
   if users write one in pieces and a template puts them together.
3. What a template looks for in users' words (the strings in its expressions: `</think>`, `<tool_response>`)
   is left as it is, unless it is, or is a part of, a control token: it must find it, and it steers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

STAND_INS = range(0xF0000, 0x10FFFE)
"""Unicode's supplementary private-use planes: 131,000 characters for some dozens that are wanted."""


class TooManyCharacters(ValueError):
    """A text uses up all private-use characters."""


class Marker:
    """Replaces characters of users' texts.

    Args:
        controls: texts of control tokens.
        looked_for: strings that the template compares texts with.
    """

    def __init__(self, controls: Sequence[str], looked_for: Iterable[str] = ()) -> None:
        characters: set[str] = set()
        plain = []
        for text in controls:
            ends = {char for char in (text[0], text[-1]) if _is_mark(char)}
            ends = ends or set(filter(_is_mark, text))
            characters |= ends
            if not ends:
                plain.append(text)
        self._characters = sorted(characters)
        # Control tokens that are mere words: their first letter, where the whole word stands.
        self._words = _any_of(plain)
        self._left_alone = _any_of(
            text
            for text in looked_for
            if characters.intersection(text)
            and not any(control in text or text in control for control in controls)
        )
        self._initials = sorted({text[0] for text in plain})

    def mark(self, value: Any, taken: Iterable[str] = ()) -> tuple[Any, dict[str, str]]:
        """The value with all its strings marked, and what each stand-in stands for.

        Args:
            value: as parsed from JSON.
            taken: texts whose characters cannot be stand-ins.

        Raises:
            TooManyCharacters: no private-use characters are left.
        """
        wanted = sorted({*self._characters, *self._initials})
        used = {ord(char) for text in (*taken, *_strings(value)) for char in _private(text)}
        free = (code for code in STAND_INS if code not in used)
        stand_ins = dict(zip(wanted, map(chr, free), strict=False))
        if len(stand_ins) < len(wanted):
            raise TooManyCharacters("it uses up all private-use characters of Unicode")
        table = str.maketrans({char: stand_ins[char] for char in self._characters})
        marked = _mapped(value, lambda text: self._mark(text, table, stand_ins))
        return marked, {stand_in: char for char, stand_in in stand_ins.items()}

    def _mark(self, text: str, table: Mapping[int, str], stand_ins: Mapping[str, str]) -> str:
        if self._words is not None:
            text = self._words.sub(lambda found: stand_ins[found[0][0]] + found[0][1:], text)
        if self._left_alone is None:
            return text.translate(table)
        begin, parts = 0, []
        for found in self._left_alone.finditer(text):
            parts += [text[begin : found.start()].translate(table), found[0]]
            begin = found.end()
        return "".join((*parts, text[begin:].translate(table)))


def unmark(text: str, marks: Mapping[str, str]) -> str:
    """A text as users wrote it."""
    return text.translate({ord(stand_in): char for stand_in, char in marks.items()})


def _is_mark(char: str) -> bool:
    """Whether it can be replaced unnoticed: templates change the case of letters, strip spaces, escape
    quotes."""
    return not char.isalnum() and not char.isspace() and char.isprintable() and char not in "\"'\\_"


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    found = sorted(set(texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None


def _private(text: str) -> set[str]:
    return set() if text.isascii() else {char for char in set(text) if ord(char) >= STAND_INS.start}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    return value
