"""What a peer can make the data plane hold: half-sent requests, unread answers, its own parting words."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio

from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.errors import Stalled, StreamClosed, TooMuchUnderWay
from routing.quic.limits import (
    ARRIVING_PER_CONNECTION,
    CHUNK_BYTES,
    CONNECTION_WINDOW,
    SEND_BACKLOG_HIGH,
    SEND_PIECE,
    Limits,
)
from routing.quic.stream import Stream
from tests.integration.test_quic_plane import (
    ECHO,
    address_of,
    each_backend,
    each_pairing,
    echo,
    run,
    running,
    until,
)

MIB = 1 << 20
TAKE = "/test/take/1"
GIVE = "/test/give/1"


class Taker:
    """Receives messages of up to 64 MiB, and keeps the errors instead of the bytes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.errors: list[PeerError] = []

    async def __call__(self, stream: Stream) -> None:
        try:
            while True:
                self.sizes.append(len(await stream.receive_message(64 * MIB)))
        except PeerError as error:
            self.errors.append(error)
            raise


class Giver:
    """Answers each request with the number of bytes it names."""

    def __init__(self) -> None:
        self.given = 0
        self.errors: list[PeerError] = []

    async def __call__(self, stream: Stream) -> None:
        try:
            while True:
                size = int.from_bytes(await stream.receive_message(8), "big")
                await stream.send_message(bytes(size))
                self.given += 1
        except PeerError as error:
            self.errors.append(error)
            raise


async def claim(connection: Connection, size: int, sent: int) -> Stream:
    """A stream on which `sent` bytes of a message of `size` bytes are on their way."""
    stream = connection.open_stream(TAKE)
    with suppress(StreamClosed):
        await stream.send_bytes(size.to_bytes(4, "big"))
        for start in range(0, sent, MIB // 4):
            await stream.send_bytes(bytes(min(MIB // 4, sent - start)))
    return stream


async def ask(connection: Connection, size: int) -> Stream:
    stream = connection.open_stream(GIVE)
    await stream.send_message(size.to_bytes(8, "big"))
    return stream


async def calls_work(client: Endpoint, server: Endpoint) -> None:
    stream = (await client.connect(address_of(server))).open_stream(ECHO)
    await stream.send_message(b"x")
    assert await stream.receive_message(1) == b"x"
    stream.finish()


def unsent_by(endpoint: Endpoint, streams: int = 100) -> int:
    """What its engines hold unsent on streams that peers opened."""
    return sum(each.core.unsent(4 * number) for each in endpoint.connections for number in range(streams))


# --- requests that stop before their end ---


@pytest.mark.slow
def test_half_sent_requests_of_a_connection_hold_no_more_than_their_share() -> None:
    async def test() -> None:
        taker = Taker()
        async with (
            running("qh3", {TAKE: taker, ECHO: echo}) as server,
            running("qh3") as hostile,
            running("qh3") as honest,
        ):
            connection = await hostile.connect(address_of(server))
            tracemalloc.start()
            try:
                for _ in range(3):
                    await claim(connection, 64 * MIB, 60 * MIB)
                await trio.sleep(0.3)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            # a tenth more for what Python adds to each piece
            assert peak < (ARRIVING_PER_CONNECTION + CONNECTION_WINDOW) * 1.1
            assert len(taker.errors) == 2 and {type(each) for each in taker.errors} == {TooMuchUnderWay}
            assert taker.errors[0].peer == hostile.identity.peer_id and "\n" not in str(taker.errors[0])
            await calls_work(honest, server)

    run(test, seconds=40)


@each_backend
def test_the_newest_claim_is_reset_and_the_older_one_completes(backend: str) -> None:
    async def test() -> None:
        taker = Taker()
        limits = Limits(arriving_per_connection=3 * MIB)
        async with running(backend, {TAKE: taker}, limits=limits) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            older = await claim(connection, 2 * MIB, 2 * MIB - 1)
            newer = await claim(connection, 2 * MIB, 2 * MIB - 1)
            with pytest.raises(StreamClosed, match="reset the stream, code 5"):
                await newer.receive_message(1)
            await until(lambda: taker.errors)
            assert isinstance(taker.errors[0], TooMuchUnderWay) and not taker.sizes
            await older.send_bytes(b"x")
            await until(lambda: taker.sizes)
            assert taker.sizes == [2 * MIB] and server.arriving.total == 0
            again = await claim(connection, 2 * MIB, 2 * MIB)  # room has come back
            await until(lambda: len(taker.sizes) == 2)
            again.finish()

    run(test)


@each_backend
def test_who_holds_most_of_the_endpoint_pays_for_it(backend: str) -> None:
    async def test() -> None:
        taker = Taker()
        limits = Limits(arriving=4 * MIB)
        async with (
            running(backend, {TAKE: taker}, limits=limits) as server,
            running(backend) as hostile,
            running(backend) as honest,
        ):
            attack = await hostile.connect(address_of(server))
            for _ in range(2):
                await claim(attack, 2 * MIB, 2 * MIB - MIB // 8)
            await until(lambda: server.arriving.total > 3 * MIB)
            call = await claim(await honest.connect(address_of(server)), MIB, MIB - 1)
            await until(lambda: taker.errors)
            assert [each.peer for each in taker.errors] == [hostile.identity.peer_id]
            assert isinstance(taker.errors[0], TooMuchUnderWay)
            await call.send_bytes(b"x")
            await until(lambda: taker.sizes)
            await attack.aclose()
            await until(lambda: server.arriving.total == 0)

    run(test)


@each_backend
def test_one_large_message_passes_both_ways_whatever_the_shares(backend: str) -> None:
    async def test() -> None:
        limits = Limits(arriving_per_connection=MIB, sending_per_connection=MIB)
        async with running(backend, limits=limits) as server, running(backend, limits=limits) as client:
            stream = (await client.connect(address_of(server))).open_stream(ECHO)
            message = os.urandom(8 * MIB)
            await stream.send_message(message[:100], message[100:])
            assert await stream.receive_message(8 * MIB) == message

    run(test)


@pytest.mark.slow
def test_the_largest_request_and_a_very_long_answer_pass() -> None:
    async def test() -> None:
        taker, giver = Taker(), Giver()
        async with running("qh3", {TAKE: taker, GIVE: giver}) as server, running("qh3") as client:
            connection = await client.connect(address_of(server))
            stream = connection.open_stream(TAKE)
            await stream.send_message(bytes(64 * MIB))
            await until(lambda: taker.sizes == [64 * MIB], 10)
            answer = await ask(connection, 200_000_000)
            assert len(await answer.receive_message(200_000_000)) == 200_000_000
            assert not taker.errors and not giver.errors

    run(test, seconds=40)


@pytest.mark.slow
@each_backend
def test_a_request_that_stops_is_given_up_but_not_an_idle_or_a_slow_one(backend: str) -> None:
    async def test() -> None:
        taker = Taker()
        limits = Limits(stall_seconds=1)
        async with (
            running(backend, {TAKE: taker, ECHO: echo}, limits=limits) as server,
            running(backend) as client,
        ):
            connection = await client.connect(address_of(server))
            idle = connection.open_stream(ECHO)
            await idle.send_message(b"x")
            stopped = await claim(connection, 100_000, 99_999)
            slow = await claim(connection, 3 * MIB, MIB // 4)
            for _ in range(10):
                await trio.sleep(0.35)
                await slow.send_bytes(bytes(MIB // 4))
            await slow.send_bytes(bytes(MIB // 4))
            await until(lambda: taker.sizes == [3 * MIB])
            with pytest.raises(StreamClosed, match="code 6"):
                await stopped.receive_message(1)
            assert len(taker.errors) == 1 and isinstance(taker.errors[0], Stalled)
            assert await idle.receive_message(1) == b"x"
            await idle.send_message(b"y")
            assert await idle.receive_message(1) == b"y"

    run(test)


@each_backend
def test_bytes_that_come_one_by_one_are_laid_together(backend: str) -> None:
    async def test() -> None:
        async with running(backend, {TAKE: Taker()}) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            stream = await claim(connection, 100_000, 0)
            for _ in range(1500):
                await stream.send_bytes(b"ab")
                if connection.core.unsent(stream.stream_id):
                    await trio.sleep(0.001)
            (inbound,) = server.connections
            await until(lambda: inbound._streams)
            (taking,) = inbound._streams.values()
            await until(lambda: taking.unread >= 3000)
            assert len(taking._chunks) <= 2 * 3004 / CHUNK_BYTES + 2
            await stream.send_bytes(bytes(97_000))
            await until(lambda: not taking.unread)

    run(test)


# --- answers nobody reads ---


@pytest.mark.slow
@each_backend
def test_unread_answers_are_not_copied_into_the_engine_and_end(backend: str) -> None:
    async def test() -> None:
        giver = Giver()
        limits = Limits(stall_seconds=1)
        async with running(backend, {GIVE: giver}, limits=limits) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            for _ in range(4):
                await ask(connection, 8 * MIB)
            await until(lambda: server.sending.total > 20 * MIB)
            await trio.sleep(0.3)
            assert 0 < unsent_by(server) <= 4 * (SEND_BACKLOG_HIGH + SEND_PIECE)
            await until(lambda: len(giver.errors) == 4, 6)
            assert {type(each) for each in giver.errors} == {Stalled} and not giver.given
            assert server.sending.total == 0 and unsent_by(server) == 0
            assert connection.is_open

    run(test)


@each_backend
def test_answers_that_wait_are_bounded_and_the_oldest_arrives(backend: str) -> None:
    async def test() -> None:
        giver = Giver()
        limits = Limits(sending_per_connection=20 * MIB)
        async with running(backend, {GIVE: giver}, limits=limits) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            oldest = await ask(connection, 16 * MIB)
            await until(lambda: server.sending.total)
            others = [await ask(connection, 14 * MIB) for _ in range(3)]
            await until(lambda: len(giver.errors) == 3)
            assert {type(each) for each in giver.errors} == {TooMuchUnderWay}
            assert server.sending.total <= 20 * MIB
            for other in others:
                with pytest.raises(StreamClosed, match="code 5"):
                    await other.receive_message(14 * MIB)
            assert await oldest.receive_message(16 * MIB) == bytes(16 * MIB)

    run(test)


@each_backend
def test_small_answers_of_finished_streams_are_bounded_too(backend: str) -> None:
    async def test() -> None:
        async def once(stream: Stream) -> None:
            await stream.receive_message(8)
            await stream.send_message(bytes(SEND_BACKLOG_HIGH))

        limits = Limits(sending_per_connection=12 * MIB)
        async with (
            running(backend, {GIVE: once, ECHO: echo}, limits=limits) as server,
            running(backend, limits=Limits(unread_bytes=1 << 16)) as client,
            running(backend) as honest,
        ):
            connection = await client.connect(address_of(server))
            for _ in range(30):
                await ask(connection, 0)
            await trio.sleep(1)
            assert 4 * MIB < unsent_by(server) <= 13 * MIB
            await calls_work(honest, server)

    run(test)


@each_backend
def test_long_and_short_messages_of_several_tasks_do_not_mix(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            stream = (await client.connect(address_of(server))).open_stream(ECHO)
            sizes = [5, 3 * MIB, 70_000, 2 * MIB + 1, 9]

            async def send(letter: bytes, size: int) -> None:
                await stream.send_message(letter * size)

            async with trio.open_nursery() as nursery:
                for number, size in enumerate(sizes):
                    nursery.start_soon(send, b"%d" % number, size)
                received = [await stream.receive_message(8 * MIB) for _ in sizes]
            assert sorted(map(len, received)) == sorted(sizes)
            assert all(each == each[:1] * len(each) for each in received)

    run(test)


@each_backend
def test_half_a_message_is_followed_by_nothing(backend: str) -> None:
    async def test() -> None:
        taker = Taker()
        async with running(backend, {TAKE: taker}) as server, running(backend) as client:
            stream = (await client.connect(address_of(server))).open_stream(TAKE)
            with trio.move_on_after(0.01) as scope:
                await stream.send_message(bytes(60 * MIB))
            assert scope.cancelled_caught
            with pytest.raises(StreamClosed, match="reset here"):
                await stream.send_message(b"x")
            await until(lambda: server.arriving.total == 0 and not client.sending.total)
            assert not taker.sizes

    run(test)


# --- ends ---


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@each_backend
def test_a_connection_that_is_over_is_freed_without_the_garbage_collector(backend: str) -> None:
    async def test() -> None:
        giver = Giver()
        async with running(backend, {GIVE: giver}) as server:
            async with running(backend) as client:
                connection = await client.connect(address_of(server))
                await ask(connection, 4 * MIB)
                await until(lambda: server.sending.total)
                inbound = [weakref.ref(each) for each in server.connections]
                assert len(inbound) == 1
            await until(lambda: giver.errors)
            giver.errors.clear()  # an error's traceback knows the stream
            await until(lambda: not server._known and inbound[0]() is None, 6)

    with no_garbage_collection():
        run(test)


@each_pairing
def test_a_reason_for_closing_is_made_printable_and_short(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        async with running(server_backend) as server, running(client_backend) as client:
            connection = await client.connect(address_of(server))
            await until(lambda: server.connections)
            (inbound,) = server.connections
            connection.core.shut(0, "\x1b[2J good\nbye \u202e" + "\u00e9" * 300)
            connection.flush()
            await until(lambda: inbound.closed.is_set())
            reason = inbound.close_reason
            assert reason is not None and reason.isprintable() and reason.startswith("[2J good bye")
            assert 190 <= len(reason.encode()) <= 200

    run(test)


@each_backend
def test_a_reason_of_nothing_printable_still_says_something(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            await until(lambda: server.connections)
            (inbound,) = server.connections
            connection.core.shut(0, "\x07\x07")
            connection.flush()
            await until(lambda: inbound.closed.is_set())
            assert inbound.close_reason

    run(test)
