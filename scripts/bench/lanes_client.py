"""A backbone inside the lab that runs batches, driven by lines on stdin.

    lanes_client.py CONFIG

Each line is a task as JSON: {"lanes", "places", "exact", "prompts", "prompt", "tokens"}; lanes with so many
places each read so many prompts of so many tokens and choose so many tokens for each. The answer is a line of
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio

from node.config import load_config
from node.decode.batch import Batch, Member
from node.decode.configured import configured_backbone
from node.decode.lanes import Lane, Lanes
from node.decode.live_backbone import LiveBackbone
from node.engine.sampler import Sampler, SamplingSettings

SEED = 20261129


@dataclass(frozen=True)
class Task:
    """What is asked for: see above."""

    lanes: int
    places: int
    exact: bool
    prompts: int
    prompt: int
    tokens: int


async def main(config: Path) -> None:
    async with configured_backbone(load_config(config)) as live:
        say({"routes": live.routes()})
        async for line in trio.wrap_file(sys.stdin):
            say(await live.in_thread(run, live, Task(**json.loads(line))))


def run(live: LiveBackbone, task: Task) -> dict[str, Any]:
    """One way to run the batch, from nothing in any cache."""
    rng = np.random.default_rng(SEED)
    vocabulary = live.backbone.model.n_vocab
    prompts = rng.integers(0, vocabulary, (task.prompts, task.prompt)).tolist()
    waiting = deque(enumerate(prompts))
    found: dict[int, list[int]] = {}
    numbers: dict[Member, int] = {}
    with ExitStack() as opened:
        lanes = opened.enter_context(
            closing(
                Lanes(
                    live.backbone,
                    live.port,
                    count=task.lanes,
                    n_ctx=(task.prompt + task.tokens) * (1 if task.exact else task.places),
                    n_ubatch=live.settings.ubatch,
                    threads=live.settings.threads,
                    n_sequences=task.places,
                    own_caches=task.exact,
                )
            )
        )
        batches = {
            lane: Batch(lane.backbone, slots=task.places, on_pass=lane.ledger.count_pass)
            for lane in lanes.lanes
        }

        def sampler() -> Sampler:
            made = Sampler(live.backbone.model.library, SamplingSettings())
            return opened.enter_context(closing(made))

        def warm(lane: Lane) -> bool:
            batch = Batch(lane.backbone, slots=1)
            member = batch.add(prompts[0][:4], sampler(), 1)
            batch.step()
            batch.remove(member)
            return False

        lanes.run(warm)  # graphs are recognised once; that is not what is measured
        before = lanes.ledger().report()
        begun = time.perf_counter()

        def step(lane: Lane) -> bool:
            batch = batches[lane]
            while waiting and batch.fits(task.prompt, task.tokens):
                number, prompt = waiting.popleft()
                numbers[batch.add(prompt, sampler(), task.tokens)] = number
            if not batch.members:
                return False
            for member, token in batch.step():
                found.setdefault(numbers[member], []).append(token)
                if member.is_full:
                    batch.remove(member)
            return True

        lanes.run(step)
        seconds = time.perf_counter() - begun
        report = lanes.ledger().report()
    return {
        "tokens": [found[number] for number in range(task.prompts)],
        "seconds": seconds,
        "passes": report.passes,
        "trips": report.trips - before.trips,
        "waited": report.waited - before.waited,
    }


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
