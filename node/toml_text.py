"""Setting keys in a TOML file that a person keeps: everything else, comments too, stays as it was.

A small scanner finds where statements and values lie. It needs not know all of TOML: the result is read
with `tomllib` and must say exactly what was wanted, else nothing is changed and the person has to edit.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from routing.errors import LocalError

Value = str | list[str]

_OPEN, _CLOSE = "[{", "]}"
_QUOTES = ('"""', "'''", '"', "'")


@dataclass(frozen=True)
class _Statement:
    """A key with its value, or a table's header (its key is then the text in brackets).

    Attributes:
        is_header: which of the two.
        key: as written, without spaces around it.
        start, end: of the value or of the whole header, in the text.
    """

    is_header: bool
    key: str
    start: int
    end: int


def set_keys(text: str, table: str, values: Mapping[str, Value]) -> str:
    """Set keys of a table; a list that is there keeps its form, and gets what it lacks at its end.

    Args:
        text: the file's.
        table: a top-level table; made at the end of the file if there is none.
        values: texts, or lists of texts.

    Raises:
        LocalError: it can't be done by such simple means; the message says what to write by hand.
    """
    before = tomllib.loads(text)
    wanted = before | {table: before.get(table, {}) | dict(values)}
    newline = "\r\n" if "\r\n" in text else "\n"
    for keep_lists in (True, False):
        after = text
        try:
            for key, value in reversed(list(values.items())):
                after = _set_one(after, table, key, value, newline, keep_lists)
            if _parsed(after) == wanted:
                return after
        except (ValueError, IndexError):
            continue
    lines = "; ".join(f"{key} = {_literal(value)}" for key, value in values.items())
    raise LocalError(f"[{table}] is written in a way that can't be changed safely; set by hand: {lines}")


def quote(text: str) -> str:
    """A TOML basic string: JSON's escapes are all TOML's too, but TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _literal(value: Value) -> str:
    return quote(value) if isinstance(value, str) else f"[{', '.join(map(quote, value))}]"


def _set_one(text: str, table: str, key: str, value: Value, newline: str, keep_lists: bool) -> str:
    inside = False
    after_header = None
    for statement in _statements(text):
        if statement.is_header:
            inside = statement.key == table
            if inside:
                after_header = statement.end
        elif inside and statement.key == key:
            old = text[statement.start : statement.end]
            new = _longer(old, value, newline) if keep_lists and isinstance(value, list) else None
            return text[: statement.start] + (new or _literal(value)) + text[statement.end :]
    line = f"{key} = {_literal(value)}{newline}"
    if after_header is None:
        gap = "" if not text or text.endswith(newline) else newline
        return f"{text}{gap}{newline}[{table}]{newline}{line}"
    end = text.find("\n", after_header)
    if end < 0:
        return f"{text}{newline}{line}"
    return text[: end + 1] + line + text[end + 1 :]


def _longer(array: str, wanted: list[str], newline: str) -> str | None:
    """A list as written, with those of `wanted` that it lacks at its end; None if that is not enough."""
    items = tomllib.loads(f"x = {array}")["x"]
    if items != wanted[: len(items)] or not items:
        return None
    more = [quote(item) for item in wanted[len(items) :]]
    if not more:
        return array
    last = _last_item(array)
    body, rest = array[:last], array[last:-1]
    comma = "" if body.endswith(",") else ","
    if newline not in array:
        return f"{body}{comma} {', '.join(more)}]"
    indent = " " * 4
    return f"{body}{comma}{rest.rstrip()}{newline}{''.join(f'{indent}{item},{newline}' for item in more)}]"


def _last_item(array: str) -> int:
    """Where the last item of a list, or the comma after it, ends."""
    position, last = 1, 1
    while position < len(array) - 1:
        following = _skip(array, position)
        if array[position] not in " \t\r\n#":
            last = following
        position = following
    return last


def _statements(text: str) -> Iterator[_Statement]:
    """All headers and keys of a text that is TOML, in order."""
    position = 0
    while position < len(text):
        if text[position] in " \t\r\n":
            position += 1
        elif text[position] == "#":
            position = _skip(text, position)
        elif text[position] == "[":
            end = _end_of_value(text, position)
            yield _Statement(True, text[position + 1 : end - 1].strip(), position, end)
            position = end
        else:
            equals = position
            while text[equals] != "=":
                equals = _skip(text, equals)
            start = equals + 1
            while text[start] in " \t":
                start += 1
            end = _end_of_value(text, start)
            yield _Statement(False, text[position:equals].strip(), start, end)
            position = end


def _end_of_value(text: str, position: int) -> int:
    """Where a value or header that begins here ends, without a comment or spaces after it."""
    depth, last = 0, position
    while position < len(text):
        char = text[position]
        if not depth and char in "\n#":
            break
        depth += (char in _OPEN) - (char in _CLOSE)
        following = _skip(text, position)
        if char not in " \t\r":
            last = following
        position = following
    return last


def _skip(text: str, position: int) -> int:
    """Past the string or comment that begins here, or else past one character."""
    if text[position] == "#":
        end = text.find("\n", position)
        return len(text) if end < 0 else end
    for quotes in _QUOTES:
        if text.startswith(quotes, position):
            return _end_of_string(text, position + len(quotes), quotes)
    return position + 1


def _end_of_string(text: str, position: int, quotes: str) -> int:
    while position < len(text):
        if text[position] == "\\" and quotes[0] == '"':
            position += 2
        elif text.startswith(quotes, position):
            position += len(quotes)
            while len(quotes) == 3 and text.startswith(quotes[0], position):
                position += 1  # up to two quotes may stand before the closing ones
            return position
        else:
            position += 1
    raise ValueError("a string without an end")
