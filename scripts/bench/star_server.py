"""An expert server inside the lab of bench_star that may be late with some of its answers.

    star_server.py STORE MODEL EXPERTS HOST SEED

It says where it listens as a line of JSON. Each line on stdin is the share of answers that it holds back for
LATE_SECONDS from then on, and is answered with how many it has held back so far. It ends with its stdin.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, cast

import trio

from node.config import ModelRef, ServeConfig
from node.engine import library as llama
from node.engine.kernels import Kernels
from node.model.store import Store
from node.ranges import Ranges
from node.serve.opening import open_cells
from node.serve.server import ExpertServer
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import holdings, messages

LATE_SECONDS = 0.5


class Lateness:
    """Which answers are late."""

    def __init__(self, seed: int) -> None:
        self.share = 0.0
        self.count = 0
        self._rng = random.Random(seed)

    async def pass_by(self) -> None:
        """Before an answer is sent."""
        if self._rng.random() < self.share:
            self.count += 1
            await trio.sleep(LATE_SECONDS)


class LateStream:
    """A stream whose messages leave late now and then."""

    def __init__(self, stream: Stream, lateness: Lateness) -> None:
        self._stream = stream
        self._lateness = lateness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send_message(self, message: Any) -> None:
        await self._lateness.pass_by()
        await self._stream.send_message(message)


async def main(store: Path, model: Path, experts: str, host: str, seed: int) -> None:
    library = llama.load()
    kernels = Kernels(library, threads=1)
    entry = ServeConfig(model=ModelRef(path=model), layers=None, experts=Ranges.parse(experts))
    lateness = Lateness(seed)
    with open_cells(library, Store(store), [entry]) as opened:
        server = ExpertServer(opened.cells, kernels, name=host)

        async def serve_experts(stream: Stream) -> None:
            await server.serve_experts(cast(Stream, LateStream(stream, lateness)))

        handlers = {messages.PROTOCOL_ID: serve_experts, holdings.PROTOCOL_ID: server.serve_slices}
        async with trio.open_nursery() as nursery:
            endpoint = Endpoint(Identity.generate(), listen=(host, 0), handlers=handlers)
            await nursery.start(endpoint.run)
            say({"address": str(PeerAddress(host, endpoint.local_address[1], endpoint.peer_id))})
            async for line in trio.wrap_file(sys.stdin):
                lateness.share = float(line)
                say({"late": lateness.count})
            nursery.cancel_scope.cancel()
        server.close()
    kernels.close()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
