"""Answers in OpenAI's shapes, as OpenAI's own client types read them."""

from __future__ import annotations

import json
import math
from typing import Any

from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from node.decode.continuous.report import AnswerReport
from node.decode.ledger import TripsLedger
from node.engine.logprobs import Logprob
from node.gateway.answers import DONE, Choice, Heading, event
from node.gateway.logprobs import NEVER, chat_logprobs, completion_logprobs
from node.gateway.naming import answers_to
from node.gateway.speaker import NotReady
from node.gateway.usage import Cost, ledger, server_timing, usage

PIECES = {1: b"one", 2: b" \xf0\x9f", 3: b"\x90\x9d", 4: b"one"}
CHAT = Heading(chat=True, id="chatcmpl-1", created=5, model="m", fingerprint="f")
PLAIN = Heading(chat=False, id="cmpl-1", created=5, model="m", fingerprint="f")


def report(**changed: Any) -> AnswerReport:
    fields = {
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "tokens": 6,
        "stopped": "end",
        "queued": 0.25,
        "prompt_seconds": 0.5,
        "seconds": 1.5,
        "trips": TripsLedger(trips=8, passes=4, tokens=9, waited=0.75, computed_home=0.125).report(),
    }
    return AnswerReport(**{**fields, **changed})


def test_a_whole_chat() -> None:
    logprobs = chat_logprobs([(0, Logprob(1, -0.5, ((1, -0.5), (4, -math.inf))))], PIECES.__getitem__)
    choice = Choice(0, "one", logprobs=logprobs, finish="stop")
    told = CHAT.whole([choice], usage([Cost(0, 6, report())]))
    read = ChatCompletion.model_validate_json(json.dumps(told), strict=True)
    assert read.choices[0].message.content == "one" and read.choices[0].finish_reason == "stop"
    assert read.choices[0].logprobs is not None and read.choices[0].logprobs.content is not None
    token = read.choices[0].logprobs.content[0]
    assert (token.token, token.logprob, token.bytes) == ("one", -0.5, [111, 110, 101])
    assert token.top_logprobs[1].logprob == NEVER


def test_tool_calls() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told = CHAT.whole([Choice(0, calls=[call], finish="tool_calls")], usage([Cost(0, 6, report())]))
    message = ChatCompletion.model_validate_json(json.dumps(told), strict=True).choices[0].message
    assert message.content is None and message.tool_calls is not None
    assert message.tool_calls[0].id == "call_1"


def test_a_whole_completion() -> None:
    told = PLAIN.whole([Choice(0, "one", finish="length")], usage([Cost(0, 6, report())]))
    read = Completion.model_validate_json(json.dumps(told), strict=True)
    assert read.choices[0].text == "one" and read.choices[0].logprobs is None


def test_logprobs_of_completions() -> None:
    placed = [
        (0, Logprob(1, -0.5, ((1, -0.5), (4, -0.75)))),
        (3, Logprob(2, -2.0, ((3, -1.0),))),
        (3, Logprob(3, -3.0, ((3, -3.0),))),
    ]
    told = completion_logprobs(placed, PIECES.__getitem__, top=2)
    assert told["tokens"] == ["one", "bytes:\\x20\\xf0\\x9f", "bytes:\\x90\\x9d"]
    assert told["token_logprobs"] == [-0.5, -2.0, -3.0]
    assert told["text_offset"] == [0, 3, 3]
    # Two tokens may have one name: the likelier counts. And the chosen one is there in any case.
    assert told["top_logprobs"][0] == {"one": -0.5}
    assert told["top_logprobs"][1] == {"bytes:\\x90\\x9d": -1.0, "bytes:\\x20\\xf0\\x9f": -2.0}
    assert completion_logprobs(placed, PIECES.__getitem__, top=0)["top_logprobs"] is None


def test_chunks() -> None:
    first = CHAT.chunk(0, {"role": "assistant", "content": ""}, with_usage=True)
    read = ChatCompletionChunk.model_validate_json(json.dumps(first), strict=True)
    assert read.choices[0].delta.role == "assistant" and read.choices[0].finish_reason is None
    assert first["usage"] is None and "panal" not in first
    last = CHAT.chunk(0, {}, finish="stop", ledger={"trips": 1})
    assert "usage" not in last and last["panal"] == {"trips": 1}
    ChatCompletionChunk.model_validate_json(json.dumps(last), strict=True)
    told = CHAT.usage_chunk(usage([Cost(0, 6, report())]))
    assert ChatCompletionChunk.model_validate_json(json.dumps(told), strict=True).choices == []
    text = PLAIN.chunk(1, {"text": "x"})
    assert text["object"] == "text_completion" and text["choices"][0]["index"] == 1


def test_an_event_is_one_line() -> None:
    data = {"text": "a\nb\r\n\u2028\x85 🐝"}
    sent = event(data)
    assert sent.startswith(b"data: ") and sent.endswith(b"\n\n") and sent.count(b"\n") == 2
    assert b"\r" not in sent and json.loads(sent[6:]) == data
    assert DONE == b"data: [DONE]\n\n"


def test_usage_counts_a_prompt_once() -> None:
    costs = [
        Cost(0, 6, report(cached_tokens=10)),  # took the prompt that the next one computed
        Cost(0, 5, report(cached_tokens=4)),
        Cost(1, 2, report(prompt_tokens=3, cached_tokens=1)),
    ]
    told = usage(costs)
    CompletionUsage.model_validate_json(json.dumps(told), strict=True)
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (13, 13, 26)
    assert told["prompt_tokens_details"] == {"cached_tokens": 5}
    assert len(told["panal"]["choices"]) == 3
    assert usage(costs[:1])["panal"] == ledger(costs[0].report)


def test_the_ledger_is_flat() -> None:
    told = ledger(report())
    assert (told["tokens"], told["rows"], told["trips"], told["waited"]) == (6, 9, 8, 0.75)
    assert told["queued"] == 0.25 and told["prompt_tokens"] == 10


def test_server_timing_is_of_the_slowest() -> None:
    told = server_timing([report(), report(seconds=2.5)], complete=True)
    assert told == (
        'queue;dur=250.0, prompt;dur=500.0;desc="6 of 10 tokens", decode;dur=2000.0;desc="6 tokens", '
        'wait;dur=750.0;desc="8 trips", compute;dur=125.0'
    )
    assert server_timing([report()], complete=False).endswith('desc="6 of 10 tokens"')


def test_names_while_nobody_answers() -> None:
    assert answers_to(NotReady("m"), "m") and not answers_to(NotReady("m"), "n")
