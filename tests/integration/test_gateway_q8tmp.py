"""The API by OpenAI's own client, over a swarm of processes: equal to plain decoding of the whole file."""

from __future__ import annotations

import json
from pathlib import Path
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs
from openai import OpenAI

from node.engine.sampler import SamplingSettings
from tests.api_node import api_process, client_of
from tests.model_parts import ModelParts
from tests.plain_answers import PlainAnswers, plain_answers

pytestmark = pytest.mark.slow

PROMPT = "def read_config(path):\n    with open(path) as file:\n"
CONTEXT = 256
OPENAI = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""OpenAI's defaults."""


@pytest.fixture(scope="module")
def url(parts: Callable[..., ModelParts], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of four processes: three serve a third of the experts each, one answers."""
    model = parts(Path('/work/shared/models/tiny-qwen3moe-32e4.Q8_0.gguf'))
    lines = f"context = {CONTEXT}\nsessions = 4\nqueue = 8"
    folder = tmp_path_factory.mktemp("api")
    with api_process(folder, model.store.root, model.path, model.manifest, backbone=lines) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(parts: Callable[..., ModelParts]) -> Iterator[PlainAnswers]:
    model = parts(Path('/work/shared/models/tiny-qwen3moe-32e4.Q8_0.gguf'))
    with plain_answers(model.library, model.path, n_ctx=CONTEXT) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with client_of(url) as made:
        yield made


def complete(client: OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    """A plain completion of the node's model."""
    return client.completions.create(model="tiny-qwen3moe-32e4.Q8_0", prompt=prompt, **options)


def blanks(plain: PlainAnswers) -> list[int]:
    """Tokens that are white space and nothing else."""
    pieces = [(token, plain.tokenizer.piece(token)) for token in range(plain.model.n_vocab)]
    return [token for token, piece in pieces if piece and not piece.strip()]


def test_greedy(client: OpenAI, plain: PlainAnswers) -> None:
    expected = plain.answer(PROMPT, 24)
    found = complete(client, max_tokens=24, temperature=0)
    assert found.choices[0].text == expected.text
    assert found.choices[0].finish_reason == ("stop" if expected.ended else "length")
    usage = found.usage
    assert usage.prompt_tokens == len(plain.tokenizer.encode(PROMPT))
    assert usage.completion_tokens == len(expected.tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    ledger = usage.panal
    assert ledger["tokens"] == len(expected.tokens) and ledger["trips"] > 0 and ledger["bytes_out"] > 0
    assert ledger["slowest_peer"].startswith("12D3KooW") and ledger["waited"] > 0


SAMPLINGS: dict[str, dict[str, Any]] = {
    "openai's defaults": {},
    "cool": {"temperature": 0.6},
    "nucleus": {"temperature": 0.9, "top_p": 0.8},
    "llama.cpp's": {"temperature": 0.8, "extra_body": {"top_k": 40, "min_p": 0.05}, "top_p": 0.95},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    "repeat": {"extra_body": {"repeat_penalty": 1.3, "repeat_last_n": 16}},
    "bias": {"logit_bias": {"220": -100, "198": 3.5}},
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_seeded(client: OpenAI, plain: PlainAnswers, name: str) -> None:
    options = SAMPLINGS[name]
    fields: dict[str, Any] = {**options, **options.get("extra_body", {})}
    fields.pop("extra_body", None)
    if "logit_bias" in fields:
        fields["logit_bias"] = tuple(sorted((int(key), value) for key, value in fields["logit_bias"].items()))
    if "presence_penalty" in fields:
        fields["penalty_last_n"] = CONTEXT
    if "repeat_last_n" in fields:
        fields["penalty_last_n"] = fields.pop("repeat_last_n")
    expected = plain.answer(PROMPT, 20, structs.replace(OPENAI, **fields, seed=11))
    found = complete(client, max_tokens=20, seed=11, **options)
    assert found.choices[0].text == expected.text
    assert found.usage.completion_tokens == len(expected.tokens)


def test_several_answers_have_seeds_one_after_another(client: OpenAI, plain: PlainAnswers) -> None:
    found = complete(client, max_tokens=12, seed=5, n=4)
    for i, choice in enumerate(sorted(found.choices, key=lambda each: each.index)):
        sampling = structs.replace(OPENAI, seed=5 + i)
        assert choice.text == plain.answer(PROMPT, 12, sampling).text
    assert found.usage.prompt_tokens == len(plain.tokenizer.encode(PROMPT))
    assert len(found.usage.panal["choices"]) == 4


def test_without_a_seed_answers_differ(client: OpenAI) -> None:
    texts = {complete(client, max_tokens=12).choices[0].text for _ in range(4)}
    assert len(texts) > 1


def test_logprobs(client: OpenAI, plain: PlainAnswers) -> None:
    expected = plain.answer(PROMPT, 16, top=3)
    found = complete(client, max_tokens=16, temperature=0, logprobs=3).choices[0].logprobs
    # To the last bit: the very logits of plain decoding.
    assert found.token_logprobs == [each.logprob for each in expected.logprobs]
    assert "".join(found.tokens) == expected.text
    for top, each in zip(found.top_logprobs, expected.logprobs, strict=True):
        assert sorted(top.values(), reverse=True)[:3] == [logprob for _, logprob in each.top]
    begins = [len("".join(found.tokens[:i])) for i in range(len(found.tokens))]
    assert found.text_offset == begins
    assert complete(client, max_tokens=2, temperature=0, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_a_stream_says_the_same(client: OpenAI, plain: PlainAnswers) -> None:
    expected = plain.answer(PROMPT, 20, top=1)
    texts, offsets, chunks = "", list[int](), []
    for chunk in complete(
        client, max_tokens=20, temperature=0, logprobs=1, stream=True, stream_options={"include_usage": True}
    ):
        chunks.append(chunk)
        for choice in chunk.choices:
            texts += choice.text
            offsets += choice.logprobs.text_offset if choice.logprobs else []
    assert texts == expected.text and len(offsets) == len(expected.tokens) and offsets == sorted(offsets)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(expected.tokens)
    assert chunks[-1].usage.panal == chunks[-2].panal
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "length"
    ]


def test_stop_strings(client: OpenAI, plain: PlainAnswers) -> None:
    text = plain.answer(PROMPT, 30).text
    for size in (1, 3, 7):
        for begin in (4, 11, 20):
            stop = text[begin : begin + size]
            found = complete(client, max_tokens=30, temperature=0, stop=[stop, "never that"]).choices[0]
            assert found.text == text[: text.index(stop)] and found.finish_reason == "stop"
            streamed = complete(client, max_tokens=30, temperature=0, stop=stop, stream=True)
            assert "".join(chunk.choices[0].text for chunk in streamed) == text[: text.index(stop)]
    found = complete(client, max_tokens=30, temperature=0, stop="never that").choices[0]
    assert found.text == text


def test_a_schema(client: OpenAI, plain: PlainAnswers) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "colour": {"enum": ["red", "green"]}},
        "required": ["ok", "colour"],
        "additionalProperties": False,
    }
    format_ = {"type": "json_schema", "json_schema": {"name": "light", "schema": schema}}
    grammar = plain.model.grammars.of_schema(schema)
    # JSON may have white space without end between its parts, and so small a model writes it.
    bias = dict.fromkeys(blanks(plain), -100.0)
    for seed in (1, 2, 3):
        found = complete(
            client,
            max_tokens=60,
            seed=seed,
            logit_bias={str(token): value for token, value in bias.items()},
            extra_body={"response_format": format_},
        )
        value = json.loads(found.choices[0].text)
        assert set(value) == {"ok", "colour"} and value["colour"] in ("red", "green")
        sampling = structs.replace(OPENAI, seed=seed, grammar=grammar, logit_bias=tuple(sorted(bias.items())))
        assert found.choices[0].text == plain.answer(PROMPT, 60, sampling).text


def test_a_grammar(client: OpenAI) -> None:
    found = complete(client, max_tokens=30, extra_body={"grammar": 'root ::= ("tick" | "tock")'})
    assert found.choices[0].text in ("tick", "tock") and found.choices[0].finish_reason == "stop"


def test_prompts_of_every_kind(client: OpenAI, plain: PlainAnswers) -> None:
    other = "import os\n"
    texts = [plain.answer(prompt, 8).text for prompt in (PROMPT, other)]
    tokens = [plain.tokenizer.encode(prompt) for prompt in (PROMPT, other)]
    several: list[Any] = [[PROMPT, other], tokens]
    for prompts in several:
        found = complete(client, prompts, max_tokens=8, temperature=0)
        assert [choice.text for choice in found.choices] == texts
        assert found.usage.prompt_tokens == sum(map(len, tokens))
    assert complete(client, tokens[1], max_tokens=8, temperature=0).choices[0].text == texts[1]
    single: list[Any] = [PROMPT, tokens[0]]
    for prompt in single:
        echoed = complete(client, prompt, max_tokens=8, temperature=0, echo=True, n=2)
        assert [choice.text for choice in echoed.choices] == [PROMPT + texts[0]] * 2
    streamed = complete(client, PROMPT, max_tokens=8, temperature=0, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == PROMPT + texts[0]


def test_more_prompts_than_places(client: OpenAI, plain: PlainAnswers) -> None:
    prompts = [f"{'x' * i} = {i}\n" for i in range(1, 9)]
    found = complete(client, prompts, max_tokens=6, temperature=0)
    assert [choice.text for choice in found.choices] == [plain.answer(each, 6).text for each in prompts]


def test_many_at_once(url: str, plain: PlainAnswers) -> None:
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        with client_of(url) as client:
            stream = complete(client, f"class A{number}:\n", max_tokens=16, seed=number, stream=True)
            found[number] = "".join(chunk.choices[0].text for chunk in stream)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in found.items():
        sampling = structs.replace(OPENAI, seed=number)
        assert text == plain.answer(f"class A{number}:\n", 16, sampling).text
    assert len(found) == 8


def test_the_context_ends_an_answer(client: OpenAI, plain: PlainAnswers) -> None:
    tokens = plain.tokenizer.encode("x = 1\n" * 100)[: CONTEXT - 5]
    found = complete(client, tokens, max_tokens=50, temperature=0)
    assert found.choices[0].finish_reason == "length" and found.usage.completion_tokens == 6
    assert found.choices[0].text == plain.answer(tokens, 6).text


def test_guesses_end_no_answer_early(client: OpenAI, plain: PlainAnswers) -> None:
    tokens = plain.answer(PROMPT, 40).tokens
    for limit in (7, 13, 14, 15, 18, 20, 21, 33, 39):
        found = complete(client, max_tokens=limit, temperature=0)
        assert found.usage.completion_tokens == limit and found.usage.panal["stopped"] == "length"
        assert found.choices[0].text.encode() == b"".join(map(plain.tokenizer.piece, tokens[:limit]))


def test_server_timing(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="", prompt=PROMPT, max_tokens=4)
    timing = raw.headers["server-timing"]
    for name in ("queue;dur=", "prompt;dur=", "decode;dur=", "wait;dur=", 'trips"'):
        assert name in timing
    with client.completions.with_streaming_response.create(
        model="", prompt=PROMPT, max_tokens=4, stream=True
    ) as streamed:
        assert "prompt;dur=" in streamed.headers["server-timing"]
        assert streamed.headers["content-type"].startswith("text/event-stream")


def test_models(client: OpenAI, parts: Callable[..., ModelParts]) -> None:
    model_id = parts(Path('/work/shared/models/tiny-qwen3moe-32e4.Q8_0.gguf')).stored.model_id
    (model,) = client.models.list().data
    assert model.id == "tiny-qwen3moe-32e4.Q8_0" and model.owned_by == "panal"
    for name in (model.id, f"{model.id}.gguf", model_id, model_id[:8]):
        assert client.models.retrieve(name).id == model.id
        assert client.completions.create(model=name, prompt="x", max_tokens=1).model == model.id
