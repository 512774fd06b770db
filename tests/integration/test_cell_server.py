"""The cell server over real sockets: any range of a blob, hostile requests, and what it leaves to others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from node.engine.kernels import Kernels
from node.model.held import HeldExperts
from node.serve import cell_server
from node.serve.cell_server import CellServer
from node.serve.cells import Cells, HeldCall
from node.serve.server import ExpertServer
from node.share import sending
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.multiaddr import PeerAddress
from routing.quic.carried import carry
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.wire import cells as wire
from routing.wire.experts import Refusal, RefusalCode
from tests.cell_sources import FAST, sharing
from tests.integration.test_carried_quic import line
from tests.model_parts import ModelParts
from tests.served import cells_of as served_cells
from tests.served import connected, handlers_of, listening, request, run

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


def bytes_at(held: HeldExperts, role: str, expert: int, n_experts: int) -> bytes:
    data = held.tensors[role].data
    size = len(data) // n_experts
    return data[expert * size : (expert + 1) * size].tobytes()


# --- the server's side ---


@asynccontextmanager
async def asking(cells: Cells, server: CellServer | None = None) -> AsyncIterator[Connection]:
    async with (
        sharing((server or CellServer(cells, rate=FAST)).serve) as endpoint,
        connected(endpoint) as made,
    ):
        yield made


async def ask(connection: Connection, message: bytes) -> wire.Message:
    stream = connection.open_stream(wire.PROTOCOL_ID)
    await stream.send_message(message)
    reply = wire.decode_message(await stream.receive_message(1 << 20))
    await stream.aclose()
    return reply


def right_request(model: ModelParts, **changed: int) -> wire.CellsRequest:
    fields: dict[str, Any] = {"layer": 0, "call_index": 0, "call_id": 5, "first": 0, "count": 2}
    fields |= {"offset": 0, "length": 1000}
    fields |= changed
    return wire.CellsRequest(model_id=bytes.fromhex(model.stored.model_id), **fields)


def test_hostile_requests_are_refused_before_anything_is_read(
    model: ModelParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = served_cells(model, [range(1, 6)], layers=[0, 2])
    size = model.manifest.calls[0].bytes_per_cell
    read: list[int] = []
    read_blob = cell_server.read_blob

    def noted(held: HeldCall, asked: wire.CellsRequest) -> bytes:
        read.append(1)
        return read_blob(held, asked)

    monkeypatch.setattr(cell_server, "read_blob", noted)
    good = right_request(model, first=1)
    wrong: list[tuple[bytes, RefusalCode]] = [
        (wire.encode_request(right_request(model, first=0, count=1024)), RefusalCode.NOT_HELD),
        (wire.encode_request(right_request(model, first=60_000, count=3)), RefusalCode.NOT_HELD),
        (wire.encode_request(right_request(model, first=1, layer=1)), RefusalCode.UNKNOWN_CALL),
        (wire.encode_request(right_request(model, first=1, layer=60_000)), RefusalCode.UNKNOWN_CALL),
        (wire.encode_request(right_request(model, first=1, call_index=200)), RefusalCode.UNKNOWN_CALL),
        (wire.encode_request(right_request(model, first=1, offset=2 * size - 999)), RefusalCode.MALFORMED),
        (wire.encode_request(right_request(model, first=1, offset=wire.MAX_OFFSET)), RefusalCode.MALFORMED),
        (b"", RefusalCode.MALFORMED),
        (b"x" * 64, RefusalCode.MALFORMED),
        (wire.encode_request(good)[:-1], RefusalCode.MALFORMED),
        (wire.encode_chunk_header(good) + b"x", RefusalCode.MALFORMED),
        (wire.encode_request(good)[:52] + b"\xff" * 4 + bytes(8), RefusalCode.MALFORMED),
        (
            wire.encode_request(good)[:16] + bytes(32) + wire.encode_request(good)[48:],
            RefusalCode.UNKNOWN_MODEL,
        ),
    ]

    async def test() -> None:
        server = CellServer(cells, rate=FAST)
        async with asking(cells, server) as connection:
            for message, code in wrong:
                if not message:
                    continue
                reply = await ask(connection, message)
                assert isinstance(reply, Refusal) and reply.code is code, (message, reply)
            assert not read and server.counts.refused == len(wrong) - 1 and server.counts.chunks == 0
            reply = await ask(connection, wire.encode_request(right_request(model, first=0, count=8)))
            assert isinstance(reply, Refusal) and reply.missing == (0, 6, 7)
            # A longer message than a request is not even received.
            stream = connection.open_stream(wire.PROTOCOL_ID)
            await stream.send_message(bytes(wire.REQUEST_BYTES + 1))
            with pytest.raises(StreamClosed):
                await stream.receive_message(1 << 20)
            reply = await ask(connection, wire.encode_request(good))
            assert isinstance(reply, wire.CellsChunk) and len(reply.data) == 1000 and read == [1]

    run(test)


def test_any_range_of_a_blob(model: ModelParts) -> None:
    cells = served_cells(model, [range(3), range(3, 12)])
    call = model.manifest.calls[0]
    held = model.held[0, "exps"]
    blob = b"".join(
        bytes_at(held, tensor.role, expert, 12) for expert in (2, 3, 4) for tensor in call.tensors
    )
    assert len(blob) == 3 * call.bytes_per_cell
    edges = {0, 1, len(blob) // 2, len(blob) - 1}
    for expert in range(3):
        end = expert * call.bytes_per_cell
        for tensor in call.tensors:
            end += tensor.bytes_per_expert
            edges |= {end - 1, end, end + 1}

    async def test() -> None:
        async with asking(cells) as connection:
            stream = connection.open_stream(wire.PROTOCOL_ID)
            for offset in sorted(edge for edge in edges if edge < len(blob)):
                for length in (1, 5_000, len(blob)):
                    length = min(length, len(blob) - offset, wire.MAX_CHUNK_BYTES)
                    asked = right_request(model, first=2, count=3, offset=offset, length=length)
                    await stream.send_message(wire.encode_request(asked))
                    reply = wire.decode_message(await stream.receive_message(1 << 20))
                    assert isinstance(reply, wire.CellsChunk)
                    wire.check_chunk(asked, reply)
                    assert reply.data == blob[offset : offset + length]

    run(test)


def test_a_caller_has_few_streams(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(sending, "REFUSE_SECONDS", 0.1)
    cells = served_cells(model, [range(12)])
    message = wire.encode_request(right_request(model))

    async def test() -> None:
        async with asking(cells) as connection:
            streams = [connection.open_stream(wire.PROTOCOL_ID) for _ in range(6)]
            replies = []
            for stream in streams:
                await stream.send_message(message)
                replies.append(wire.decode_message(await stream.receive_message(1 << 20)))
            served = [reply for reply in replies if isinstance(reply, wire.CellsChunk)]
            refused = [reply for reply in replies if isinstance(reply, Refusal)]
            assert len(served) == sending.STREAMS_PER_CALLER and len(refused) == 2
            assert {(each.code, each.load) for each in refused} == {
                (RefusalCode.OVERLOADED, sending.COME_AGAIN_MS)
            }
            # Places of those who ask nothing are free again.
            with pytest.raises(StreamClosed):
                await streams[0].receive_message(1 << 20)
            assert isinstance(await ask(connection, message), wire.CellsChunk)

    run(test)


def test_callers_without_an_address_have_few_places_together(
    model: ModelParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many peer ids as one likes come over TCP or a relay: the places of others stay free."""
    monkeypatch.setattr(sending, "REFUSE_SECONDS", 0.1)
    cells = served_cells(model, [range(12)])
    message = wire.encode_request(right_request(model))

    async def test() -> None:
        async with (
            sharing(CellServer(cells, rate=FAST).serve) as server,
            trio.open_nursery() as nursery,
            AsyncExitStack() as stack,
        ):
            codes = list[RefusalCode | None]()
            for _ in range(3):
                client = await stack.enter_async_context(listening({}))
                here, there = line()
                path = await nursery.start(carry, client, here)
                await nursery.start(carry, server, there)
                host, port = path.address
                carried = await client.connect(PeerAddress(host, port, server.identity.peer_id))
                assert carried.is_carried
                for _ in range(sending.STREAMS_PER_CALLER):
                    stream = carried.open_stream(wire.PROTOCOL_ID)
                    await stream.send_message(message)
                    reply = wire.decode_message(await stream.receive_message(1 << 20))
                    codes.append(reply.code if isinstance(reply, Refusal) else None)
            refused = len(codes) - sending.STREAMS_CARRIED
            assert codes == [None] * sending.STREAMS_CARRIED + [RefusalCode.OVERLOADED] * refused
            async with connected(server) as direct:
                assert isinstance(await ask(direct, message), wire.CellsChunk)
            nursery.cancel_scope.cancel()

    run(test)


def test_the_rate_of_all_together(model: ModelParts) -> None:
    """Two callers, and a bound that makes 400 KB take at least a second."""
    cells = served_cells(model, [range(12)])
    server = CellServer(cells, rate=400_000)

    async def pull(connection: Connection) -> None:
        stream = connection.open_stream(wire.PROTOCOL_ID)
        for _ in range(2):
            asked = right_request(model, count=12, length=120_000)
            await stream.send_message(wire.encode_request(asked))
            assert len(await stream.receive_message(1 << 20)) == 120_016

    async def test() -> None:
        async with asking(cells, server) as first, asking(cells, server) as second:
            begun = time.perf_counter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pull, first)
                nursery.start_soon(pull, second)
            assert time.perf_counter() - begun >= 1.0
            assert server.counts.sent_bytes == 480_000

    run(test)


def test_who_does_not_read_holds_little(model: ModelParts) -> None:
    """All that a caller asks for ahead stays unread: the server sends a stream's window of it and waits."""
    cells = served_cells(model, [range(12)])
    server = CellServer(cells, rate=FAST)
    size = 12 * model.manifest.calls[0].bytes_per_cell
    length = min(size, wire.MAX_CHUNK_BYTES)
    count = (16 << 20) // length

    async def test() -> None:
        async with asking(cells, server) as connection:
            stream = connection.open_stream(wire.PROTOCOL_ID)
            message = wire.encode_request(right_request(model, count=12, length=length))
            for _ in range(count):
                await stream.send_message(message)
            await trio.sleep(1)
            assert 0 < server.counts.sent_bytes < 10 << 20
            for _ in range(count):
                assert len(await stream.receive_message(1 << 20)) == 16 + length

    run(test, seconds=30)


def test_calls_stay_quick_beside_a_transfer(model: ModelParts) -> None:
    """Expert calls to the very server, on the very connection, that sends cells meanwhile."""
    cells = served_cells(model, [range(12)])
    message = wire.encode_request(right_request(model, count=12, length=120_000))

    async def measure(endpoint: Endpoint) -> None:
        sent = 0

        async def transfer(connection: Connection) -> None:
            nonlocal sent
            stream = connection.open_stream(wire.PROTOCOL_ID)
            while True:
                await stream.send_message(message)
                sent += len(await stream.receive_message(1 << 20))

        async with connected(endpoint) as connection, trio.open_nursery() as nursery:
            peer = QuicExpertPeer(connection)

            async def calls(count: int) -> float:
                took = []
                for _ in range(count):
                    begun = time.perf_counter()
                    await peer.call(request(model))
                    took.append(time.perf_counter() - begun)
                return float(np.median(took))

            await calls(20)
            alone = await calls(100)
            nursery.start_soon(transfer, connection)
            await trio.sleep(0.3)
            before = sent
            beside = await calls(100)
            while (
                sent == before
            ):  # a busy machine: the transfer has yielded so far that no chunk came meanwhile
                beside = max(beside, await calls(50))
            assert beside < 10 * alone + 0.02, (alone, beside)
            nursery.cancel_scope.cancel()

    async def test() -> None:
        kernels = Kernels(model.library, threads=1)
        server = ExpertServer(cells, kernels, name="test")
        handlers = handlers_of(server) | {wire.PROTOCOL_ID: CellServer(cells, rate=4 << 20).serve}
        try:
            async with listening(handlers) as endpoint:
                await measure(endpoint)
        finally:
            server.close()
            kernels.close()

    run(test)
