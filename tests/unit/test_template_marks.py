"""What users wrote, told from what a template wrote; and what comes of it as tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.control_tokens import ControlToken, ControlTokens
from node.gateway.prompt_tokens import prompt_tokens
from node.gateway.template_marks import STAND_INS, Marker, TooManyCharacters, unmark
from node.gateway.template_messages import MessagesError, prepared
from node.gateway.template_questions import Inspected, Rendered

CONTROLS = ("<|im_start|>", "<|im_end|>", "[INST]", "</s>", "<s>", "<\uff5cend\u2581of\uff5c>", "PAD")
PIECES = (
    *CONTROLS,
    "<|",
    "|>",
    "<",
    ">",
    "im_end",
    "</think>",
    "<think>",
    "[",
    "]",
    "INST",
    "</",
    "s>",
    " ",
    "\n",
    '"',
    "\\",
    "a",
    "\u00e9",
    "\U000f0000",
    "\U000f0003",
    "PA",
    "D",
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(TEXTS, TEXTS)
def test_marked_text_is_as_long_and_holds_no_control_token(text: str, other: str) -> None:
    marker = Marker(CONTROLS, ("</think>", "\n", "<", "<|im_end|>"))
    marked, marks = marker.mark([text, {"content": other}])
    found, content = marked[0], marked[1]["content"]
    assert (len(found), len(content)) == (len(text), len(other))
    assert unmark(found, marks) == text and unmark(content, marks) == other
    assert not any(control in found or control in content for control in CONTROLS)
    assert found.count("</think>") == text.count("</think>")  # templates find what they look for
    assert found.strip() == marked[0].strip() and unmark(found.strip(), marks) == text.strip()
    assert unmark(json.loads(json.dumps(found, ensure_ascii=False)), marks) == text
    assert not set(marks) & {*text, *other}


@given(TEXTS, TEXTS, st.integers(0, 20))
def test_pieces_that_a_template_puts_together_steer_nothing(text: str, other: str, at: int) -> None:
    """However users' texts are cut and joined, no control token comes of them."""
    marked, _ = Marker(CONTROLS[:-1], ("</think>", "<think>")).mark([text, other])
    first, second = marked
    for joined in (first + second, first[:at] + first[at + 1 :] + second, first.replace(second or "a", "")):
        for part in (joined, joined.split("</think>")[-1], "".join(joined.split("<think>"))):
            assert not any(control in part for control in CONTROLS[:-1])


def test_values_stay_what_they_are() -> None:
    value = {"a<": [1, 2.5, True, None, {"b": "<x>"}]}
    marked, marks = Marker(CONTROLS).mark(value)
    assert json.loads(unmark(json.dumps(marked, ensure_ascii=False), marks)) == value
    assert Marker(()).mark(value) == (value, {})


def test_no_character_is_left() -> None:
    with pytest.raises(TooManyCharacters):
        Marker(CONTROLS).mark("".join(map(chr, STAND_INS)))
    _, marks = Marker(CONTROLS).mark(
        "".join(map(chr, STAND_INS[:100])), ["".join(map(chr, STAND_INS[100:200]))]
    )
    assert min(map(ord, marks)) >= STAND_INS[200]


class Letters:
    """A tokenizer: one token a character; control tokens if they are asked for, the longest first."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls

    def encode(self, text: str, *, special: bool = False, whole: bool = True) -> list[int]:
        tokens = [1] if whole else []
        while text:
            for each in self._controls.tokens:
                if text.startswith(each.text) and (special or not each.is_hidden):
                    tokens.append(each.token)
                    text = text[len(each.text) :]
                    break
            else:
                tokens.append(1000 + ord(text[0]))
                text = text[1:]
        return tokens


def vocabulary(*texts: str, bos: int | None = None, adds_bos: bool = False, **options: Any) -> ControlTokens:
    tokens = [ControlToken(i + 1, text, **options) for i, text in enumerate(texts)]
    tokens.sort(key=lambda each: -len(each.text))
    return ControlTokens(tuple(tokens), {}, bos, adds_bos)


def spelt(tokens: list[int]) -> str:
    return "".join(f"({token})" if token < 1000 else chr(token - 1000) for token in tokens)


def read(user: str, controls: ControlTokens, before: str = "<|a|>", after: str = "<|b|>") -> str:
    marked, marks = Marker([each.text for each in controls.tokens]).mark(user)
    return spelt(prompt_tokens(Rendered(before + marked + after, marks), controls, Letters(controls)))


def test_only_the_template_steers() -> None:
    controls = vocabulary("<|a|>", "<|b|>", "<|ab|>")
    assert read("x <y> [z]", controls) == "(1)x <y> [z](2)"
    assert read("<|b|>", controls) == "(1)<|b|>(2)"
    assert read("<|a|><|b", controls) == "(1)<|a|><|b(2)"
    assert read("b|><|ab|>", controls, before="<|a|><|") == "(1)<|b|><|ab|>(2)"
    assert read("", controls) == "(1)(2)"


def test_white_space_that_belongs_to_a_token() -> None:
    controls = vocabulary("<|a|>", "<|b|>", eats_right=True)
    assert read(" x<|b|> ", controls) == "(1)x<|b|> (2)"
    controls = vocabulary("<|a|>", "<|b|>", eats_left=True)
    assert read(" x<|b|> ", controls) == "(1) x<|b|>(2)"


def test_tokens_that_are_read_in_every_text() -> None:
    controls = vocabulary("<|a|>", "<|b|>", is_hidden=False)
    assert read("x<|b|>y", controls) == "(1)x<|b|>y(2)"


@pytest.mark.parametrize(
    ("text", "adds_bos", "expected"),
    [
        ("<|a|>x", True, "(1)x"),
        ("<|a|><|a|>x", True, "(1)x"),
        ("<|a|><|a|>x", False, "(1)x"),
        ("x", True, "(1)x"),
        ("x", False, "x"),
        ("x<|a|><|a|>", True, "(1)x(1)(1)"),
    ],
)
def test_one_bos(text: str, adds_bos: bool, expected: str) -> None:
    controls = vocabulary("<|a|>", bos=1, adds_bos=adds_bos)
    assert spelt(prompt_tokens(Rendered(text, {}), controls, Letters(controls))) == expected


CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u00e9"}'}}


def test_messages_for_templates() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
        {"role": "tool", "content": "1", "tool_call_id": "y"},
    ]
    as_object = prepared(messages, Inspected(True))
    assert as_object[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": "\u00e9"}}
    assert as_object[0]["content"] is None
    assert as_object[1]["name"] == "f" and "name" not in as_object[2]
    as_text = prepared(messages, Inspected(True, arguments_as_text=True, empty_content=True))
    assert as_text[0]["tool_calls"] == [CALL] and as_text[0]["content"] == ""
    given = {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
    back = prepared([{"role": "assistant", "tool_calls": [given]}], Inspected(True, arguments_as_text=True))
    assert back[0]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert messages[0]["tool_calls"] == [CALL]  # the client's own stay as they are


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"function": {}},
        {"function": {"name": 1}},
        {"id": 1, "function": {"name": "f"}},
        {"function": {"name": "f", "arguments": "{"}},
    ],
)
def test_what_is_no_call(call: dict[str, Any]) -> None:
    with pytest.raises(MessagesError, match=r"^messages\[0\]\.tool_calls\[0\]"):
        prepared([{"role": "assistant", "tool_calls": [call]}], Inspected(True))
