"""A backbone inside the lab with a continuous decoder, driven by lines on stdin.

    sessions_client.py CONFIG

Each line is a task as JSON: {"sessions", "draft", "places", "text", "prompt", "tokens"}: a decoder with so
many places answers so many prompts at once, pieces of a text; or {"chat": true, ...}: two turns of a talk.
The answer is a line of JSON. Every task begins with empty caches.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from node.config import load_config
from node.decode.configured import configured_backbone
from node.decode.continuous.ask import Ask
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.continuous.report import AnswerReport
from node.decode.live_backbone import LiveBackbone
from node.engine.sampler import SamplingSettings
from node.engine.tokenizer import Tokenizer

NEW_TOKENS = 16  # of a chat's second turn, beside what was said before


async def main(config: Path) -> None:
    async with configured_backbone(load_config(config)) as live:
        say({"routes": live.routes()})
        async for line in trio.wrap_file(sys.stdin):
            task = json.loads(line)
            live.settings = replace(live.settings, draft=task["draft"])
            tokens = Tokenizer(live.backbone.model).encode(Path(task["text"]).read_text(encoding="utf-8"))
            say(await (chat if task.get("chat") else together)(live, task, tokens))


@asynccontextmanager
async def decoding(live: LiveBackbone, task: dict[str, Any]) -> AsyncIterator[Decoder]:
    """A decoder with nothing in its caches, its graphs recognised already."""
    decoder = Decoder(live, DecoderSettings(sessions=task["places"]))
    async with trio.open_nursery() as nursery:
        await nursery.start(decoder.run)
        async with trio.open_nursery() as warm:
            for number in range(task.get("sessions", 1)):
                warm.start_soon(answer, decoder, [number], 2)
        yield decoder
        nursery.cancel_scope.cancel()


async def answer(decoder: Decoder, prompt: list[int], limit: int) -> tuple[list[int], AnswerReport]:
    async with decoder.ask(Ask(tuple(prompt), limit, SamplingSettings())) as answering:
        return [chosen.token async for chosen in answering], answering.report


async def together(live: LiveBackbone, task: dict[str, Any], text: list[int]) -> dict[str, Any]:
    """So many prompts at once."""
    found: dict[int, tuple[list[int], AnswerReport]] = {}
    size, count = task["prompt"], task["sessions"]
    distance = len(text) // task["places"]
    async with decoding(live, task) as decoder:
        before = decoder.stats()

        async def one(number: int) -> None:
            start = number * distance
            found[number] = await answer(decoder, text[start : start + size], task["tokens"])

        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, number)
        seconds = time.perf_counter() - begun
        after = decoder.stats()
    tokens = sum(len(each) for each, _ in found.values())
    trips = after.trips.trips - before.trips.trips
    return {
        "first": found[0][0],
        "tokens_per_second": tokens / seconds,
        "passes": after.trips.passes - before.trips.passes,
        "trips": trips,
        "trips_per_token": trips / tokens / after.trips.calls_per_pass,
        "first_seconds": max(report.queued + report.prompt_seconds for _, report in found.values()),
    }


async def chat(live: LiveBackbone, task: dict[str, Any], text: list[int]) -> dict[str, Any]:
    """A talk of two turns."""
    first, more = text[: task["prompt"]], text[task["prompt"] : task["prompt"] + NEW_TOKENS]
    async with decoding(live, task) as decoder:
        said, _ = await answer(decoder, first, task["tokens"])
        _, report = await answer(decoder, [*first, *said, *more], task["tokens"])
    before = len(first) + len(said)
    return {
        "prompt": report.prompt_tokens,
        "before": before,
        "cached": report.cached_tokens,
        "again": before - report.cached_tokens,
    }


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
