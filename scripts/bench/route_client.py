"""A backbone inside the lab, driven by lines on stdin: generates the same tokens again and again.

    route_client.py CONFIG ROUTE

It waits until every holder is reached by ROUTE (direct, punched or relayed) and says so. Then each line on
stdin gets a line of JSON: "prompt" begins the generation anew, a number goes on with it for so many tokens
and says what they cost. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

from node.config import load_config
from node.decode.configured import configured_backbone
from node.decode.ledger import TripsReport
from node.decode.live_backbone import LiveBackbone
from node.engine.context import Row

PROMPT = tuple(range(1, 9))
"""Token ids every vocabulary has: the models of benchmarks have no tokenizer."""

ROUTE_SECONDS = 60.0
"""For two NATs to be found out about, met through a relay and punched; usually 5 to 12 s."""

SETTLE_SECONDS = 3.0
"""What the plane takes to fill its windows after a dial, see routing.quic.warmup."""


async def main(config: Path, route: str) -> None:
    async with configured_backbone(load_config(config)) as live:
        begun = trio.current_time()
        await _wait_for(live, route)
        say({"seconds": trio.current_time() - begun, "routes": live.routes()})
        generation = Generation(live)
        async for line in trio.wrap_file(sys.stdin):
            say(await live.in_thread(generation.obey, line.strip()))


async def _wait_for(live: LiveBackbone, route: str) -> None:
    with trio.move_on_after(ROUTE_SECONDS):
        since = trio.current_time()
        while trio.current_time() - since < SETTLE_SECONDS:
            await trio.sleep(0.1)
            if {each["route"] for each in live.routes()} != {route}:
                since = trio.current_time()
        return
    raise SystemExit(f"still not {route} after {ROUTE_SECONDS:g} s: {live.routes()}")


class Generation:
    """Greedy, and the same each time it begins."""

    def __init__(self, live: LiveBackbone) -> None:
        self._live = live
        self._position = 0
        self._next = 0

    def obey(self, line: str) -> dict[str, Any]:
        """Do what a line of stdin says, on the calling thread."""
        if line == "prompt":
            self._begin()
            return {}
        return self._go_on(int(line))

    def _begin(self) -> None:
        backbone = self._live.backbone
        backbone.context.clear()
        self._position, last = len(PROMPT), len(PROMPT) - 1
        logits = backbone.run([Row(token, i, wanted=i == last) for i, token in enumerate(PROMPT)])
        self._next = int(logits[0].argmax())

    def _go_on(self, tokens: int) -> dict[str, Any]:
        backbone, ledger = self._live.backbone, self._live.port.ledger
        found: list[int] = []
        moments = [time.perf_counter()]
        before, cpu = ledger.report(), time.process_time()
        for _ in range(tokens):
            found.append(self._next)
            self._next = int(backbone.run([Row(self._next, self._position)])[0].argmax())
            self._position += 1
            moments.append(time.perf_counter())
        return {
            "tokens": found,
            "seconds": [end - begin for begin, end in pairwise(moments)],
            "cpu_seconds": time.process_time() - cpu,
            **_spent(before, ledger.report()),
            "routes": self._live.routes(),
        }


def _spent(before: TripsReport, after: TripsReport) -> dict[str, float]:
    names = ("trips", "bytes_out", "bytes_back", "waited", "hedges", "moved")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
