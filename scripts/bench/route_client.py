"""A backbone inside the lab, driven by lines on stdin: generates the same tokens again and again.

    route_client.py CONFIG ROUTE

It waits until every holder is reached by ROUTE (direct, punched or relayed) and says so; then each line on
stdin, a number of tokens, is answered by a line of JSON with what they cost. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import trio

from node.cli.frame import log_to_stderr
from node.config import load_config
from node.decode.answer import configured_backbone
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
        async for line in trio.wrap_file(sys.stdin):
            say(await live.in_thread(generate, live, int(line)))


async def _wait_for(live: LiveBackbone, route: str) -> None:
    with trio.move_on_after(ROUTE_SECONDS):
        since = trio.current_time()
        while trio.current_time() - since < SETTLE_SECONDS:
            await trio.sleep(0.1)
            if {each["route"] for each in live.routes()} != {route}:
                since = trio.current_time()
        return
    raise SystemExit(f"still not {route} after {ROUTE_SECONDS:g} s: {live.routes()}")


def generate(live: LiveBackbone, tokens: int) -> dict[str, Any]:
    """Greedily, from an empty cache; the pass over the prompt is not counted."""
    backbone = live.backbone
    backbone.context.clear()
    last = len(PROMPT) - 1
    logits = backbone.run([Row(token, i, wanted=i == last) for i, token in enumerate(PROMPT)])
    found: list[int] = []
    before, cpu, begun = live.port.ledger.report(), time.process_time(), time.perf_counter()
    for position in range(len(PROMPT), len(PROMPT) + tokens):
        found.append(int(logits[0].argmax()))
        logits = backbone.run([Row(found[-1], position)])
    seconds = time.perf_counter() - begun
    return {
        "tokens": found,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        **_spent(before, live.port.ledger.report()),
        "routes": live.routes(),
    }


def _spent(before: TripsReport, after: TripsReport) -> dict[str, float]:
    names = ("trips", "bytes_out", "bytes_back", "waited", "hedges", "moved")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
