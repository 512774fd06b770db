"""The expert server over real sockets: what it answers, and every way it refuses without breaking."""

from __future__ import annotations

import dataclasses
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from node.serve import server as server_module
from node.serve.cells import Cells
from node.serve.compute_thread import ComputeThread
from routing.dispatch import quic_peer
from routing.dispatch.combine import sum_pairs
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.errors import LocalError, PeerError
from routing.links import ask_holdings
from routing.quic.connection import Connection
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import holdings
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    Refusal,
    RefusalCode,
    Refused,
    max_reply_bytes,
)
from routing.wire.limits import MAX_REQUEST_BYTES
from routing.wire.messages import PROTOCOL_ID, decode_message, encode_message
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of, connected, listening, request, run, serving

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


def rows_of(model: ModelParts, asked: ExpertsRequest) -> Float32Array:
    """The right rows, by the kernels of this process."""
    held = model.held[asked.layer, "exps"]
    return model.kernels.run(held, asked.x, asked.counts, asked.experts, asked.weights)


async def refusal_of(connection: Connection, asked: ExpertsRequest) -> Refusal:
    with pytest.raises(Refused) as caught:
        await QuicExpertPeer(connection).call(asked)
    refusal = caught.value.refusal
    assert (refusal.call_id, refusal.layer, refusal.call_index) == (
        asked.call_id,
        asked.layer,
        asked.call_index,
    )
    assert "\n" not in str(caught.value) and caught.value.peer == connection.peer_id
    return refusal


async def still_answers(model: ModelParts, connection: Connection) -> None:
    asked = request(model)
    answer = await QuicExpertPeer(connection).call(asked)
    assert answer.y.tobytes() == rows_of(model, asked).tobytes()


async def raw(connection: Connection, message: bytes, limit: int = 1 << 20) -> Any:
    stream = connection.open_stream(PROTOCOL_ID)
    await stream.send_message(message)
    reply = decode_message(await stream.receive_message(limit))
    await stream.aclose()
    return reply


# --- answers ---


def test_rows_are_those_of_the_kernels(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            peer = QuicExpertPeer(connection)
            for layer in range(4):
                for rows, experts in ((1, (0, 11)), (5, (3, 4)), (64, (2, 9)), (1, (5,))):
                    asked = request(model, layer, rows=rows, experts=experts)
                    answer = await peer.call(asked)
                    assert answer.y.tobytes() == rows_of(model, asked).tobytes()
                    assert (answer.layer, answer.call_id) == (layer, 7)
                    assert answer.compute_us > 0
            assert server.counts.calls == 16 and server.counts.refused == 0
            assert server.counts.pairs == 4 * (2 + 10 + 128 + 1)

    run(test)


def test_uneven_counts(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            asked = dataclasses.replace(
                request(model),
                counts=np.array([1, 2, 3], np.uint16),
                experts=np.array([7, 1, 0, 11, 7, 2], np.uint16),
                weights=np.linspace(0.1, 1, 6, dtype=np.float32),
            )
            answer = await QuicExpertPeer(connection).call(asked)
            assert answer.y.tobytes() == rows_of(model, asked).tobytes()

    run(test)


@pytest.mark.parametrize(
    "runs", [[range(12)], [range(4), range(4, 12)], [range(1), range(6, 12), range(1, 8)]]
)
def test_sum_is_the_rows_added_in_order(model: ModelParts, runs: list[range]) -> None:
    async def test() -> None:
        async with serving(model, cells_of(model, runs)) as (_, endpoint), connected(endpoint) as connection:
            for experts in ((0, 7), (3, 4, 10, 1, 11), (5,)):
                asked = request(model, 1, rows=9, experts=experts, combine=Combine.SUM)
                answer = await QuicExpertPeer(connection).call(asked)
                rows = rows_of(model, asked).reshape(9, len(experts), -1)
                added = rows[:, 0].copy()
                for slot in range(1, len(experts)):
                    added = added + rows[:, slot]
                assert answer.y.tobytes() == added.tobytes()
                assert (
                    answer.y.tobytes() == sum_pairs(rows.reshape(-1, rows.shape[-1]), asked.counts).tobytes()
                )

    run(test)


@pytest.mark.parametrize(("codec", "tolerance"), [(Codec.F16, 2e-2), (Codec.INT8, 5e-2)])
def test_shorter_codecs(model: ModelParts, codec: Codec, tolerance: float) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            asked = request(model, codec=codec, codec_back=codec)
            answer = await QuicExpertPeer(connection).call(asked)
            right = rows_of(model, asked)
            error = np.abs(answer.y - right).max() / np.abs(right).max()
            assert 0 < error < tolerance and answer.codec is codec

    run(test)


def test_weights_before_the_experts(parts: Parts) -> None:
    llama4 = parts("llama4")

    async def test() -> None:
        async with (
            serving(llama4, cells_of(llama4, [range(8)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            asked = request(llama4, 1, rows=4, experts=(5,), weights=None)
            answer = await QuicExpertPeer(connection).call(asked)
            assert answer.y.tobytes() == rows_of(llama4, asked).tobytes()

    run(test)


def test_the_second_call_of_a_layer(parts: Parts) -> None:
    grove = parts("grovemoe")

    async def test() -> None:
        cells = Cells()
        cells.add(grove.stored.model_id, grove.manifest, grove.held)
        async with serving(grove, cells) as (_, endpoint), connected(endpoint) as connection:
            asked = request(grove, 1, experts=(3, 0), call_index=1)
            answer = await QuicExpertPeer(connection).call(asked)
            held = grove.held[1, "chexps"]
            right = grove.kernels.run(held, asked.x, asked.counts, asked.experts, asked.weights)
            assert answer.y.tobytes() == right.tobytes() and answer.call_index == 1
            # There are 4 chunk experts, though 8 experts.
            refusal = await refusal_of(connection, request(grove, 1, experts=(3, 4), call_index=1))
            assert refusal.code is RefusalCode.NOT_HELD and refusal.missing == (4,)

    run(test)


def test_company_changes_no_bits(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            peer = QuicExpertPeer(connection)
            asked = [
                request(
                    model, n % 4, rows=1 + 5 * n, experts=(n, 11 - n), call_id=n, combine=list(Combine)[n % 2]
                )
                for n in range(5)
            ]
            asked += [dataclasses.replace(asked[4], call_id=n) for n in (5, 6, 7)]
            alone = [(await peer.call(each)).y.tobytes() for each in asked]
            together: dict[int, bytes] = {}
            most = 0

            async def ask(each: ExpertsRequest) -> None:
                answer = await peer.call(each)
                together[answer.call_id] = answer.y.tobytes()

            async def watch() -> None:
                nonlocal most
                while len(together) < 8:
                    most = max(most, server._thread.waiting)
                    await trio.sleep(0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                for each in asked:
                    nursery.start_soon(ask, each)
            assert [together[n] for n in range(8)] == alone
            assert most > 1  # they were in the queue together

    run(test)


def test_idle_streams_are_used_again(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic_peer, "IDLE_STREAMS", 3)

    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            opened: list[Stream] = []
            open_stream = connection.open_stream

            def counted(protocol: str) -> Stream:
                opened.append(open_stream(protocol))
                return opened[-1]

            monkeypatch.setattr(connection, "open_stream", counted)
            peer = QuicExpertPeer(connection)
            for _ in range(5):
                await peer.call(request(model))
            assert len(opened) == 1
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(peer.call, request(model))
            assert len(opened) == 6
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(peer.call, request(model))
            assert len(opened) == 6

    run(test)


# --- refusals ---


def test_every_refusal_of_a_request(model: ModelParts) -> None:
    async def test() -> None:
        cells = cells_of(model, [range(2, 6)], layers=[0, 1])
        async with serving(model, cells) as (server, endpoint), connected(endpoint) as connection:

            async def check(code: RefusalCode, words: str, **changed: Any) -> Refusal:
                before = server.counts.refused
                refusal = await refusal_of(connection, request(model, **{"experts": (2, 5), **changed}))
                assert refusal.code is code and words in refusal.text
                assert server.counts.refused == before + 1
                asked = request(model, 1, experts=(2, 5))
                answer = await QuicExpertPeer(connection).call(asked)
                assert answer.y.tobytes() == rows_of(model, asked).tobytes()
                return refusal

            await check(RefusalCode.UNKNOWN_MODEL, "is not served here", model_id=bytes(32))
            await check(RefusalCode.UNKNOWN_CALL, "nothing of layer 3", layer=3)
            await check(RefusalCode.UNKNOWN_CALL, "nothing of layer 0", call_index=1)
            await check(RefusalCode.UNKNOWN_CALL, "nothing of layer 0", call_index=255)
            held = await check(RefusalCode.NOT_HELD, "layer 0", experts=(7, 3, 0, 11, 1))
            assert held.missing == (0, 1, 7, 11)
            beyond = await check(RefusalCode.NOT_HELD, "layer 0", experts=(65535, 12, 5))
            assert beyond.missing == (12, 65535)
            narrow = np.ones((3, 255), np.float32)
            await check(RefusalCode.MALFORMED, "takes rows of 256 and gives 256, asked were 255", x=narrow)
            await check(RefusalCode.MALFORMED, "asked were 256 and 257", n_out=257)
            await check(RefusalCode.MALFORMED, "weighs after", weights=None)

    run(test)


def test_weights_where_none_belong(parts: Parts) -> None:
    llama4 = parts("llama4")

    async def test() -> None:
        async with (
            serving(llama4, cells_of(llama4, [range(8)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            refusal = await refusal_of(connection, request(llama4, 1, experts=(5,)))
            assert refusal.code is RefusalCode.MALFORMED and "weighs before" in refusal.text

    run(test)


def broken(model: ModelParts, change: Callable[[bytearray], object]) -> bytes:
    message = bytearray(encode_message(request(model)))
    change(message)
    return bytes(message)


def test_malformed_messages(model: ModelParts) -> None:
    nan = np.full((3, 256), np.nan, np.float32)
    good = encode_message(request(model))
    x_at = good.index(request(model).x.tobytes())
    weights_at = good.index(np.asarray(request(model).weights).tobytes())
    inf = struct.pack("<f", np.inf)
    answer = ExpertsAnswer(7, 0, 0, np.zeros((6, 256), np.float32), Codec.F32, Combine.ROWS)
    bad: list[tuple[bytes, str, int]] = [
        (b"", "too few", 0),
        (b"GET / HTTP/1.1\r\n\r\n", "it begins with", 0),
        (good[:-1], "", 7),
        (good + b"\x00", "", 7),
        (broken(model, lambda m: m.__setitem__(4, 9)), "version 9", 0),
        (good[:x_at] + nan.tobytes() + good[x_at + nan.nbytes :], "NaN", 7),
        (good[:weights_at] + inf + good[weights_at + 4 :], "NaN or infinity", 7),
        (encode_message(answer), "a request is expected here", 0),
        (encode_message(Refusal(7, 0, 0, RefusalCode.INTERNAL)), "a request is expected here", 0),
    ]

    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            for number, (message, words, call_id) in enumerate(bad, 1):
                reply = await raw(connection, message)
                assert isinstance(reply, Refusal) and reply.code is RefusalCode.MALFORMED, number
                assert words in reply.text and reply.call_id == call_id, number
                assert server.counts.refused == number
                await still_answers(model, connection)
            # The same stream goes on too.
            stream = connection.open_stream(PROTOCOL_ID)
            await stream.send_message(b"nonsense and more")
            assert isinstance(decode_message(await stream.receive_message(1 << 16)), Refusal)
            await stream.send_message(good)
            assert isinstance(decode_message(await stream.receive_message(1 << 16)), ExpertsAnswer)

    run(test)


def test_a_message_announced_too_long_ends_its_stream_only(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            stream = connection.open_stream(PROTOCOL_ID)
            with pytest.raises(StreamClosed):
                # More than it would take; the stream is reset while it is written, or before an answer.
                await stream.send_message(bytes(MAX_REQUEST_BYTES + 1))
                await stream.receive_message(1 << 16)
            await still_answers(model, connection)

    run(test)


class Busy:
    """Keeps a server's compute thread at work until let go."""

    def __init__(self, server: server_module.ExpertServer, nursery: trio.Nursery) -> None:
        self._go = threading.Event()
        nursery.start_soon(server._thread.run, self._go.wait)

    def let_go(self) -> None:
        self._go.set()


def test_a_deadline_that_passes_in_the_queue(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
            trio.open_nursery() as nursery,
        ):
            busy = Busy(server, nursery)
            done: list[object] = []

            async def ask(deadline_ms: int) -> None:
                try:
                    done.append(
                        await QuicExpertPeer(connection).call(request(model, deadline_ms=deadline_ms))
                    )
                except Refused as refused:
                    done.append(refused.refusal.code)

            nursery.start_soon(ask, 20)
            nursery.start_soon(ask, 10_000)
            while server._thread.waiting < 3:
                await trio.sleep(0.002)
            await trio.sleep(0.05)
            busy.let_go()
            while len(done) < 2:
                await trio.sleep(0.002)
            assert RefusalCode.DEADLINE in done
            assert any(isinstance(each, ExpertsAnswer) for each in done)
            await still_answers(model, connection)

    run(test)


def test_overload(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_WAITING", 3)

    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
            trio.open_nursery() as nursery,
        ):
            await still_answers(model, connection)  # from now on the server knows how long a call takes
            busy = Busy(server, nursery)
            answered: list[ExpertsAnswer] = []

            async def ask() -> None:
                answered.append(await QuicExpertPeer(connection).call(request(model)))

            for _ in range(2):
                nursery.start_soon(ask)
            while server._thread.waiting < 3:
                await trio.sleep(0.002)
            refusal = await refusal_of(connection, request(model))
            assert refusal.code is RefusalCode.OVERLOADED and "3 calls are waiting" in refusal.text
            assert refusal.load >= 1
            busy.let_go()
            while len(answered) < 2:
                await trio.sleep(0.002)
            await still_answers(model, connection)
            assert server._thread.waiting == 0

    run(test)


def test_experts_that_give_no_numbers(parts: Parts) -> None:
    """f32 overflows: finite rows in, infinity out."""
    model = parts("qwen3moe")

    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(8)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            huge = np.full((3, 64), 3e38, np.float32)
            refusal = await refusal_of(connection, request(model, x=huge))
            assert refusal.code is RefusalCode.INTERNAL and "NaN or infinity" in refusal.text
            await still_answers(model, connection)

    run(test)


def test_a_caller_that_gives_up_or_goes_away(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
            trio.open_nursery() as nursery,
        ):
            busy = Busy(server, nursery)
            peer = QuicExpertPeer(connection)
            with trio.move_on_after(0.05) as patience:
                await peer.call(request(model))
            assert patience.cancelled_caught
            async with connected(endpoint) as other:
                with trio.move_on_after(0.05):
                    await QuicExpertPeer(other).call(request(model))
            busy.let_go()
            # The late answer went nowhere, and not to the next question.
            asked = request(model, 2, rows=2, call_id=8)
            answer = await peer.call(asked)
            assert answer.call_id == 8 and answer.y.tobytes() == rows_of(model, asked).tobytes()

    run(test)


def test_a_server_that_ends_is_a_peer_error(model: ModelParts) -> None:
    async def test() -> None:
        async with listening({}) as client:
            async with serving(model, cells_of(model, [range(12)])) as (_, endpoint):
                connection = await client.connect(address_of(endpoint))
                peer = QuicExpertPeer(connection, label=lambda peer: "the kitchen")
                await peer.call(request(model))
            await connection.closed.wait()
            with pytest.raises(PeerError) as caught:
                await peer.call(request(model))
            assert "connection to the kitchen lost" in str(caught.value)
            assert caught.value.peer == connection.peer_id

    run(test)


@pytest.mark.parametrize("kind", ["garbage", "request", "long"])
def test_a_lying_servers_reply_is_a_peer_error(model: ModelParts, kind: str) -> None:
    async def test() -> None:
        asked = request(model)
        replies = {
            "garbage": b"\x00" * 40,
            "request": encode_message(asked),
            "long": bytes(max_reply_bytes(asked) + 1),
        }

        async def lie(stream: Stream) -> None:
            while True:
                await stream.receive_message(1 << 20)
                await stream.send_message(replies[kind])

        async with listening({PROTOCOL_ID: lie}) as endpoint, connected(endpoint) as connection:
            peer = QuicExpertPeer(connection)
            for _ in range(3):
                with pytest.raises(PeerError) as caught:
                    await peer.call(asked)
                assert caught.value.peer == connection.peer_id
                if kind != "long":
                    assert isinstance(caught.value, ProtocolError)
            assert connection.is_open

    run(test)


# --- what it says it serves ---


def test_holdings(model: ModelParts, parts: Parts) -> None:
    grove = parts("grovemoe")

    async def test() -> None:
        cells = cells_of(model, [range(2, 5), range(8, 9)], layers=[0, 1, 3])
        cells.add(grove.stored.model_id, grove.manifest, grove.held)
        assert cells.count() == 3 * 4 + 3 * (8 + 4)
        async with serving(model, cells, name="kitchen") as (_, endpoint), connected(endpoint) as connection:
            told = await ask_holdings(connection)
            assert told == await ask_holdings(connection)
            assert (
                told.name == "kitchen"
                and told.codecs == ["f32", "f16", "int8"]
                and told.combines == ["rows", "sum", "stable"]
            )
            demo, other = told.slices
            assert demo.model_id == model.stored.model_id and demo.architecture == "qwen2moe"
            runs = [(2, 4), (8, 8)]
            assert demo.experts == [(0, 1, runs), (3, 3, runs)]
            assert other.experts == [(0, 2, [(0, 7)])]

    run(test)


def test_a_broken_holdings_request_ends_its_stream_only(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (_, endpoint),
            connected(endpoint) as connection,
        ):
            for message in (b"", b"{}", b'{"versions":[]}', bytes(holdings.MAX_REQUEST_BYTES + 1)):
                stream = connection.open_stream(holdings.PROTOCOL_ID)
                with pytest.raises(StreamClosed):
                    await stream.send_message(message)
                    await stream.receive_message(1 << 20)
            await ask_holdings(connection)
            await still_answers(model, connection)

    run(test)


def test_chunk_experts_alone_cannot_be_told(parts: Parts) -> None:
    grove = parts("grovemoe")
    cells = Cells()
    chunks = {key: held for key, held in grove.held.items() if key[1] == "chexps"}
    cells.add(grove.stored.model_id, grove.manifest, chunks)
    with pytest.raises(LocalError, match="only chunk experts"):
        cells.slices()


# --- the compute thread ---


def test_jobs_run_in_order_on_one_thread() -> None:
    async def test() -> None:
        thread = ComputeThread("test")
        seen: list[tuple[int, int]] = []

        def job(number: int) -> int:
            seen.append((number, threading.get_ident()))
            return number * 2

        results: list[int] = []

        async def ask(number: int) -> None:
            results.append(await thread.run(job, number))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
        assert sorted(number for number, _ in seen) == list(range(10))
        assert sorted(results) == [2 * n for n in range(10)]
        idents = {ident for _, ident in seen}
        assert len(idents) == 1 and threading.get_ident() not in idents
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        assert await thread.run(job, 5) == 10
        assert thread.waiting == 0
        thread.close()

    run(test)


def test_callers_take_turns() -> None:
    async def test() -> None:
        thread = ComputeThread("test")
        go = threading.Event()
        seen: list[str] = []

        async def ask(caller: str, number: int) -> None:
            await thread.run(seen.append, f"{caller}{number}", caller=caller)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, go.wait)
            await trio.testing.wait_all_tasks_blocked()
            for caller, number in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("c", 2)]:
                nursery.start_soon(ask, caller, number)
                await trio.testing.wait_all_tasks_blocked()
            assert thread.has_waiting("c") and not thread.has_waiting("d")
            go.set()
        assert seen == ["a1", "b1", "c1", "a2", "c2", "a3"]
        assert not thread.has_waiting("a") and thread.waiting == 0
        thread.close()

    run(test)


def test_a_cancelled_wait_does_not_wait_for_the_job() -> None:
    async def test() -> None:
        thread = ComputeThread("test")
        go = threading.Event()
        begun = time.perf_counter()
        with trio.move_on_after(0.02):
            await thread.run(go.wait, 60)
        assert time.perf_counter() - begun < 30
        assert thread.waiting == 0
        go.set()
        assert await thread.run(lambda: "next") == "next"
        thread.close()

    run(test)


def test_a_job_that_outlives_the_event_loop() -> None:
    thread = ComputeThread("test")
    go = threading.Event()

    async def leave() -> None:
        with trio.move_on_after(0.02):
            await thread.run(go.wait, 10)

    trio.run(leave)
    go.set()
    thread.close()
