"""A backbone inside the lab that runs batches, driven by lines on stdin.

    lanes_client.py CONFIG

Each line is a task as JSON: {"lanes", "places", "exact", "prompts", "prompt", "tokens"}; lanes with so many
places each read so many prompts of so many tokens and choose so many tokens for each, as many at a time as
there are places. The answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio

from node.config import load_config
from node.decode.batch import Batch
from node.decode.configured import configured_backbone
from node.decode.lanes import Lane, Lanes
from node.decode.live_backbone import LiveBackbone
from node.decode.members import Member
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
    found: dict[int, list[int]] = {}
    numbers: dict[Member, int] = {}
    seconds = [0.0, 0.0]
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
        together = task.lanes * task.places
        for start in range(0, task.prompts, together):
            batches = {
                lane: Batch(lane.backbone, slots=task.places, on_pass=lane.ledger.count_pass)
                for lane in lanes.lanes
            }
            for number in range(start, min(start + together, task.prompts)):
                batch = batches[lanes.lanes[number % task.lanes]]
                numbers[batch.add(prompts[number], sampler(), task.tokens)] = number

            def take(batch: Batch) -> None:
                for member, token in batch.step():
                    found.setdefault(numbers[member], []).append(token)
                    if member.is_full:
                        batch.remove(member)

            def read(lane: Lane, batches: dict[Lane, Batch] = batches) -> bool:
                if any(member.is_reading for member in batches[lane].members):
                    take(batches[lane])
                return any(member.is_reading for member in batches[lane].members)

            def write(lane: Lane, batches: dict[Lane, Batch] = batches) -> bool:
                if batches[lane].members:
                    take(batches[lane])
                return bool(batches[lane].members)

            for number, phase in enumerate((read, write)):
                begun = time.perf_counter()
                lanes.run(phase)
                seconds[number] += time.perf_counter() - begun
        report = lanes.ledger().report()
    return {
        "tokens": [found[number] for number in range(task.prompts)],
        "prefill_seconds": seconds[0],
        "decode_seconds": seconds[1],
        "passes": report.passes,
        "trips": report.trips - before.trips,
        "waited": report.waited - before.waited,
    }


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
