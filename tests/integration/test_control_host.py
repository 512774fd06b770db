"""The control plane's host over real sockets: streams, bounds, hostile peers, py-libp2p as a foreigner."""

from __future__ import annotations

import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.identity import Identity
from routing.libp2p import inbound_limits, yamux
from routing.libp2p.host import ControlHost
from routing.libp2p.muxed_stream import MuxedStream, StreamBroken
from routing.libp2p.secure_channel import ConnectionLost, SecureChannel, secure
from routing.libp2p.yamux_frames import INITIAL_WINDOW, SYN, Kind, encode_frame
from routing.wire.multistream import Dialer, ProtocolRefused

ECHO = "/panal-test/echo/1"
LIMIT = 20.0


async def echo(stream: MuxedStream) -> None:
    while data := await stream.read(1 << 16):
        await stream.write(data)


@asynccontextmanager
async def hosts(count: int = 2) -> AsyncIterator[list[ControlHost]]:
    """Running hosts; the first listens and echoes, the others only dial."""
    made = [
        ControlHost(Identity.generate(), listen=("127.0.0.1", 0) if not i else None) for i in range(count)
    ]
    made[0].set_handler(ECHO, echo)
    async with trio.open_nursery() as nursery:
        for host in made:
            await nursery.start(host.run)
        yield made
        nursery.cancel_scope.cancel()


def address_of(host: ControlHost) -> ControlAddress:
    return ControlAddress.parse(host.local_addresses[0]).with_peer(host.peer_id)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await test()

    trio.run(limited)


async def read_all(stream: MuxedStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await stream.read(1 << 16)
    return data


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


def test_connect_echo_and_disconnect() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            events: list[str] = []
            client.watch(
                connected=lambda peer: events.append("connected"),
                disconnected=lambda peer: events.append("disconnected"),
                identified=lambda peer, info: events.append("identified"),
            )
            await client.connect(address_of(server), timeout=5)
            await client.connect(address_of(server), timeout=5)  # is there already
            assert client.is_connected(server.peer_id) and client.remote_ip(server.peer_id) == "127.0.0.1"
            assert client.dialed(server.peer_id) and not server.dialed(client.peer_id)
            info = await client.wait_identified(server.peer_id)
            assert info is not None and ECHO in info.protocols
            assert info.addresses == (address_of(server).with_peer(None),)
            stream = await client.open_stream(server.peer_id, ECHO, timeout=5)
            assert (stream.peer_id, stream.remote) == (server.peer_id, "127.0.0.1")
            payload = bytes(range(256)) * 8192  # eight windows

            async def send() -> None:
                await stream.write(payload)
                stream.close_write()

            received = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while data := await stream.read(1 << 20):
                    received += data
            assert received == payload
            await client.disconnect(server.peer_id)
            await until(lambda: not client.is_connected(server.peer_id) and not server.connected_peers)
            await until(lambda: events == ["connected", "identified", "disconnected"])
            with pytest.raises(ConnectionLost, match="not connected"):
                await client.open_stream(server.peer_id, ECHO, timeout=5)

    run(test)


def test_peers_learn_of_new_protocols() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            await client.wait_identified(server.peer_id)
            await server.wait_identified(client.peer_id)
            server.set_handler("/panal-test/new/1", echo)
            await until(lambda: "/panal-test/new/1" in client.info(server.peer_id).protocols)  # type: ignore[union-attr]

    run(test)


def test_refusals_are_one_line() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            address = address_of(server)
            stranger = Identity.generate().peer_id
            with pytest.raises(PeerError) as wrong:
                await client.connect(address.with_peer(stranger), timeout=5)
            assert server.peer_id in str(wrong.value) and stranger in str(wrong.value)
            with pytest.raises(LocalError, match="names no peer"):
                await client.connect(address.with_peer(None), timeout=5)
            with pytest.raises(LocalError, match="itself"):
                await server.connect(address, timeout=5)
            closed = ControlAddress.parse(f"/ip4/127.0.0.1/tcp/1/p2p/{stranger}")
            with pytest.raises(PeerError, match="refused") as refused:
                await client.connect(closed, timeout=5)
            assert "\n" not in str(wrong.value) + str(refused.value)
            await client.connect(address, timeout=5)
            with pytest.raises(ProtocolRefused, match="does not speak /other"):
                await client.open_stream(server.peer_id, "/other", timeout=5)
            with pytest.raises(LocalError, match="can't listen"):
                await ControlHost(Identity.generate(), listen=("127.0.0.1", address.port)).run()

    run(test)


def test_a_silent_peer_costs_the_timeout_only() -> None:
    async def test() -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        async with hosts(1) as (host,):
            with pytest.raises(PeerError, match="did not answer within"):
                await host.connect(
                    ControlAddress.of("127.0.0.1", port, Identity.generate().peer_id), timeout=0.2
                )
        await listeners[0].aclose()

    run(test)


def test_a_failing_handler_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(stream: MuxedStream) -> None:
        await stream.read(1)
        raise ZeroDivisionError

    async def test() -> None:
        async with hosts() as (server, client):
            server.set_handler("/fails", fails)
            await client.connect(address_of(server), timeout=5)
            good = await client.open_stream(server.peer_id, ECHO, timeout=5)
            bad = await client.open_stream(server.peer_id, "/fails", timeout=5)
            await bad.write(b"x")
            with pytest.raises(StreamBroken, match="reset"):
                await bad.read(1)
            await good.write(b"still here")
            assert await good.read(100) == b"still here"

    with caplog.at_level(logging.CRITICAL):
        run(test)


def test_an_aborted_reader_frees_what_was_unread() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            for _ in range(40):  # 40 windows are more than MAX_UNREAD
                stream = await client.open_stream(server.peer_id, ECHO, timeout=5)
                await stream.write(bytes(INITIAL_WINDOW))
                await stream.read(1)
                stream.abort()
                stream.abort()
            stream = await client.open_stream(server.peer_id, ECHO, timeout=5)
            await stream.write(b"fresh")
            assert await stream.read(5) == b"fresh"

    run(test)


def test_cancelled_in_the_middle_of_a_write_leaves_the_connection_whole() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            stuck = await client.open_stream(server.peer_id, ECHO, timeout=5)
            with trio.move_on_after(0.1):
                await stuck.write(bytes(64 << 20))  # nobody reads the echo
            stuck.abort()
            stream = await client.open_stream(server.peer_id, ECHO, timeout=5)
            await stream.write(b"fresh")
            assert await stream.read(5) == b"fresh"

    run(test)


def test_cancelling_a_host_is_quick_with_many_peers() -> None:
    async def test() -> None:
        async with hosts(12) as (server, *clients):
            for client in clients:
                await client.connect(address_of(server), timeout=5)
                await client.open_stream(server.peer_id, ECHO, timeout=5)
            assert len(server.connected_peers) == 11
        # leaving the block cancelled all twelve: the test's own limit would have noticed a wait

    run(test)


# hostile peers


@asynccontextmanager
async def raw_peer(server: ControlHost) -> AsyncIterator[SecureChannel]:
    """A peer that has shaken hands and now sends whatever it likes."""
    address = address_of(server)
    socket = await trio.open_tcp_stream(address.host, address.port)
    channel = await secure(socket, Identity.generate(), expected=server.peer_id, initiator=True)
    dialer = Dialer("/yamux/1.0.0")
    await channel.write(dialer.opening())
    while dialer.agreed is None:
        dialer.receive_data(await channel.read())
    try:
        yield channel
    finally:
        with trio.CancelScope(shield=True):
            await channel.abort()


async def until_hung_up(channel: SecureChannel) -> None:
    try:
        while await channel.read():
            pass
    except PeerError:
        pass


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\xff" * 12,  # another version
        encode_frame(Kind.DATA, 0, 0, 5) + b"hello",  # data for no stream
        encode_frame(Kind.WINDOW_UPDATE, SYN, 2, 0),  # a stream with the listener's number
        encode_frame(Kind.DATA, SYN, 1, INITIAL_WINDOW + 1),  # more than the window
        encode_frame(Kind.DATA, SYN, 1, 0xFFFF_FFFF),
        encode_frame(Kind.WINDOW_UPDATE, SYN, 1, 0xFFFF_FFFF),  # a window beyond 32 bits
    ],
)
def test_whoever_breaks_yamux_is_dropped(bytes_sent: bytes) -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            async with raw_peer(server) as channel:
                await channel.write(bytes_sent)
                await until_hung_up(channel)
            await until(lambda: server.connected_peers == [client.peer_id])
            assert await client.ping(server.peer_id, timeout=5) < 5

    run(test)


def test_garbage_before_the_handshake() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            for garbage in (
                b"",
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(70_000),
                b"\x13/multistream/1.0.0\n\x07/plaintext/2.0.0\n",
            ):
                address = address_of(server)
                socket = await trio.open_tcp_stream(address.host, address.port)
                try:
                    await socket.send_all(garbage)
                    await socket.send_eof()
                    while await socket.receive_some(1000):
                        pass
                except trio.BrokenResourceError:
                    pass
                await socket.aclose()
            await client.connect(address_of(server), timeout=5)

    run(test)


def memory_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_ten_thousand_streams_are_refused_with_memory_flat() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            before = memory_kib()
            async with raw_peer(server) as channel, trio.open_nursery() as nursery:
                nursery.start_soon(until_hung_up, channel)
                try:
                    for number in range(1, 20_001, 2):
                        await channel.write(encode_frame(Kind.WINDOW_UPDATE, SYN, number, 0))
                except PeerError:
                    pass
                await until(lambda: server.connected_peers == [client.peer_id])
                nursery.cancel_scope.cancel()
            assert memory_kib() - before < 20_000
            assert await client.ping(server.peer_id, timeout=5) < 5

    run(test)


@pytest.mark.slow
def test_streams_that_nobody_reads_stop_at_the_bound() -> None:
    """A handler that never reads: the peer is held by TCP, others are not."""

    async def never_reads(stream: MuxedStream) -> None:
        await trio.sleep_forever()

    async def test() -> None:
        async with hosts() as (server, client):
            server.set_handler("/never", never_reads)
            await client.connect(address_of(server), timeout=5)
            before = memory_kib()
            sent = 0
            async with raw_peer(server) as channel:
                opening = Dialer("/never").opening()
                with trio.move_on_after(1):
                    for number in range(1, 2 * yamux.MAX_INBOUND_STREAMS, 2):
                        size = INITIAL_WINDOW - len(opening)
                        await channel.write(
                            encode_frame(Kind.DATA, SYN, number, len(opening))
                            + opening
                            + encode_frame(Kind.DATA, 0, number, size)
                            + bytes(size)
                        )
                        sent += size
                # what lies in socket buffers of both sides adds to MAX_UNREAD
                assert yamux.MAX_UNREAD - INITIAL_WINDOW < sent < 30 << 20
                assert memory_kib() - before < 60_000
                assert await client.ping(server.peer_id, timeout=5) < 5

    run(test)


def test_ping_floods_that_are_not_read_end_the_connection() -> None:
    async def test() -> None:
        async with hosts() as (server, client):
            await client.connect(address_of(server), timeout=5)
            async with raw_peer(server) as channel:
                flood = encode_frame(Kind.PING, SYN, 0, 1) * 5000
                try:
                    while True:  # its pongs fill the socket, then the queue
                        await channel.write(flood)
                except PeerError:
                    pass
            await until(lambda: server.connected_peers == [client.peer_id])

    run(test)


def test_connections_of_one_ip_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_limits, "MAX_INBOUND_PER_IP", 3)

    async def test() -> None:
        async with hosts(6) as (server, *clients):
            for client in clients[:3]:
                await client.connect(address_of(server), timeout=5)
            with pytest.raises(PeerError):
                await clients[3].connect(address_of(server), timeout=5)
            await clients[0].disconnect(server.peer_id)
            await until(lambda: len(server.connected_peers) == 2)
            await clients[3].connect(address_of(server), timeout=5)

    run(test)


def test_inbound_limits_count_households() -> None:
    limits = inbound_limits.InboundLimits()
    for number in range(inbound_limits.MAX_HANDSHAKES_PER_IP):
        assert limits.admit(f"2001:db8:0:1::{number:x}", 0.0) is not None
    assert limits.admit("2001:db8:0:1:ffff::1", 0.0) is None
    key = limits.admit("2001:db8:0:2::1", 0.0)
    assert key is not None
    limits.established(key)
    limits.gone(key, was_established=True)
    assert inbound_limits.origin("::ffff:192.0.2.1") == inbound_limits.origin("192.0.2.1") == "192.0.2.1"


def test_who_hangs_up_at_once_and_comes_again_is_slowed_down() -> None:
    limits = inbound_limits.InboundLimits()

    def visits(ip: str, now: float) -> int:
        """How many of a hundred connections in a row are let in, each gone before the next."""
        admitted = 0
        for _ in range(100):
            key = limits.admit(ip, now)
            if key is not None:
                limits.gone(key, was_established=False)
                admitted += 1
        return admitted

    assert visits("192.0.2.1", 0.0) == inbound_limits.BURST_PER_IP
    assert visits("192.0.2.1", 1.0) == inbound_limits.PER_SECOND_PER_IP
    assert visits("192.0.2.2", 1.0) == inbound_limits.BURST_PER_IP, "others are not held up"
    everybody = sum(visits(f"198.51.100.{number}", 1.0) for number in range(20))
    assert everybody < inbound_limits.BURST, "all together are bounded, too"


# a foreign implementation


@pytest.mark.slow
def test_py_libp2p_both_ways() -> None:
    libp2p = pytest.importorskip("libp2p")
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_pair
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from multiaddr import Multiaddr

    async def their_echo(stream: object) -> None:
        await stream.write(await stream.read(100))  # type: ignore[attr-defined]
        await stream.close()  # type: ignore[attr-defined]

    async def test() -> None:
        keys = create_new_key_pair()
        security = {PROTOCOL_ID: Transport(keys, noise_privkey=create_noise_pair().private_key)}
        theirs = libp2p.new_host(key_pair=keys, sec_opt=security)
        theirs.set_stream_handler(ECHO, their_echo)
        async with hosts(1) as (ours,), theirs.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            address = next(str(each) for each in theirs.get_addrs() if "/127.0.0.1/" in str(each))
            await ours.connect(ControlAddress.parse(address), timeout=5)
            peer = str(theirs.get_id())
            info = await ours.wait_identified(peer)
            assert info is not None and info.agent.startswith("py-libp2p")
            assert await ours.ping(peer, timeout=5) < 5
            stream = await ours.open_stream(peer, ECHO, timeout=5)
            await stream.write(b"to py-libp2p")
            assert await stream.read(100) == b"to py-libp2p"
            await stream.aclose()
            await ours.disconnect(peer)
            await until(lambda: not ours.is_connected(peer) and not theirs.get_network().connections)

            them = info_from_p2p_addr(Multiaddr(str(address_of(ours))))
            await theirs.connect(them)
            back = await theirs.new_stream(them.peer_id, [ECHO])
            payload = bytes(range(250)) * 1600  # beyond a window
            async with trio.open_nursery() as nursery:
                nursery.start_soon(back.write, payload)
                received = b""
                while len(received) < len(payload):
                    received += await back.read(1 << 16)
            assert received == payload

    run(test)


def test_importing_the_host_needs_no_libp2p() -> None:
    import subprocess
    import sys

    code = (
        "import sys, routing.libp2p.directory; "
        "print({name.partition('.')[0] for name in sys.modules} & {'libp2p', 'multiaddr', 'google'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
