"""Measure what the status of a node among many peers costs its event loop.

Run by `scripts/bench_status [--peers N] [--json]`. Nothing leaves the machine.

A node's table is filled with signed adverts of N peers, each with slices of a model of 48 layers with 128
experts: once runs of neighbouring experts that are the same in all layers, once experts scattered over a few
layers. Then its status is gathered again and again. Milliseconds of the event loop; on a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import trio

from node.cli.arguments import integer
from node.cli.table import format_table
from node.status.answers import AnswerRing
from node.status.editions import Editions
from node.status.gather import Gatherer
from node.status.sources import Sources
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from routing.identity import Identity
from routing.multiaddr import ListenAddress
from routing.wire.advert import Advert, sign_advert
from routing.wire.holdings import Slice, compact_cells

LAYERS, EXPERTS, HELD = 48, 128, 16
MODEL = "ab" * 32
ROUNDS = 20
TARGET = 0.020
"""Seconds that gathering may take at 1,000 peers: once a second, a fiftieth of the loop's time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was measured; 1 if gathering takes longer than it may."""
    parser = argparse.ArgumentParser(prog="scripts/bench_status", description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=integer(1, 4_000), default=1_000, metavar="N", help="default: 1000")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = parser.parse_args(argv)
    results = [trio.run(_measure, args.peers, scattered) for scattered in (False, True)]
    if args.json:
        print(json.dumps(results))
    else:
        rows = [list(map(_shown, each.values())) for each in results]
        print(format_table(list(results[0]), rows))
    return int(any(each["gather ms"] > TARGET * 1000 for each in results))


async def _measure(peers: int, scattered: bool) -> dict[str, Any]:
    base = Place.among([], identity=Identity.generate())
    swarm = dataclasses.replace(base.swarm, listen=ListenAddress("127.0.0.1", 0))
    node = SwarmNode(dataclasses.replace(base, swarm=swarm), Role(serves=True))
    try:
        rng = random.Random(1)
        for number in range(peers):
            now = time.time()
            data = _advert(number, node.membership.swarm.id, now, rng, scattered)
            node.table.offer(data, now, from_peer=f"source {number % 7}", age=0.0)
        gatherer, editions = Gatherer(node, Sources(node=node), AnswerRing()), Editions()
        times: list[list[float]] = []
        for _ in range(ROUNDS + 1):
            marks = [time.perf_counter()]
            gatherer.tick(time.time(), trio.current_time())
            marks.append(time.perf_counter())
            status = gatherer.status(time.time(), trio.current_time())
            marks.append(time.perf_counter())
            number = editions.number
            editions.take(status)
            editions.since(number)
            marks.append(time.perf_counter())
            editions.whole()
            marks.append(time.perf_counter())
            times.append([1000 * (end - begin) for begin, end in pairwise(marks)])
        first, *others = times
        medians = [statistics.median(each) for each in zip(*others, strict=True)]
        return {
            "cells": "scattered" if scattered else "runs",
            "peers": len(status.peers),
            "first gather ms": first[1],
            "tick ms": medians[0],
            "gather ms": medians[1],
            "changes ms": medians[2],
            "whole ms": medians[3],
            "whole KB": len(editions.whole()) / 1000,
        }
    finally:
        node.close()


def _shown(value: object) -> object:
    return f"{value:,.2f}" if isinstance(value, float) else value


def _advert(number: int, swarm_id: bytes, now: float, rng: random.Random, scattered: bool) -> bytes:
    identity = Identity.generate()
    if scattered:
        cells = {layer: sorted(rng.sample(range(EXPERTS), HELD)) for layer in range(0, LAYERS, 4)}
    else:
        first = rng.randrange(EXPERTS - HELD)
        cells = {layer: list(range(first, first + HELD)) for layer in range(LAYERS)}
    advert = Advert(
        swarm_id=swarm_id,
        peer_id=identity.peer_id,
        instance=1,
        seq=1,
        issued_at=int(now),
        name=f"peer {number}",
        addresses=[f"/ip4/{11 + number % 200}.{number // 200}.0.7/udp/4190/quic-v1"],
        reach="public",
        slices=[Slice("experts", MODEL, "qwen3moe", experts=compact_cells(cells))],
        versions=[1],
    )
    return sign_advert(advert, identity)


if __name__ == "__main__":
    raise SystemExit(main())
