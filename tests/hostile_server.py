"""An expert server for each way to misbehave, on real sockets, in a process of its own.

`python -m tests.hostile_server STORE MODEL` says where each listens as one line of JSON, and ends when its
stdin closes. They say that they hold everything, and compute right answers; what leaves is something else.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import trio

from node.engine import library as llama
from node.model.store import Store
from node.serve.server import ExpertServer
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import holdings, messages
from routing.wire.experts import ExpertsAnswer
from routing.wire.limits import MAX_REQUEST_BYTES
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of

Trick = Callable[[Stream, ExpertsAnswer], Awaitable[None]]


async def nan(stream: Stream, answer: ExpertsAnswer) -> None:
    y = answer.y.copy()
    y[0, 0] = np.nan
    # Our own encoder writes NaN as it stands in f32.
    await stream.send_message(messages.encode_message(dataclasses.replace(answer, y=y)))


async def wrong_shape(stream: Stream, answer: ExpertsAnswer) -> None:
    await stream.send_message(messages.encode_message(dataclasses.replace(answer, y=answer.y[:, 1:].copy())))


async def wrong_call_id(stream: Stream, answer: ExpertsAnswer) -> None:
    await stream.send_message(
        messages.encode_message(dataclasses.replace(answer, call_id=answer.call_id ^ 1))
    )


async def truncated(stream: Stream, answer: ExpertsAnswer) -> None:
    data = messages.encode_message(answer)
    await stream.send_bytes(len(data).to_bytes(4, "big") + data[: len(data) // 2])
    await stream.aclose()


async def shortened(stream: Stream, answer: ExpertsAnswer) -> None:
    await stream.send_message(messages.encode_message(answer)[:-4])


async def random_bytes(stream: Stream, answer: ExpertsAnswer) -> None:
    await stream.send_message(random.Random(7).randbytes(len(messages.encode_message(answer))))


async def huge_length(stream: Stream, answer: ExpertsAnswer) -> None:
    await stream.send_bytes(b"\xff\xff\xff\xff" + bytes(1000))


async def silent(stream: Stream, answer: ExpertsAnswer) -> None:
    await trio.sleep_forever()


async def half_then_silent(stream: Stream, answer: ExpertsAnswer) -> None:
    data = messages.encode_message(answer)
    await stream.send_bytes(len(data).to_bytes(4, "big") + data[: len(data) // 2])
    await trio.sleep_forever()


async def twice(stream: Stream, answer: ExpertsAnswer) -> None:
    for _ in range(2):
        await stream.send_message(messages.encode_message(answer))


async def resets(stream: Stream, answer: ExpertsAnswer) -> None:
    stream.reset()


async def overflowing(stream: Stream, answer: ExpertsAnswer) -> None:
    y = np.full_like(answer.y, 3e38)
    await stream.send_message(messages.encode_message(dataclasses.replace(answer, y=y)))


TRICKS: dict[str, Trick] = {
    trick.__name__: trick
    for trick in (
        nan, wrong_shape, wrong_call_id, truncated, shortened, random_bytes, huge_length, silent,
        half_then_silent, twice, resets, overflowing,
    )
}  # fmt: skip


def served_by(server: ExpertServer, trick: Trick) -> Callable[[Stream], Awaitable[None]]:
    """A handler of `/panal/experts/1` that plays a trick in place of each answer."""

    async def serve(stream: Stream) -> None:
        while True:
            try:
                message = await stream.receive_message(MAX_REQUEST_BYTES)
                reply = await server._reply(message, stream)
                assert isinstance(reply, ExpertsAnswer)
                await trick(stream, reply)
            except StreamClosed:
                return

    return serve


async def main(store: Path, file: Path) -> None:
    model = ModelParts(llama.load(), Store(store), file)
    server = ExpertServer(cells_of(model, [range(12)]), model.kernels, name="hostile")
    addresses: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        for name, trick in TRICKS.items():
            handlers = {
                messages.PROTOCOL_ID: served_by(server, trick),
                holdings.PROTOCOL_ID: server.serve_slices,
            }
            endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), handlers=handlers)
            await nursery.start(endpoint.run)
            addresses[name] = str(address_of(endpoint))
        print(json.dumps(addresses), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    server.close()
    model.close()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
