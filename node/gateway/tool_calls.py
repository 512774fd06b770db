"""Calls of tools in what a model writes, although it comes in pieces. Pure.

1. A call is told of when it is complete. Text before, between and behind calls is text.
2. What begins like a call and is none (other keys, broken JSON, no end) comes out as text, as it was written.
3. Text is held back only as long as it may become a call.
4. What is found does not depend on how the text is cut into pieces.

Models have their own ways of writing calls; which one is theirs shows in their chat template.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from node.gateway.json_end import JsonEnd


class ToolFormat(enum.Enum):
    """How a model writes calls.

    TAGS: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen).
    LIST: `[TOOL_CALLS]` and then `[{"name": ..., "arguments": {...}}]`, or `name{...}`, or
        `name[ARGS]{...}` (Mistral).
    BARE: the answer is `{"name": ..., "parameters": {...}}`, or several with `;` between them, perhaps behind
        `<|python_tag|>` (Llama 3).
    """

    TAGS = "tags"
    LIST = "list"
    BARE = "bare"

    @classmethod
    def of(cls, template: str) -> ToolFormat:
        """The one of a chat template."""
        if OPEN in template:
            return cls.TAGS
        return cls.LIST if CALLS in template else cls.BARE


OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
PYTHON = "<|python_tag|>"
MARKERS = frozenset({OPEN, CLOSE, CALLS, ARGS, CALL_ID, PYTHON})
"""Texts that may be control tokens, which otherwise stand for no text."""

MOST_NAME, MOST_HEAD = 256, 1024
"""Characters of a function's name, and of all that stands between `[TOOL_CALLS]` and the arguments."""

SPACE = " \t\r\n"

_HEAD = re.compile(r"([\w.-]{1,256})(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*")


@dataclass(frozen=True)
class ToolCall:
    """One call.

    Attributes:
        arguments: JSON, as the model wrote it.
    """

    id: str
    name: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        """An element of a message's `tool_calls`."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


Parsed = tuple[str, str]
"""Name and arguments."""


@dataclass(frozen=True)
class _Step:
    """What the beginning of the text held back comes to.

    Attributes:
        size: characters that are dealt with.
        shown: text among them; calls: calls.
    """

    size: int
    shown: str = ""
    calls: tuple[Parsed, ...] = ()


class ToolCalls:
    """The calls of one answer.

    Args:
        names: of the functions there are; a bare object that names another is text.
        make_id: a new call's id.
        spelt: the tokens that are MARKERS, where these are control tokens.

    Attributes:
        found: there was a call.
        spelt: tokens whose text is to be fed although they have none for people.
    """

    def __init__(
        self,
        format_: ToolFormat,
        names: Collection[str],
        make_id: Callable[[], str],
        spelt: Mapping[int, bytes] | None = None,
    ) -> None:
        self.spelt: Mapping[int, bytes] = spelt or {}
        self.found = False
        self._format = format_
        self._names = names
        self._make_id = make_id
        self._step = self._bare if format_ is ToolFormat.BARE else self._marked
        self._marker = OPEN if format_ is ToolFormat.TAGS else CALLS
        self._text = ""  # held back
        self._end: JsonEnd | None = None  # of the object or list in it
        self._scanned = 0  # characters that went into `_end`
        self._fresh = True  # nothing but white space has come
        self._after_call = False  # nothing but white space has come since

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """What may be shown now, and the calls that are complete now."""
        self._text += text
        return self._take(last=False)

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The rest, when the answer has ended."""
        return self._take(last=True)

    def _take(self, *, last: bool) -> tuple[str, list[ToolCall]]:
        shown, calls = [], list[ToolCall]()
        while self._text:
            step = self._step(last)
            if step is None:
                break
            self._text, self._end = self._text[step.size :], None
            if step.shown:
                shown.append(step.shown)
                if step.shown.strip():
                    self._fresh = self._after_call = False
            if step.calls:
                calls += [ToolCall(self._make_id(), *call) for call in step.calls]
                self._fresh, self._after_call, self.found = False, True, True
        return "".join(shown), calls

    # --- each gives None to wait for more, which it must not if there is no more ---

    def _marked(self, last: bool) -> _Step | None:
        """Of TAGS and LIST."""
        text, marker = self._text, self._marker
        if text.startswith(marker):
            return self._in_tags(last) if self._format is ToolFormat.TAGS else self._in_list(last)
        if self._after_call:
            gap = len(text) - len(text.lstrip(SPACE))
            rest = text[gap:]
            if rest.startswith((marker, CLOSE)):
                return _Step(gap + len(CLOSE) * rest.startswith(CLOSE))
            if not rest or (not last and (marker.startswith(rest) or CLOSE.startswith(rest))):
                return _Step(len(text)) if last else None
        at = text.find(marker, 1)
        if at < 0:
            at = len(text) if last else len(text) - _overlap(text, marker)
        return _Step(at, text[:at]) if at else None

    def _in_tags(self, last: bool) -> _Step | None:
        begin = _after_space(self._text, len(OPEN))
        if begin == len(self._text):
            return self._no_call(last)
        if self._text[begin] != "{":
            return self._no_call(True)
        end = self._object_end(begin)
        if end is None:
            return self._no_call(last)
        call = _parsed(self._text[begin:end])
        return _Step(end, calls=(call,)) if call else self._no_call(True)

    def _in_list(self, last: bool) -> _Step | None:
        text = self._text
        begin = _after_space(text, len(CALLS))
        if begin == len(text):
            return self._no_call(last)
        name = ""
        if text[begin] not in "[{":
            brace = text.find("{", begin)
            head = text[begin:] if brace < 0 else text[begin:brace]
            if brace < 0 and len(head) <= MOST_HEAD:
                return self._no_call(last)
            found = _HEAD.fullmatch(head) if len(head) <= MOST_HEAD else None
            if found is None:
                return self._no_call(True)
            name, begin = found[1], brace
        end = self._object_end(begin)
        if end is None:
            return self._no_call(last)
        body = text[begin:end]
        calls = _all_parsed(body, name)
        return _Step(end, calls=tuple(calls)) if calls else self._no_call(True)

    def _no_call(self, is_sure: bool) -> _Step | None:
        """The marker is text, and what follows is looked at anew."""
        return _Step(len(self._marker), self._marker) if is_sure else None

    def _bare(self, last: bool) -> _Step | None:
        """Of BARE: calls and nothing else, from the beginning on."""
        text = self._text
        if not self._fresh and not self._after_call:
            return _Step(len(text), text)
        space = SPACE + ";" if self._after_call else SPACE
        begin = len(text) - len(text.lstrip(space))
        rest = text[begin:]
        if self._after_call and begin and rest[:1] in ("{", PYTHON[0]):
            return _Step(begin)
        if not rest or (PYTHON.startswith(rest) and not last):
            return _Step(len(text), "" if self._after_call else text) if last else None
        if rest.startswith(PYTHON):
            begin = _after_space(text, begin + len(PYTHON))
            if begin == len(text) and not last:
                return None
        if text[begin : begin + 1] == "{":
            end = self._object_end(begin)
            if end is None and not last:
                return None
            call = _parsed(text[begin:end], self._names)
            if call:
                return _Step(end or len(text), calls=(call,))
        self._fresh = self._after_call = False
        return _Step(len(text), text)

    def _object_end(self, begin: int) -> int | None:
        """Where the object or list ends that begins there; what was looked at before is not again."""
        if self._end is None:
            self._end, self._scanned = JsonEnd(), begin
        size = self._end.feed(self._text[self._scanned :])
        end = None if size is None else self._scanned + size
        self._scanned = len(self._text)
        return end


class _Written(msgspec.Struct):
    """A call as models write it."""

    name: Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()

    def call(self) -> Parsed:
        raw = bytes(self.arguments) or bytes(self.parameters)
        if raw.startswith(b'"'):  # JSON in JSON
            inner = msgspec.json.decode(raw, type=str)
            if _is_json(inner):
                return self.name, inner
        return self.name, raw.decode() if raw not in (b"", b"null") else "{}"


def _parsed(text: str, names: Collection[str] | None = None) -> Parsed | None:
    """The call that an object is; None if it is none.

    Args:
        names: one of them must be called, with arguments; None: any will do.
    """
    try:
        written = msgspec.json.decode(text, type=_Written)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if names is not None and (written.name not in names or not (written.arguments or written.parameters)):
        return None
    return written.call()


def _all_parsed(text: str, name: str) -> list[Parsed]:
    """The calls of a list, or of one object; none if one of them is none.

    Args:
        name: the object is the arguments of this one; "" if names are in it.
    """
    if name:
        return [(name, text)] if _is_json(text) else []
    if text.startswith("{"):
        call = _parsed(text)
        return [call] if call else []
    try:
        return [each.call() for each in msgspec.json.decode(text, type=list[_Written])]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return []


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def _after_space(text: str, begin: int) -> int:
    while begin < len(text) and text[begin] in SPACE:
        begin += 1
    return begin


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of a text that begin a marker, which is not whole there."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
