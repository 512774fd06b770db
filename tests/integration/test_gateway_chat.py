"""Chats by OpenAI's own client, over a swarm of processes, with a template as Hermes and Qwen have one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import trio
from msgspec import structs
from openai import OpenAI

from node.engine.library import Library
from node.engine.sampler import SamplingSettings
from node.gateway.chat_template import ChatTemplate
from node.gateway.stop_strings import StopStrings
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.store import Store
from tests.api_node import api_process, client_of
from tests.model_parts import ModelParts
from tests.plain_answers import PlainAnswers, plain_answers

pytestmark = pytest.mark.slow

TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n' }}{{- call.function | tojson }}{{- '\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

CONTEXT = 512
OPENAI = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CHAT = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "A function that reads a config file, please."},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def model(
    library: Library, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelParts]:
    """The demo model with a template in it."""
    folder = tmp_path_factory.mktemp("model")
    path = folder / "chatty.gguf"
    file = open_model(demo_model)
    with MappedModel(file) as mapped:
        tensors = [
            TensorToWrite(name, tensor.shape, tensor.type, mapped.tensor_view(name))
            for name, tensor in file.tensors.items()
        ]
        write_gguf(path, {**file.metadata, "tokenizer.chat_template": GGUFValue.string(TEMPLATE)}, tensors)
        del tensors
    opened = ModelParts(library, Store(folder / "store"), path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(model: ModelParts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Of four processes: three serve a third of the experts each, one answers."""
    folder = tmp_path_factory.mktemp("api")
    lines = f"context = {CONTEXT}\nsessions = 4"
    with (
        api_process(folder, model.store.root, model.path, model.manifest, backbone=lines) as url,
        client_of(url) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def plain(model: ModelParts) -> Iterator[PlainAnswers]:
    with plain_answers(model.library, model.path, n_ctx=CONTEXT) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompt_of(plain: PlainAnswers) -> Iterator[Callable[..., list[int]]]:
    """The tokens of a chat."""
    template = ChatTemplate.from_model(plain.model)
    assert template is not None and template.has_tools and template.stops == ()

    def tokens(messages: list[Any], tools: list[Any] | None = None) -> list[int]:
        async def render() -> list[int]:
            assert template is not None
            return await template.tokens(messages, tools=tools)

        return trio.run(render)

    yield tokens
    template.close()


def chat(client: OpenAI, messages: Any = CHAT, **options: Any) -> Any:
    """The next message of a chat with the node's model."""
    return client.chat.completions.create(model="", messages=messages, **options)


Prompts = Callable[..., list[int]]


def test_greedy(client: OpenAI, plain: PlainAnswers, prompt_of: Prompts) -> None:
    expected = plain.answer(prompt_of(CHAT), 20)
    found = chat(client, max_completion_tokens=20, temperature=0)
    assert found.object == "chat.completion" and found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content == expected.text
    assert found.choices[0].message.tool_calls is None
    assert found.usage.prompt_tokens == len(prompt_of(CHAT))
    assert found.usage.panal["tokens"] == found.usage.completion_tokens == len(expected.tokens)


def test_seeded_and_streamed(client: OpenAI, plain: PlainAnswers, prompt_of: Prompts) -> None:
    for seed in (3, 4):
        expected = plain.answer(prompt_of(CHAT), 16, structs.replace(OPENAI, seed=seed))
        assert chat(client, max_tokens=16, seed=seed).choices[0].message.content == expected.text
        chunks = [*chat(client, max_tokens=16, seed=seed, stream=True)]
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
        assert chunks[-1].choices[0].finish_reason in ("length", "stop") and chunks[-1].usage is None
        assert chunks[-1].panal["tokens"] == len(expected.tokens)


def test_logprobs(client: OpenAI, plain: PlainAnswers, prompt_of: Prompts) -> None:
    expected = plain.answer(prompt_of(CHAT), 12, top=4)
    found = chat(client, max_tokens=12, temperature=0, logprobs=True, top_logprobs=4)
    content = found.choices[0].logprobs.content
    assert [each.logprob for each in content] == [each.logprob for each in expected.logprobs]
    assert b"".join(bytes(each.bytes) for each in content) == expected.text.encode()
    for token, each in zip(content, expected.logprobs, strict=True):
        assert [top.logprob for top in token.top_logprobs] == [logprob for _, logprob in each.top]
    streamed = list[Any]()
    for chunk in chat(client, max_tokens=12, temperature=0, logprobs=True, top_logprobs=4, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert streamed == content


def test_stop_and_schema(client: OpenAI, plain: PlainAnswers, prompt_of: Prompts) -> None:
    text = plain.answer(prompt_of(CHAT), 20).text
    stop = text[8:11]
    found = chat(client, max_tokens=20, temperature=0, stop=[stop]).choices[0]
    assert found.message.content == StopStrings([stop]).feed(text) and found.finish_reason == "stop"
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    found = chat(client, max_tokens=20, seed=1, response_format=format_).choices[0]
    assert json.loads(found.message.content) in ("yes", "no") and found.finish_reason == "stop"
    format_["json_schema"]["schema"] = schema  # type: ignore[index]
    grammar = plain.model.grammars.of_schema(schema)
    expected = plain.answer(prompt_of(CHAT), 20, structs.replace(OPENAI, seed=9, grammar=grammar))
    found = chat(client, max_tokens=20, seed=9, response_format=format_).choices[0]
    assert found.message.content == expected.text


def test_the_second_turn_reuses_the_first(client: OpenAI) -> None:
    messages: list[Any] = [*CHAT, {"role": "user", "content": "Explain each line at length. " * 8}]
    first = chat(client, messages, max_tokens=24, temperature=0)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    second = chat(client, messages, max_tokens=4, temperature=0)
    computed = second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens > 100 and computed <= 32, computed


def test_a_call_that_the_model_writes(client: OpenAI, prompt_of: Prompts) -> None:
    grammar = (
        'root ::= "Let me see.\\n<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": '
        '{\\"city\\": \\"" ("Oslo" | "Lima") "\\"}}\\n</tool_call>"'
    )
    options = {"tools": [WEATHER, TIME], "max_tokens": 80, "extra_body": {"grammar": grammar}}
    found = chat(client, **options)
    choice = found.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see.\n"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")
    assert found.usage.prompt_tokens == len(prompt_of(CHAT, [WEATHER, TIME]))
    chunks = [*chat(client, stream=True, **options)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see.\n"
    (delta,) = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
    assert delta.index == 0 and delta.id and delta.function.name == "weather"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    # What was called and what came of it goes back in.
    messages: list[Any] = [
        *CHAT,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    assert chat(client, messages, tools=[WEATHER], max_tokens=2).choices[0].message.content is not None


def test_a_call_that_must_come(client: OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        for stream in (False, True):
            found = chat(
                client, tools=[WEATHER, TIME][: 1 if choice == "required" else 2], tool_choice=choice,
                max_tokens=100, seed=2, stream=stream, logit_bias=NO_BLANKS,
            )  # fmt: skip
            if stream:
                chunks = [*found]
                (call,) = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
                finish = chunks[-1].choices[0].finish_reason
            else:
                (call,), finish = found.choices[0].message.tool_calls, found.choices[0].finish_reason
                assert found.choices[0].message.content is None
            assert finish == "tool_calls" and call.function.name == "weather"
            assert json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")


def test_no_call_although_there_are_tools(client: OpenAI, prompt_of: Prompts) -> None:
    found = chat(client, tools=[WEATHER], tool_choice="none", max_tokens=2)
    assert found.usage.prompt_tokens == len(prompt_of(CHAT))


def test_templates_that_refuse(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, [{"role": "user", "content": "x " * 2000}])
    assert raised.value.code == "context_length_exceeded" and raised.value.param == "messages"


NO_BLANKS: dict[str, int] = {}
"""White space that JSON may have without end; filled by the fixture below."""


@pytest.fixture(scope="module", autouse=True)
def no_blanks(plain: PlainAnswers) -> None:
    for token in range(plain.model.n_vocab):
        piece = plain.tokenizer.piece(token)
        if piece and not piece.strip():
            NO_BLANKS[str(token)] = -100
