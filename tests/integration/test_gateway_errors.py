"""What goes wrong at the API: refusals, full queues, clients that leave, missing experts, the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from openai import OpenAI

from node.decode.continuous.opening import DecoderSettings
from node.decode.continuous.report import DecoderStats
from node.gateway.speaker import NotReady
from tests.api_node import ApiNode
from tests.model_parts import ModelParts
from tests.open_door import Knocking, Response, ask, request, until

pytestmark = pytest.mark.slow

PROMPT = "def read_config(path):\n    with open(path) as file:\n"
CONTEXT = 1024
LONG = 900
"""Tokens of an answer that nobody waits for."""

SESSIONS, QUEUE = 2, 2


@pytest.fixture(scope="module")
def node(parts: Callable[..., ModelParts], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    model = parts("demo")
    folder = tmp_path_factory.mktemp("api")
    settings = DecoderSettings(sessions=SESSIONS, queue=QUEUE, context=CONTEXT)
    with ApiNode(folder, model.store.root, model.path, model.manifest, settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(node: ApiNode) -> Iterator[OpenAI]:
    with node.client() as made:
        yield made


def stats(node: ApiNode) -> DecoderStats:
    assert node.decoder is not None
    return node.decoder.stats()


def post(node: ApiNode, path: str = "/v1/completions", **fields: Any) -> Response:
    return ask(node.door.bound, f"POST {path} HTTP/1.1", json.dumps({"prompt": PROMPT, **fields}).encode())


def long_answer(node: ApiNode, **fields: Any) -> Knocking:
    """A client that has asked for a long stream."""
    knocking = Knocking(node.door.bound)
    body = {"prompt": PROMPT, "max_tokens": LONG, "stream": True, "logit_bias": {"0": -100}, **fields}
    knocking.send(request("POST /v1/completions HTTP/1.1", json.dumps(body).encode()))
    return knocking


def events(data: bytes) -> list[Any]:
    """Of a stream, whose framing is checked byte by byte."""
    found = data.split(b"\n\n")
    assert found.pop() == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in found)
    return [event[6:].decode() if event == b"data: [DONE]" else json.loads(event[6:]) for event in found]


def test_refusals_name_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="", prompt=PROMPT, temperature=3)
    assert raised.value.param == "temperature" and raised.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="image_url"):
        client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        )
    for field, value in (("prompt", [1, 5_000_000]), ("prompt", [-1]), ("logit_bias", {"5000000": 1})):
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(**{"model": "", "prompt": PROMPT, field: value})  # type: ignore[call-overload]
        assert raised.value.param == field


def test_another_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.completions.create(model="gpt-9", prompt=PROMPT)
    assert raised.value.code == "model_not_found" and "tiny-qwen2moe" in str(raised.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_a_prompt_longer_than_the_context_names_both_numbers(node: ApiNode, client: OpenAI) -> None:
    count = len(node.speaker.tokenizer.encode("x = 1\n" * 1000))
    with pytest.raises(openai.BadRequestError, match=rf"{count} tokens.*{CONTEXT}") as raised:
        client.completions.create(model="", prompt="x = 1\n" * 1000)
    assert raised.value.code == "context_length_exceeded" and raised.value.param == "prompt"


def test_schemas_and_grammars_that_are_none(node: ApiNode) -> None:
    wrong = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    answer = post(
        node, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": wrong}}
    )
    assert answer.status == 400 and answer.error["param"] == "response_format"
    answer = post(node, grammar="root ::= (((")
    assert answer.status == 400 and answer.error["param"] == "grammar"


def test_bodies_that_are_none(node: ApiNode) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'{"prompt": ' + b"[" * 200_000):
        answer = ask(node.door.bound, "POST /v1/completions HTTP/1.1", body)
        assert answer.status == 400 and answer.error["type"] == "invalid_request_error"


def test_a_stream_is_framed_as_openais(node: ApiNode) -> None:
    answer = post(node, stream=True, max_tokens=3, temperature=0, stream_options={"include_usage": True})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(answer.body)
    assert done == "[DONE]" and usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert all(chunk["usage"] is None for chunk in chunks)
    *chunks, done = events(post(node, stream=True, max_tokens=3).body)
    assert done == "[DONE]" and not any("usage" in chunk for chunk in chunks)


def test_who_leaves_frees_its_place_at_once(node: ApiNode, client: OpenAI) -> None:
    answered = len(node.answered)
    streaming = long_answer(node)
    streaming.until(b"\n\n")
    whole = long_answer(node, stream=False)
    until(lambda: stats(node).active == 2)
    before = stats(node).left
    streaming.socket.close()
    whole.socket.close()
    begun = time.monotonic()
    until(lambda: stats(node).active == 0)
    assert time.monotonic() - begun < 20 and stats(node).left == before + 2
    assert [each.finish for each in node.answered[answered:]] == ["left", "left"]
    assert client.completions.create(model="", prompt=PROMPT, max_tokens=2).choices[0].text


def test_a_stop_string_frees_its_place(node: ApiNode, client: OpenAI) -> None:
    client.completions.create(model="", prompt=PROMPT, max_tokens=LONG, temperature=0, stop=" ")
    until(lambda: stats(node).active == 0)
    assert node.answered[-1].finish == "stop"


def test_a_full_queue(node: ApiNode, client: OpenAI) -> None:
    with ExitStack() as ends:
        for _ in range(SESSIONS + QUEUE):
            ends.enter_context(long_answer(node))
        until(lambda: (stats(node).active, stats(node).waiting) == (SESSIONS, QUEUE))
        with pytest.raises(openai.RateLimitError) as raised:
            client.completions.create(model="", prompt=PROMPT)
        assert int(raised.value.response.headers["retry-after"]) >= 1
        assert raised.value.code == "queue_full"
        answer = post(node, stream=True)
        assert answer.status == 429 and answer.error["code"] == "queue_full"
    until(lambda: (stats(node).active, stats(node).waiting) == (0, 0))


def test_a_day_that_has_cost_as_much_as_it_may(node: ApiNode, client: OpenAI) -> None:
    refused = stats(node).refused
    node.live.port.purse.day = 0
    try:
        with pytest.raises(openai.APIStatusError, match="today's budget of 0 credits is spent") as raised:
            client.completions.create(model="", prompt=PROMPT)
        assert (raised.value.status_code, raised.value.code) == (402, "insufficient_quota")
        assert raised.value.type == "insufficient_quota"
        assert 0 < int(raised.value.response.headers["retry-after"]) <= 86_400
        answer = post(node, stream=True)
        assert answer.status == 402 and answer.error["code"] == "insufficient_quota"
    finally:
        node.live.port.purse.day = None
    assert stats(node).refused == refused + 2
    assert client.completions.create(model="", prompt=PROMPT, max_tokens=2).choices[0].text


def test_while_nobody_answers(node: ApiNode, client: OpenAI) -> None:
    answering = node.standing
    try:
        node.standing = NotReady("tiny", "reading the trunk, 40 %")
        with pytest.raises(
            openai.InternalServerError, match="tiny is not ready: reading the trunk, 40 %"
        ) as raised:
            client.completions.create(model="tiny", prompt=PROMPT)
        assert raised.value.status_code == 503 and raised.value.code == "model_loading"
        assert raised.value.response.headers["retry-after"] == "2"
        (model,) = client.models.list().data
        assert model.id == "tiny" and model.panal["ready"] is False  # type: ignore[attr-defined]
        health = ask(node.door.bound, "GET /health HTTP/1.1")
        assert health.status == 503 and json.loads(health.body)["status"] == "loading"
        node.standing = NotReady("")
        with pytest.raises(openai.NotFoundError, match="runs no model"):
            client.completions.create(model="tiny", prompt=PROMPT)
        assert client.models.list().data == []
    finally:
        node.standing = answering
    health = ask(node.door.bound, "GET /health HTTP/1.1")
    assert health.status == 200 and json.loads(health.body)["status"] == "ok"


def test_experts_that_go_away(node: ApiNode, client: OpenAI) -> None:
    with long_answer(node) as knocking:
        assert knocking.head()[0] == 200
        knocking.chunk()
        node.swarm.kill(1)
        data = b"".join(iter(knocking.chunk, b""))
    error = events(data[data.rindex(b"data: ") :])[0]["error"]
    assert error["code"] == "model_incomplete" and "layer" in error["message"] and b"[DONE]" not in data
    assert node.answered[-1].finish == "failed" and "layer" in node.answered[-1].error
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="", prompt="nothing of it is known: " + PROMPT, max_tokens=2)
    assert raised.value.status_code == 503 and raised.value.code == "model_incomplete"
    assert "retry-after" in raised.value.response.headers
    node.swarm.restart(1)

    def works() -> bool:
        return post(node, max_tokens=2).status == 200

    until(works, 30)


def test_it_ends_while_it_streams(node: ApiNode) -> None:
    """The last one: afterwards the node is gone."""
    with long_answer(node) as knocking:
        assert knocking.head()[0] == 200
        knocking.chunk()
        begun = time.monotonic()
        node.end()
        assert time.monotonic() - begun < 20
        data = b"".join(iter(knocking.chunk, b""))
    error = events(data[data.rindex(b"data: ") :])[0]["error"]
    assert error["code"] == "ending"
