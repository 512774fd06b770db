"""Calls of tools in a text that comes in pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.gateway.json_end import JsonEnd
from node.gateway.tool_calls import ToolCalls, ToolFormat

TAGS, LIST, BARE = ToolFormat.TAGS, ToolFormat.LIST, ToolFormat.BARE
NAMES = ("f", "get_weather")


def read(format_: ToolFormat, *pieces: str) -> tuple[str, list[tuple[str, str]]]:
    """The text shown, and the calls."""
    numbers = itertools.count()
    parser = ToolCalls(format_, NAMES, lambda: f"id{next(numbers)}")
    shown, calls = "", []
    for piece in pieces:
        text, found = parser.feed(piece)
        shown += text
        calls += found
    text, found = parser.finish()
    calls += found
    assert [call.id for call in calls] == [f"id{i}" for i in range(len(calls))]
    assert parser.found == bool(calls)
    return shown + text, [(call.name, call.arguments) for call in calls]


CASES = [
    (TAGS, "Hello.", "Hello.", []),
    (TAGS, '<tool_call>\n{"name": "f", "arguments": {"a": 1.0}}\n</tool_call>', "", [("f", '{"a": 1.0}')]),
    (
        TAGS,
        'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
        '<tool_call>{"name":"g"}</tool_call>\n',
        "Let me see.\n",
        [("f", "{}"), ("g", "{}")],
    ),
    (
        TAGS,
        '<tool_call>{"name":"f","arguments":{"a":"</tool_call>{\\"}"}}',
        "",
        [("f", '{"a":"</tool_call>{\\"}"}')],
    ),
    (
        TAGS,
        '<tool_call>{"arguments":"{\\"a\\":1}","name":"f"}</tool_call> Done.',
        " Done.",
        [("f", '{"a":1}')],
    ),
    (TAGS, '<tool_call>{"name":"f","arguments":"x"}</tool_call>', "", [("f", '"x"')]),
    (TAGS, '<tool_call>{"nome":"f"}</tool_call>', '<tool_call>{"nome":"f"}</tool_call>', []),
    (TAGS, '<tool_call>{"name":"f","arguments":{"a"', '<tool_call>{"name":"f","arguments":{"a"', []),
    (TAGS, '<tool_call>{"name":"f",}</tool_call>', '<tool_call>{"name":"f",}</tool_call>', []),
    (TAGS, '<tool_call>{"name":""}</tool_call>', '<tool_call>{"name":""}</tool_call>', []),
    (TAGS, "<tool_call>get_weather</tool_call>", "<tool_call>get_weather</tool_call>", []),
    (TAGS, "<tool_ca", "<tool_ca", []),
    (TAGS, "a <tool_call> b", "a <tool_call> b", []),
    (TAGS, '<tool_call><tool_call>{"name":"f"}', "<tool_call>", [("f", "{}")]),
    (TAGS, '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {}}', []),
    (LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "abc"}]', "", [("f", '{"a": [1]}')]),
    (
        LIST,
        'Well [TOOL_CALLS][{"name":"f"},{"name":"g","arguments":{}}]',
        "Well ",
        [("f", "{}"), ("g", "{}")],
    ),
    (LIST, '[TOOL_CALLS]f{"a": "]"}[TOOL_CALLS]g[ARGS]{}', "", [("f", '{"a": "]"}'), ("g", "{}")]),
    (LIST, '[TOOL_CALLS]f[CALL_ID]x9[ARGS]{"a":1}', "", [("f", '{"a":1}')]),
    (LIST, '[TOOL_CALLS]f{"a":}', '[TOOL_CALLS]f{"a":}', []),
    (LIST, "[TOOL_CALLS] I would rather not { }", "[TOOL_CALLS] I would rather not { }", []),
    (LIST, '[TOOL_CALLS][{"name":"f"},{"nome":"g"}]', '[TOOL_CALLS][{"name":"f"},{"nome":"g"}]', []),
    (LIST, '[TOOL_CALLS][{"name":"f"', '[TOOL_CALLS][{"name":"f"', []),
    (LIST, "[TOOL_CALLS]" + "f" * 2000 + "{}", "[TOOL_CALLS]" + "f" * 2000 + "{}", []),
    (LIST, '[TOOL_CALLS]{"name":"f","arguments":{}}', "", [("f", "{}")]),
    (BARE, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        BARE,
        ' \n{"name":"f","arguments":{}}; {"name":"get_weather","parameters":{}}\n',
        "",
        [("f", "{}"), ("get_weather", "{}")],
    ),
    (BARE, '<|python_tag|>{"type":"function","name":"f","parameters":{}}', "", [("f", "{}")]),
    (BARE, '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    (BARE, '{"name": "f"}', '{"name": "f"}', []),
    (BARE, '{"name": "f", "parameters": {}} and more', " and more", [("f", "{}")]),
    (BARE, 'See: {"name": "f", "parameters": {}}', 'See: {"name": "f", "parameters": {}}', []),
    (
        BARE,
        '{"answer": {"a": "}"}} {"name":"f","parameters":{}}',
        '{"answer": {"a": "}"}} {"name":"f","parameters":{}}',
        [],
    ),
    (BARE, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (BARE, "<|pyth", "<|pyth", []),
    (BARE, '{"name": "f", "par', '{"name": "f", "par', []),
    (BARE, " \n ", " \n ", []),
    (BARE, "", "", []),
]


@pytest.mark.parametrize(("format_", "text", "shown", "calls"), CASES)
def test_what_is_found(format_: ToolFormat, text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    assert read(format_, text) == (shown, calls)
    assert read(format_, *text) == (shown, calls)


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    '{"name":"f"',
    ',"arguments":',
    ',"parameters":',
    "{}",
    '{"a":"',
    '"}',
    "}",
    "[",
    "]",
    "{",
    "f",
    " ",
    "\n",
    ";",
    "text",
    "<",
    '\\"',
    '"',
    "\\",
    '{"name":"f","arguments":{}}',
    '{"name":"get_weather","parameters":{"b":[1]}}',
    ",",
    "\u00e9",
)


@given(
    st.sampled_from(ToolFormat),
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_it_does_not_depend_on_the_pieces(format_: ToolFormat, text: str, places: list[int]) -> None:
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    shown, calls = read(format_, text)
    assert read(format_, *pieces) == read(format_, *text) == (shown, calls)
    assert calls or shown == text  # nothing is lost where there is no call
    for name, arguments in calls:
        assert name
        json.loads(arguments)


@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_text_is_held_back_only_while_it_may_become_a_call(text: str) -> None:
    parser = ToolCalls(TAGS, NAMES, lambda: "")
    shown = ""
    for end, char in enumerate(text, 1):
        shown += parser.feed(char)[0]
        if "<" not in text[:end]:
            assert shown == text[:end]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[]\u00e9', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\}', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3) | st.dictionaries(st.text('a"{', max_size=3), JSON, max_size=3), st.data())
def test_where_json_ends(value: object, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    behind = data.draw(st.text('}]"a', max_size=4))
    end, at, whole = JsonEnd(), 0, text + behind
    while True:
        size = data.draw(st.integers(1, 6))
        found = end.feed(whole[at : at + size])
        if found is not None:
            assert at + found == len(text)
            return
        at += size
        assert at < len(text)
