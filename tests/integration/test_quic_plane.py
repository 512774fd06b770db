"""The data plane over real sockets: both engines against each other, honest peers and others."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from routing.errors import LocalError, PeerError
from routing.identity import Identity, PeerId
from routing.multiaddr import PeerAddress
from routing.quic.certificate import make_certificate
from routing.quic.core import BACKENDS
from routing.quic.endpoint import Endpoint, Handler
from routing.quic.errors import ConnectFailed, MessageTooLarge, StreamClosed, WrongPeer
from routing.quic.limits import CONNECTION_WINDOW, SEND_BACKLOG_HIGH, Limits
from routing.quic.stream import Stream
from routing.quic.warmup import ENOUGH_WINDOW
from tests.integration.udp_proxy import UdpProxy, through

ECHO = "/test/echo/1"
MAX_BYTES = 8 << 20

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_pairing = pytest.mark.parametrize(
    ("client_backend", "server_backend"), [(a, b) for a in BACKENDS for b in BACKENDS]
)


def run(test: Callable[..., Awaitable[None]], *arguments: Any, seconds: float = 20) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await test(*arguments)

    trio.run(bounded)


async def echo(stream: Stream) -> None:
    while True:
        await stream.send_message(await stream.receive_message(MAX_BYTES))


@asynccontextmanager
async def running(
    backend: str, handlers: dict[str, Handler] | None = None, **options: Any
) -> AsyncIterator[Endpoint]:
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(
            Identity.generate(),
            listen=("127.0.0.1", 0),
            backend=backend,
            handlers={ECHO: echo} if handlers is None else handlers,
            **options,
        )
        await nursery.start(endpoint.run)
        yield endpoint
        nursery.cancel_scope.cancel()


def address_of(endpoint: Endpoint) -> PeerAddress:
    return PeerAddress(*endpoint.local_address, endpoint.identity.peer_id)


async def until(condition: Callable[[], object], seconds: float = 3) -> float:
    """Wait for a condition; returns how long it took."""
    start = time.perf_counter()
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)
    return time.perf_counter() - start


# --- messages ---


@each_pairing
def test_messages_of_all_sizes_come_back(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        async with running(server_backend) as server, running(client_backend, accept=False) as client:
            connection = await client.connect(address_of(server))
            assert connection.peer_id == server.identity.peer_id
            assert [each.peer_id for each in server.connections] == [client.identity.peer_id]
            stream = connection.open_stream(ECHO)
            for size in (0, 1, 3, 1452, 12_288, 1_000_000):
                message = os.urandom(size)
                middle = size // 3
                await stream.send_message(message[:middle], memoryview(message)[middle:], bytearray(), b"")
                assert await stream.receive_message(size) == message
            assert 0 < connection.rtt < 1
            assert connection.bytes_sent > 1_000_000 and connection.bytes_received > 1_000_000

    run(test)


@each_pairing
def test_many_streams_at_once(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        done: list[int] = []

        async def ask(stream: Stream, number: int) -> None:
            for size in (100, 12_288):
                message = random.Random(number).randbytes(size)
                await stream.send_message(message)
                assert await stream.receive_message(MAX_BYTES) == message
            await stream.aclose()
            done.append(number)

        async with running(server_backend) as server, running(client_backend) as client:
            connection = await client.connect(address_of(server))

            async def opened() -> Stream:
                while True:
                    try:
                        return connection.open_stream(ECHO)
                    except StreamClosed:  # none is allowed until the server has seen others end
                        await trio.sleep(0.01)

            for _ in range(3):  # more in all than QUIC allows at once: closing gives room
                async with trio.open_nursery() as nursery:
                    for number in range(80):
                        nursery.start_soon(ask, await opened(), number)
            assert len(done) == 240
            await until(lambda: not connection._streams)

    run(test)


@each_backend
def test_messages_from_several_tasks_do_not_mix(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            stream = (await client.connect(address_of(server))).open_stream(ECHO)
            received: list[bytes] = []

            async def send(letter: bytes) -> None:
                for _ in range(20):
                    await stream.send_message(letter * 5000, letter * 7000)
                    await trio.sleep(0)

            async with trio.open_nursery() as nursery:
                for letter in (b"a", b"b", b"c"):
                    nursery.start_soon(send, letter)
                received.extend([await stream.receive_message(MAX_BYTES) for _ in range(60)])
            assert sorted(set(received)) == [letter * 12_000 for letter in (b"a", b"b", b"c")]

    run(test)


@each_pairing
def test_a_last_message_brings_the_end(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        async def once(stream: Stream) -> None:
            await stream.send_message(await stream.receive_message(MAX_BYTES), end=True)

        async with (
            running(server_backend, handlers={ECHO: once}) as server,
            running(client_backend) as client,
        ):
            connection = await client.connect(address_of(server))
            for size in (0, 100, SEND_BACKLOG_HIGH + 1, 3 * SEND_BACKLOG_HIGH):
                message = random.Random(size).randbytes(size)
                stream = connection.open_stream(ECHO)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(functools.partial(stream.send_message, message, b"", end=True))
                    assert await stream.receive_message(MAX_BYTES) == message
                with pytest.raises(StreamClosed, match="already closed"):
                    await stream.send_message(b"more")
                with pytest.raises(StreamClosed, match="the peer ended the stream"):
                    await stream.receive_message(1)
            await until(lambda: not connection._streams)

    run(test)


@each_backend
def test_half_close_still_brings_the_answer(backend: str) -> None:
    async def test() -> None:
        async def answer_after_end(stream: Stream) -> None:
            total = 0
            try:
                while True:
                    total += len(await stream.receive_message(MAX_BYTES))
            except StreamClosed:
                await stream.send_message(str(total).encode())

        async with running(backend, {"/sum": answer_after_end}) as server, running(backend) as client:
            stream = (await client.connect(address_of(server))).open_stream("/sum")
            for _ in range(3):
                await stream.send_message(bytes(10_000))
            await stream.aclose()
            assert await stream.receive_message(10) == b"30000"
            with pytest.raises(StreamClosed, match="ended the stream"):
                await stream.receive_message(10)
            with pytest.raises(StreamClosed, match="already closed"):
                await stream.send_message(b"")

    run(test)


@each_backend
def test_unknown_protocol_and_failing_handler_end_one_stream_only(backend: str) -> None:
    async def test() -> None:
        async def fail(stream: Stream) -> None:
            await stream.receive_message(100)
            raise ZeroDivisionError

        async with running(backend, {ECHO: echo, "/fail": fail}) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            good = connection.open_stream(ECHO)
            for protocol, why in (("/nobody/speaks/this", "does not speak"), ("/fail", "reset")):
                stream = connection.open_stream(protocol)
                await stream.send_message(b"x")
                with pytest.raises(StreamClosed, match=why) as error:
                    await stream.receive_message(100)
                assert error.value.peer == server.identity.peer_id and "\n" not in str(error.value)
            await good.send_message(b"still here")
            assert await good.receive_message(100) == b"still here"
            assert connection.is_open

    run(test)


@each_backend
def test_a_claimed_size_is_refused_before_it_is_sent(backend: str) -> None:
    async def test() -> None:
        seen: list[Exception] = []

        async def strict(stream: Stream) -> None:
            try:
                await stream.receive_message(1000)
            except PeerError as error:
                seen.append(error)
                raise

        async with running(backend, {"/strict": strict, ECHO: echo}) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            stream = connection.open_stream("/strict")
            # the length prefix of a 3 GB message, and nothing after it
            connection.core.send(stream.stream_id, stream._opening + (3 << 30).to_bytes(4, "big"), False)
            stream._opening = b""
            connection.flush()
            with pytest.raises(StreamClosed):
                await stream.receive_message(10)
            assert isinstance(seen[0], MessageTooLarge) and str(3 << 30) in str(seen[0])
            assert seen[0].peer == client.identity.peer_id
            other = connection.open_stream(ECHO)
            await other.send_message(b"x")
            assert await other.receive_message(1) == b"x"

    run(test)


# --- identity ---


@each_backend
def test_a_wrong_peer_is_refused_and_gets_nothing(backend: str) -> None:
    async def test() -> None:
        called: list[str] = []

        async def note(stream: Stream) -> None:
            called.append(stream.peer_id)

        async with running(backend, {ECHO: note}) as server, running(backend) as client:
            wanted = Identity.generate().peer_id
            with pytest.raises(WrongPeer) as error:
                await client.connect(PeerAddress(*server.local_address, wanted))
            assert wanted in str(error.value) and server.identity.peer_id in str(error.value)
            assert not client.connections and client.connection_to(wanted) is None
            await until(lambda: not server._admission.handshakes)
            assert not server.connections and not called

    run(test)


@each_backend
def test_a_dialer_with_a_forged_identity_reaches_no_handler(backend: str) -> None:
    async def test() -> None:
        called: list[str] = []

        async def note(stream: Stream) -> None:
            called.append(stream.peer_id)

        async with running(backend, {ECHO: note}) as server, running(backend) as client:
            victim, thief = Identity.generate(), Identity.generate()

            class Forger:
                public_key = staticmethod(lambda: victim.public_key)
                sign = staticmethod(thief.private_key.sign)

            forged = make_certificate(
                Identity(Forger(), PeerId("")),  # type: ignore[arg-type]
                datetime.datetime.now(datetime.UTC),
            )
            client._settings = dataclasses.replace(client._settings, certificate=forged)
            # the dialer is done before the server's refusal arrives; what it sends must go nowhere
            with pytest.raises(PeerError):
                connection = await client.connect(address_of(server))
                stream = connection.open_stream(ECHO)
                await stream.send_message(b"secret")
                await stream.receive_message(10)
            await trio.sleep(0.05)
            assert not server.connections and not called

    run(test)


# --- back-pressure ---


@each_backend
def test_a_slow_reader_loses_nothing_and_slows_the_writer(backend: str) -> None:
    total, size = 20_000_000, 100_000

    async def test() -> None:
        digest = hashlib.sha256()

        async def slow(stream: Stream) -> None:
            for _ in range(total // size):
                digest.update(await stream.receive_message(size))
                await trio.sleep(0.004)
            await stream.send_message(b"done")

        async with running(backend, {"/sink": slow}) as server, running(backend) as client:
            stream = (await client.connect(address_of(server))).open_stream("/sink")
            expected = hashlib.sha256()
            start = time.perf_counter()
            for _ in range(total // size):
                message = os.urandom(size)
                expected.update(message)
                await stream.send_message(message)
            assert time.perf_counter() - start > 0.3, "the writer was not held back"
            assert await stream.receive_message(10) == b"done"
            assert digest.digest() == expected.digest()

    run(test)


@pytest.mark.slow
@each_backend
def test_a_stuck_reader_bounds_what_a_hostile_peer_can_make_us_hold(backend: str) -> None:
    async def test() -> None:
        go = trio.Event()
        got: list[int] = []

        async def stuck(stream: Stream) -> None:
            await go.wait()
            while len(got) < 400:
                got.append(len(await stream.receive_message(MAX_BYTES)))

        limits = Limits(unread_bytes=1 << 20)
        async with (
            running(backend, {"/stuck": stuck, ECHO: echo}, limits=limits) as server,
            running(backend) as hostile,
            running(backend) as honest,
        ):
            connection = await hostile.connect(address_of(server))
            streams = [connection.open_stream("/stuck") for _ in range(4)]
            for stream in streams:
                await stream.send_message(b"")
            for _ in range(100):  # 40 MB, without asking how much is still unsent
                for stream in streams:
                    connection.core.send(
                        stream.stream_id, (100_000).to_bytes(4, "big") + bytes(100_000), False
                    )
            connection.flush()
            await trio.sleep(1)
            (inbound,) = server.connections
            held = inbound.bytes_received
            assert held < (limits.unread_bytes + CONNECTION_WINDOW) * 1.2
            assert inbound._unread <= limits.unread_bytes + CONNECTION_WINDOW
            # others are served meanwhile
            other = (await honest.connect(address_of(server))).open_stream(ECHO)
            await other.send_message(b"x")
            assert await other.receive_message(1) == b"x"
            go.set()
            await until(lambda: len(got) >= 400, 15)

    run(test)


@each_backend
def test_a_reader_gets_what_a_hold_kept_back(backend: str) -> None:
    """Waiting lets go of the hold, which may bring the whole message before the task sleeps."""

    async def test() -> None:
        sizes: list[int] = []

        async def late(stream: Stream) -> None:
            await trio.sleep(0.2)
            sizes.append(len(await stream.receive_message(MAX_BYTES)))
            await stream.send_message(b"done")

        async with (
            running(backend, {"/late": late}, limits=Limits(unread_bytes=1 << 16)) as server,
            running(backend) as client,
        ):
            stream = (await client.connect(address_of(server))).open_stream("/late")
            await stream.send_message(bytes(1_000_000))
            assert await stream.receive_message(10) == b"done"
            assert sizes == [1_000_000]

    run(test, seconds=5)


@each_backend
def test_a_message_longer_than_all_windows_passes_when_it_is_waited_for(backend: str) -> None:
    async def test() -> None:
        async with (
            running(backend, limits=Limits(unread_bytes=1 << 18)) as server,
            running(backend) as client,
        ):
            stream = (await client.connect(address_of(server))).open_stream(ECHO)
            message = os.urandom(MAX_BYTES)
            await stream.send_message(message)
            assert await stream.receive_message(MAX_BYTES) == message

    run(test)


def test_a_held_peer_that_floods_without_credit_is_closed() -> None:
    """DATAGRAM frames know no flow control; an engine that is held would keep them all."""

    async def test() -> None:
        async def stuck(stream: Stream) -> None:
            await trio.sleep_forever()

        limits = Limits(unread_bytes=1 << 16)
        async with running("qh3", {"/stuck": stuck}, limits=limits) as server, running("qh3") as hostile:
            connection = await hostile.connect(address_of(server))
            stream = connection.open_stream("/stuck")
            await stream.send_message(bytes(500_000))
            await until(lambda: [each for each in server.connections if each._held])
            (inbound,) = server.connections
            before = inbound.bytes_received
            while connection.is_open:
                connection.send_filler(100_000)
                await trio.sleep(0.001)
            assert connection.close_reason == "kept sending without credit"
            assert inbound.bytes_received - before < 3 * CONNECTION_WINDOW

    run(test)


@each_pairing
def test_both_sides_fill_their_windows_after_the_dial(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        async with running(server_backend) as server, running(client_backend) as client:
            connection = await client.connect(address_of(server))
            await until(lambda: server.connections)
            (inbound,) = server.connections
            await until(lambda: min(connection.congestion_window, inbound.congestion_window) >= ENOUGH_WINDOW)
            assert connection.bytes_sent + inbound.bytes_sent < 2 * 3 * ENOUGH_WINDOW

    run(test)


# --- ends ---


@each_pairing
def test_a_close_is_seen_at_once_with_its_reason(client_backend: str, server_backend: str) -> None:
    async def test() -> None:
        async with running(server_backend) as server, running(client_backend) as client:
            connection = await client.connect(address_of(server))
            stream = connection.open_stream(ECHO)
            await stream.send_message(b"x")
            assert await stream.receive_message(1) == b"x"
            (inbound,) = server.connections
            await inbound.aclose("maintenance at noon")
            assert await until(lambda: connection.closed.is_set()) < 0.3
            assert connection.close_reason == "maintenance at noon" and not connection.is_open
            with pytest.raises(StreamClosed, match="maintenance at noon"):
                await stream.receive_message(1)
            with pytest.raises(StreamClosed, match="maintenance at noon"):
                connection.open_stream(ECHO)
            again = await client.connect(address_of(server))
            assert again is not connection and again.is_open

    run(test)


@each_backend
def test_an_endpoint_that_stops_says_so(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as client:
            async with running(backend) as server:
                connection = await client.connect(address_of(server))
                waiting = connection.open_stream(ECHO)
                await waiting.send_message(b"x")
                await waiting.receive_message(1)
            await until(lambda: connection.closed.is_set(), 1)
            assert connection.close_reason == "the node is shutting down"
            await until(lambda: not client._known and not client._routes, 3)

    run(test)


@pytest.mark.slow
@each_backend
def test_silent_death_is_noticed_in_seconds(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client, trio.open_nursery() as nursery:
            proxy = await nursery.start(UdpProxy(server.local_address).run)
            connection = await client.connect(through(proxy, server))
            stream = connection.open_stream(ECHO)
            await stream.send_message(b"x")
            assert await stream.receive_message(1) == b"x"
            await trio.sleep(6.5)  # idle, but alive: nothing may happen
            assert connection.is_open
            proxy.silent = True
            start = time.perf_counter()
            await stream.send_message(b"y")
            with pytest.raises(StreamClosed, match="no sign of life"):
                await stream.receive_message(1)
            assert 2 < time.perf_counter() - start < 20
            assert client.connection_to(server.identity.peer_id) is None
            await until(lambda: not server.connections, 3)
            nursery.cancel_scope.cancel()

    run(test, seconds=30)


@each_backend
def test_a_client_may_change_its_port_in_mid_stream(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client, trio.open_nursery() as nursery:
            proxy = await nursery.start(UdpProxy(server.local_address).run)
            connection = await client.connect(through(proxy, server))
            stream = connection.open_stream(ECHO)
            for number in range(20):
                message = os.urandom(100_000)
                await stream.send_message(message)
                if number == 5:
                    old, new = proxy.rebind()
                assert await stream.receive_message(MAX_BYTES) == message
            (inbound,) = server.connections
            assert old != new and inbound.remote_address[1] == new
            nursery.cancel_scope.cancel()

    run(test)


# --- dialing ---


@each_backend
def test_concurrent_dials_share_one_connection(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            found: list[object] = []

            async def dial() -> None:
                found.append(await client.connect(address_of(server)))

            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(dial)
            assert len(set(map(id, found))) == 1
            assert await client.connect(address_of(server)) is found[0]
            await until(lambda: len(server.connections) == 1)

    run(test)


@each_backend
def test_a_peer_that_dialed_can_be_called_back_on_its_connection(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend, accept=False) as client:
            await client.connect(address_of(server))
            await until(lambda: server.connections)
            back = await server.connect(PeerAddress("192.0.2.1", 9, client.identity.peer_id))
            stream = back.open_stream(ECHO)
            await stream.send_message(b"hello")
            assert await stream.receive_message(5) == b"hello"

    run(test)


@each_backend
def test_a_dial_that_is_cancelled_does_not_take_others_along(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            with trio.CancelScope() as impatient:
                impatient.cancel()
                await client.connect(address_of(server))
            assert (await client.connect(address_of(server))).is_open

    run(test)


@each_backend
def test_nobody_answers(backend: str) -> None:
    async def test() -> None:
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind(("127.0.0.1", 0))
        async with running(backend) as client:
            host, port = silent.getsockname()
            address = PeerAddress(host, port, Identity.generate().peer_id)
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.3 s"):
                await client.connect(address, timeout=0.3)
            assert not client.connections
            await until(lambda: not client._known and not client._routes, 5)
        silent.close()

    run(test)


def test_port_in_use_and_odd_addresses_are_local_errors() -> None:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("127.0.0.1", 0))
    identity = Identity.generate()
    for listen, why in (
        (taken.getsockname(), "in use"),
        (("192.0.2.77", 0), "no interface"),
        (("127.0.0.1", 70_000), "port"),
    ):
        with pytest.raises(LocalError, match=why) as error:
            Endpoint(identity, listen=listen)
        assert "\n" not in str(error.value)
    with pytest.raises(LocalError, match="unknown"):
        Endpoint(identity, backend="tcp")
    taken.close()


@each_backend
def test_ipv6_and_ipv4_on_one_socket(backend: str) -> None:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            server = Endpoint(Identity.generate(), listen=("::", 0), backend=backend, handlers={ECHO: echo})
            await nursery.start(server.run)
            for listen, host in (
                (("::", 0), "::1"),
                (("::", 0), "127.0.0.1"),
                (("127.0.0.1", 0), "127.0.0.1"),
            ):
                client = Endpoint(Identity.generate(), listen=listen, backend=backend)
                await nursery.start(client.run)
                address = PeerAddress(host, server.local_address[1], server.identity.peer_id)
                stream = (await client.connect(address)).open_stream(ECHO)
                await stream.send_message(bytes(50_000))
                assert await stream.receive_message(MAX_BYTES) == bytes(50_000)
            only4 = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), backend=backend)
            await nursery.start(only4.run)
            with pytest.raises(LocalError, match="IPv4 only"):
                await only4.connect(PeerAddress("::1", 9, Identity.generate().peer_id))
            nursery.cancel_scope.cancel()

    run(test)


# --- limits ---


@each_backend
def test_connections_per_address_are_limited(backend: str) -> None:
    async def test() -> None:
        async with (
            running(backend, limits=Limits(connections_per_ip=2)) as server,
            trio.open_nursery() as nursery,
        ):
            clients = [
                Endpoint(Identity.generate(), listen=("127.0.0.1", 0), backend=backend) for _ in range(3)
            ]
            for client in clients:
                await nursery.start(client.run)
            first = await clients[0].connect(address_of(server))
            await clients[1].connect(address_of(server))
            with pytest.raises(ConnectFailed):
                await clients[2].connect(address_of(server), timeout=0.5)
            await first.aclose()
            await until(lambda: len(server.connections) == 1)
            assert (await clients[2].connect(address_of(server))).is_open, "a place given back is not used"
            nursery.cancel_scope.cancel()

    run(test)


@each_backend
def test_streams_per_connection_are_limited(backend: str) -> None:
    async def test() -> None:
        async with (
            running(backend, limits=Limits(streams_per_connection=3)) as server,
            running(backend) as client,
        ):
            connection = await client.connect(address_of(server))
            streams = [connection.open_stream(ECHO) for _ in range(4)]
            for stream in streams:
                await stream.send_message(b"x")
            for stream in streams[:3]:
                assert await stream.receive_message(1) == b"x"
            with pytest.raises(StreamClosed):
                await streams[3].receive_message(1)
            await streams[0].aclose()
            with pytest.raises(StreamClosed):
                await streams[0].receive_message(1)
            fresh = connection.open_stream(ECHO)
            await fresh.send_message(b"y")
            assert await fresh.receive_message(1) == b"y"

    run(test)


@each_backend
def test_one_more_stream_than_quic_allows_is_an_error_of_its_own(backend: str) -> None:
    async def test() -> None:
        async with running(backend) as server, running(backend) as client:
            connection = await client.connect(address_of(server))
            with pytest.raises(StreamClosed, match="allows no further stream"):
                for _ in range(200):
                    connection.open_stream(ECHO)
            assert connection.is_open

    run(test)


@each_backend
def test_first_datagrams_that_are_junk_hold_no_place(backend: str) -> None:
    async def test() -> None:
        async with running(backend, limits=Limits(handshakes=2)) as server, running(backend) as client:
            stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for number in range(20):
                junk = b"\xc3\0\0\0\x01\x08" + bytes([number] * 8) + b"\x08" + os.urandom(1200)
                stranger.sendto(junk, server.local_address)
            await trio.sleep(0.1)
            assert not server._known and not server._routes and not server._admission.handshakes
            assert (await client.connect(address_of(server))).is_open
            stranger.close()

    run(test)
