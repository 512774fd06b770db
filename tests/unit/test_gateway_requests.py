"""Bodies of requests: what they come to, and which field is named when they are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.sampler import SamplingSettings
from node.gateway.bodies import ChatBody, CompletionBody, decode
from node.gateway.requests import (
    ChatWanted,
    CompletionWanted,
    Shape,
    Tools,
    chat_wanted,
    completion_wanted,
)
from node.gateway.sampling import SEEDS, sampling_of, seed_of
from node.http.refusals import Refusal

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> ChatWanted:
    return chat_wanted(decode(json.dumps({"messages": [USER], **fields}).encode(), ChatBody))


def complete(**fields: Any) -> CompletionWanted:
    return completion_wanted(decode(json.dumps({"prompt": "once", **fields}).encode(), CompletionBody))


def sampling(wanted: ChatWanted | CompletionWanted, seed: int = 7) -> SamplingSettings:
    return sampling_of(wanted.body, seed, grammar="", n_ctx=4096)


def test_defaults_are_openais() -> None:
    for wanted in (chat(), complete()):
        assert sampling(wanted) == SamplingSettings(
            temperature=1.0, seed=7, top_k=0, top_p=1.0, min_p=0.0, penalty_last_n=64
        )
        assert (wanted.n, wanted.stream, wanted.stops, wanted.top_logprobs) == (1, False, (), None)
        assert wanted.shape == Shape() and wanted.model == wanted.user == ""
    assert chat().limit is None and complete().limit == 16


def test_null_is_the_default() -> None:
    names = [*ChatBody.__struct_fields__]
    names.remove("messages")
    assert chat(**dict.fromkeys(names)) == chat_wanted(ChatBody(messages=[USER]))
    names = [*CompletionBody.__struct_fields__]
    names.remove("prompt")
    assert complete(**dict.fromkeys(names)) == completion_wanted(CompletionBody(prompt="once"))


def test_every_sampling_field_arrives() -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -2,
        "repeat_penalty": 1.1,
        "repeat_last_n": 33,
        "logit_bias": {"50": 100, "7": -1.5},
    }
    for wanted in (chat(**fields), complete(**fields)):
        assert sampling_of(wanted.body, 3, grammar="root ::= x", n_ctx=100) == SamplingSettings(
            temperature=0.5,
            seed=3,
            top_k=10,
            top_p=0.9,
            min_p=0.1,
            presence_penalty=0.25,
            frequency_penalty=-2.0,
            repeat_penalty=1.1,
            penalty_last_n=33,
            logit_bias=((7, -1.5), (50, 100.0)),
            grammar="root ::= x",
        )


def test_penalties_of_openai_look_at_all_there_is() -> None:
    assert sampling_of(chat(presence_penalty=1).body, 0, grammar="", n_ctx=1000).penalty_last_n == 1000
    assert sampling_of(chat(frequency_penalty=1).body, 0, grammar="", n_ctx=1 << 20).penalty_last_n == 65536
    assert sampling_of(chat(repeat_penalty=1.1).body, 0, grammar="", n_ctx=1000).penalty_last_n == 64
    assert sampling_of(chat(repeat_last_n=-1).body, 0, grammar="", n_ctx=1000).penalty_last_n == 1000
    assert sampling(chat(top_k=-1)).top_k == 0


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 7), st.integers(0, SEEDS - 1))
def test_seeds_follow_one_another_and_are_never_llamas_random_one(seed: int, i: int, drawn: int) -> None:
    found = seed_of(chat(seed=seed).body, i, drawn)
    assert 0 <= found < SEEDS
    if seed == -1:
        assert found == (drawn + i) % SEEDS
    elif 0 <= seed < SEEDS - 8:
        assert found == seed + i


def test_a_seed_not_given_is_drawn() -> None:
    assert seed_of(chat().body, 2, 40) == 42
    assert seed_of(chat(seed=5).body, 2, 40) == 7
    assert seed_of(chat(seed=0).body, 0, 40) == 0


def test_limits() -> None:
    assert chat(max_tokens=5).limit == 5
    assert chat(max_tokens=5, max_completion_tokens=6).limit == 6
    assert complete(max_tokens=5).limit == 5


def test_stops() -> None:
    assert chat(stop="\n").stops == ("\n",)
    assert chat(stop=["a", "b", "c", "d", "e"]).stops == ("a", "b", "c", "d", "e")
    assert chat(stop=[]).stops == ()


def test_logprobs() -> None:
    assert chat(logprobs=True).top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).top_logprobs == 20
    assert chat(logprobs=False).top_logprobs is None
    assert complete(logprobs=0).top_logprobs == 0
    assert complete(logprobs=5).top_logprobs == 5


def test_shapes() -> None:
    assert chat(response_format={"type": "text"}).shape == Shape()
    assert chat(response_format={"type": "json_object"}).shape == Shape("json_object")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    assert chat(response_format=format_).shape == Shape("json_schema", schema=schema)
    assert complete(grammar="root ::= x").shape == Shape("grammar", grammar="root ::= x")


def test_streams() -> None:
    assert not chat(stream=True).include_usage
    assert chat(stream=True, stream_options={"include_usage": True, "unheard": 1}).include_usage


def test_what_is_unknown_is_ignored() -> None:
    assert chat(store=True, metadata={"a": "b"}, service_tier="auto", made_up=[1]) == chat()


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [3]], ["a", [3]]),
        ("", [""]),
    ],
)
def test_prompts(prompt: object, found: list[object]) -> None:
    assert list(complete(prompt=prompt).prompts) == found


def test_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    wanted = chat(
        messages=[
            {"role": "developer", "content": "be brief", "name": "x"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "tool_calls": [call], "audio": None},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    assert wanted.messages == [
        {"role": "system", "content": "be brief", "name": "x"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "no"},
    ]


def test_tools() -> None:
    assert chat().tools == Tools()
    assert chat(tools=[TOOL]).tools == Tools((TOOL,), "auto")
    assert chat(tools=[TOOL], tool_choice="none").tools.choice == "none"
    assert chat(tools=[TOOL], tool_choice="required").tools.choice == "required"
    named = {"type": "function", "function": {"name": "weather"}}
    assert chat(tools=[TOOL], tool_choice=named).tools == Tools(
        (TOOL,), "weather", named=True, raw_choice=named
    )
    assert not chat(tools=[TOOL], parallel_tool_calls=False).tools.several


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 0 for i in range(2000)}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [str(i) for i in range(20)]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
        ),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar"),
        ({"model": 3}, "model"),
        ({"user": "x" * 1000}, "user"),
    ],
)
def test_what_is_wrong_names_its_field(fields: dict[str, Any], param: str) -> None:
    for make in (chat, complete):
        with pytest.raises(Refusal) as raised:
            make(**fields)
        refusal = raised.value
        assert refusal.status == 400 and refusal.kind == "invalid_request_error"
        assert refusal.param is not None and refusal.param.partition("[")[0] == param
        assert param in refusal.message and "\n" not in refusal.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": "weather"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_is_wrong_in_a_chat(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as raised:
        chat(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert param in raised.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [[1.5]]}, "prompt[0]"),
        ({"prompt": ["x"] * 65}, "prompt"),
        ({"prompt": ["x"] * 64, "n": 3}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_what_is_wrong_in_a_completion(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as raised:
        complete(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_picture_is_named() -> None:
    with pytest.raises(Refusal, match="image_url"):
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"3", b'{"messages": [{"role": "user", "content": "\xff"}]}', b"\x00", b'{"x": NaN}',
     b'{"messages": [{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"],
)  # fmt: skip
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(Refusal) as raised:
        decode(data, ChatBody)
    assert raised.value.status == 400


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_field_is_taken_or_refused(data: st.DataObject) -> None:
    for body, make in ((ChatBody, chat), (CompletionBody, complete)):
        field = data.draw(st.sampled_from(body.__struct_fields__))
        try:
            wanted = make(**{field: data.draw(JSON)})
        except Refusal as refusal:
            assert refusal.status == 400 and refusal.param is not None
            assert refusal.param.partition("[")[0].partition(".")[0] == field
        else:
            sampling(wanted, seed_of(wanted.body, 0, 1))
