"""The relay's WebSocket door: alone, behind nginx, and against peers that misuse it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from wsproto import ConnectionType, WSConnection

import relay.websocket as websocket_module
import relay.websocket_listener as listener_module
from relay.circuit import RelayClient
from relay.hop_wire import HOP_PROTOCOL, HopMessage, HopType, Status, decode_hop, encode_hop
from relay.service import RelayService
from relay.websocket import WebSocketError, WebSocketStream, client_tls, open_websocket
from relay.websocket_listener import WebSocketDoor, parse_proxies, server_tls
from routing.control_address import ControlAddress
from routing.errors import LocalError
from routing.libp2p.host import ControlHost
from tests.integration.nginx import make_certificate, require_nginx, running_nginx
from tests.integration.relay_parts import (
    Changes,
    address_of,
    echo,
    read_exactly,
    run,
    running_client,
    running_host,
    until,
)


@asynccontextmanager
async def running_door(host: ControlHost, **options: Any) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        door = WebSocketDoor(lambda stream, caller: host.serve_stream(stream, remote=caller), **options)
        port = await nursery.start(door.serve, "127.0.0.1", 0)
        yield port
        nursery.cancel_scope.cancel()


def door_address(host: ControlHost, port: int, *, tls: bool = False) -> ControlAddress:
    where = f"/dns4/localhost/tcp/{port}/tls/ws" if tls else f"/ip4/127.0.0.1/tcp/{port}/ws"
    return ControlAddress.parse(where).with_peer(host.peer_id)


async def reach_through(
    client: RelayClient, server: RelayClient, relay: ControlAddress, far: ControlAddress
) -> None:
    """`server` reserves at `relay`; `client`, which dials the relay at `far`, echoes 200 KB with it."""
    server.accept_datagram_circuits(echo)
    await server.reserve(relay)
    circuit = await client.open_datagram_circuit(far, server.host.peer_id)
    payload = bytes(range(256)) * 800
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.write, payload)
        assert await read_exactly(circuit, len(payload)) == payload
    circuit.abort()


def test_a_door_that_stands_alone() -> None:
    async def test() -> None:
        async with running_host(listen=("127.0.0.1", 0)) as host, running_door(host) as port:
            RelayService(host).start()
            async with running_client() as server, running_client() as client:
                await reach_through(client, server, door_address(host, port), address_of(host))

    run(test)


def test_a_door_with_tls_of_its_own(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)

    async def test() -> None:
        tls = server_tls(certificate, tmp_path / "key.pem")
        async with (
            running_host() as host,
            running_door(host, tls=tls) as port,
            running_host() as dialer,
        ):
            RelayService(host).start()
            client = RelayClient(dialer, ca_file=certificate)
            await client.reserve(door_address(host, port, tls=True))
            assert dialer.remote_ip(host.peer_id) == "127.0.0.1"

    run(test)


def test_who_may_use_only_https_is_reached_through_nginx(tmp_path: Path) -> None:
    require_nginx()
    certificate = make_certificate(tmp_path)

    async def test() -> None:
        proxies = parse_proxies(["127.0.0.1"])
        async with (
            running_host(listen=("127.0.0.1", 0)) as host,
            running_door(host, trusted_proxies=proxies) as port,
            running_nginx(tmp_path, behind=port, forwarded_for="192.0.2.66, 198.51.100.7") as https,
            running_host() as inside,
            running_client() as outside,
        ):
            service = RelayService(host)
            service.start()
            server = RelayClient(inside, ca_file=certificate)
            await reach_through(outside, server, door_address(host, https, tls=True), address_of(host))
            # and the other way: who is inside calls through the same door
            caller = RelayClient(inside, ca_file=certificate)
            await reach_through(caller, outside, address_of(host), door_address(host, https, tls=True))
            origins = {each.origin for each in service._table.reservations(trio.current_time())}
            assert origins == {"198.51.100.7", "127.0.0.1"}

    run(test)


def test_a_proxy_that_is_not_trusted_counts_as_the_caller(tmp_path: Path) -> None:
    require_nginx()
    certificate = make_certificate(tmp_path)

    async def test() -> None:
        async with (
            running_host() as host,
            running_door(host) as port,
            running_nginx(tmp_path, behind=port, forwarded_for="198.51.100.7") as https,
            running_host() as inside,
        ):
            RelayService(host).start()
            await RelayClient(inside, ca_file=certificate).reserve(door_address(host, https, tls=True))
            assert host.remote_ip(inside.peer_id) == "127.0.0.1"

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize(("ping_seconds", "survives"), [(0.5, True), (60.0, False)])
def test_pings_keep_a_proxy_from_closing_what_looks_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ping_seconds: float, survives: bool
) -> None:
    require_nginx()
    certificate = make_certificate(tmp_path)
    monkeypatch.setattr(websocket_module, "PING_SECONDS", ping_seconds)
    monkeypatch.setattr("routing.libp2p.yamux.PING_SECONDS", 60.0)

    async def test() -> None:
        async with (
            running_host() as host,
            running_door(host) as port,
            running_nginx(tmp_path, behind=port, idle_seconds=2) as https,
            running_host() as inside,
        ):
            await websocket_module.connect(
                inside, door_address(host, https, tls=True), timeout=5, ca_file=certificate
            )
            with trio.move_on_after(4):
                while inside.is_connected(host.peer_id):
                    await trio.sleep(0.05)
            assert inside.is_connected(host.peer_id) is survives

    run(test)


def test_a_reservation_comes_back_after_the_proxy_was_restarted(tmp_path: Path) -> None:
    require_nginx()
    certificate = make_certificate(tmp_path)

    async def test() -> None:
        async with running_host() as host, running_door(host) as port, running_host() as inside:
            RelayService(host).start()
            client, changes = RelayClient(inside, ca_file=certificate), Changes()
            async with trio.open_nursery() as nursery:
                async with running_nginx(tmp_path, behind=port) as https:
                    relay = door_address(host, https, tls=True)
                    nursery.start_soon(client.keep_reserved, relay, changes)
                    await until(lambda: changes.states == ["reserved"])
                await until(lambda: changes.states[-1] == "lost")
                async with running_nginx(tmp_path, behind=port, port=https):
                    await until(lambda: changes.states[-1] == "reserved", seconds=10)
                nursery.cancel_scope.cancel()

    run(test)


@pytest.mark.slow
def test_py_libp2p_comes_in_through_the_door_and_lets_us_in_through_its_own() -> None:
    libp2p = pytest.importorskip("libp2p")
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from multiaddr import Multiaddr

    async def test() -> None:
        key = create_new_key_pair()
        noise = Transport(key, noise_privkey=create_noise_key_pair().private_key)
        listen = [Multiaddr("/ip4/127.0.0.1/tcp/0/ws")]
        theirs = libp2p.new_host(key_pair=key, sec_opt={PROTOCOL_ID: noise}, listen_addrs=listen)
        async with (
            running_host() as host,
            running_door(host) as port,
            theirs.run(listen_addrs=listen),
            running_host() as dialer,
        ):
            RelayService(host).start()
            door = info_from_p2p_addr(Multiaddr(str(door_address(host, port))))
            await theirs.connect(door)
            stream = await theirs.new_stream(door.peer_id, [HOP_PROTOCOL])
            request = encode_hop(HopMessage(HopType.RESERVE))
            await stream.write(bytes([len(request)]) + request)
            answer = decode_hop((await stream.read(4096))[1:])
            assert answer.status == Status.OK and answer.reservation is not None

            their_door = ControlAddress.parse(str(theirs.get_addrs()[0]))
            assert their_door.transport == "ws" and their_door.peer_id is not None
            await websocket_module.connect(dialer, their_door, timeout=5)
            await dialer.ping(their_door.peer_id, timeout=5)

    run(test, seconds=60)


# --- dialing what is no door ---


def test_errors_of_the_dialer_say_what_is_wrong(tmp_path: Path) -> None:
    require_nginx()
    certificate = make_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    stranger = make_certificate(other)

    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async def rude(stream: trio.SocketStream) -> None:
        await stream.send_all(b"SSH-2.0-x\r\n\r\n")

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, rude, 0)
            ssh = listeners[0].socket.getsockname()[1]
            listeners = await nursery.start(trio.serve_tcp, silent, 0)
            mute = listeners[0].socket.getsockname()[1]
            async with running_nginx(tmp_path, behind=1) as https:
                for port, tls, why in (
                    (1, None, "ws://localhost:1 can't be reached: .*refused"),
                    (https, client_tls(certificate), "answered HTTP 502: the proxy is there but the relay"),
                    (https, client_tls(), "certificate is not trusted"),
                    (https, client_tls(stranger), "certificate is not trusted"),
                    (https, None, "answered HTTP 400"),
                    (ssh, None, "does not speak WebSocket|hung up"),
                    (ssh, client_tls(certificate), "can't be reached|does not speak"),
                    (mute, None, "did not answer within"),
                ):
                    with pytest.raises(WebSocketError, match=why) as caught:
                        await open_websocket("localhost", port, tls=tls)
                    assert "\n" not in str(caught.value)
            nursery.cancel_scope.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(websocket_module, "HANDSHAKE_SECONDS", 1.0)
        run(test)


def test_a_bad_certificate_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="nothing-here"):
        client_tls(tmp_path / "nothing-here")
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(LocalError, match="text can't be used"):
        client_tls(tmp_path / "text")


# --- misuse of the door ---


async def accepted_pair() -> tuple[WebSocketStream, trio.abc.Stream]:
    """A server's WebSocket and the raw far end, from which any bytes can come."""
    here, there = trio.testing.memory_stream_pair()
    return WebSocketStream(here, opened(ConnectionType.SERVER), "192.0.2.1"), there


def opened(kind: ConnectionType) -> WSConnection:
    """A protocol whose HTTP part is over."""
    from wsproto.events import AcceptConnection, Request

    client, server = WSConnection(ConnectionType.CLIENT), WSConnection(ConnectionType.SERVER)
    server.receive_data(client.send(Request(host="x", target="/")))
    list(server.events())
    client.receive_data(server.send(AcceptConnection()))
    list(client.events())
    return server if kind is ConnectionType.SERVER else client


def frame(
    opcode: int, payload: bytes, *, claimed: int | None = None, mask: bool = True, fin: bool = True
) -> bytes:
    """A client's frame with a mask of zeros; `claimed` lies about its length."""
    size = len(payload) if claimed is None else claimed
    first = bytes([(0x80 if fin else 0) | opcode])
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 127]) + struct.pack("!Q", size)
    return first + length + bytes(4) + payload


def test_a_frame_that_claims_exabytes_is_handed_on_as_it_arrives() -> None:
    async def test() -> None:
        stream, far = await accepted_pair()
        await far.send_all(frame(2, b"abc", claimed=2**62))
        assert await stream.receive_some() == b"abc"
        await far.send_all(b"defg")
        assert await stream.receive_some(2) == b"de"
        assert await stream.receive_some() == b"fg"

    run(test)


def test_frames_that_break_the_rules_end_the_connection() -> None:
    async def test() -> None:
        for bad, why in (
            (frame(1, b"text"), "text message"),
            (frame(3, b"abc"), "broken WebSocket frame"),
            (frame(9, b"x" * 126), "broken WebSocket frame"),
            (frame(9, b"x", fin=False), "broken WebSocket frame"),
            (frame(1, b"\xff\xfe"), "broken WebSocket frame"),
        ):
            stream, far = await accepted_pair()
            await far.send_all(bad)
            with pytest.raises(trio.BrokenResourceError, match=why):
                await stream.receive_some()
            await trio.aclose_forcefully(stream)

    run(test)


def test_pings_are_answered_and_a_goodbye_is_an_end() -> None:
    async def test() -> None:
        stream, far = await accepted_pair()
        await far.send_all(frame(9, b"are you there") + frame(2, b"data") + frame(8, struct.pack("!H", 1000)))
        assert await stream.receive_some() == b"data"
        assert await far.receive_some() == b"\x8a\x0dare you there"
        assert await stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"too late")
        await stream.aclose()
        assert await far.receive_some() == b"\x88\x02\x03\xe8"
        assert await far.receive_some() == b""

    run(test)


def test_an_end_without_goodbye_is_a_break() -> None:
    async def test() -> None:
        stream, far = await accepted_pair()
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError, match="goodbye"):
            await stream.receive_some()

    run(test)


def test_silence_is_pinged_and_then_counts_as_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_module, "PING_SECONDS", 0.05)

    async def test() -> None:
        stream, far = await accepted_pair()
        with pytest.raises(trio.BrokenResourceError, match="silent"):
            await stream.receive_some()
        assert await far.receive_some() == b"\x89\x00" * websocket_module.MAX_UNANSWERED_PINGS

    run(test)


def test_bytes_pass_whole_in_pieces_of_any_size() -> None:
    async def test() -> None:
        here, there = trio.testing.memory_stream_pair()
        one = WebSocketStream(here, opened(ConnectionType.CLIENT), "a")
        two = WebSocketStream(there, opened(ConnectionType.SERVER), "b")
        sizes = [0, 1, 125, 126, 127, 65535, 65536, 300_000, 5]
        payload = bytes(range(251)) * 4000
        for sender, receiver in ((one, two), (two, one)):

            async def send(sender: WebSocketStream) -> None:
                position = 0
                for size in sizes:
                    await sender.send_all(payload[position : position + size])
                    position += size

            received = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, sender)
                while len(received) < sum(sizes):
                    received += await receiver.receive_some(1000)
            assert received == payload[: sum(sizes)]

    run(test)


def test_a_web_page_is_answered_and_a_stranger_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.5)

    async def test() -> None:
        async with running_host() as host, running_door(host) as port:
            for request, answer in (
                (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 4"),
                (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"HTTP/1.1 4"),
                (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, b"HTTP/1.1 4"),
                (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(9) + b"\r\n", b"HTTP/1.1 4"),
                (b"", b""),
                (b"GET / HT", b""),
            ):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                received = b""
                try:
                    await stream.send_all(request)
                    while part := await stream.receive_some():
                        received += part
                except trio.BrokenResourceError:  # closed with our bytes unread
                    pass
                assert received.startswith(answer) and bool(received) == bool(answer), request[:20]
                await trio.aclose_forcefully(stream)
            await (await open_websocket("127.0.0.1", port, tls=None)).aclose()

    run(test)


def test_unfinished_handshakes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running_host() as host, running_door(host) as port:
            streams = [
                await trio.open_tcp_stream("127.0.0.1", port)
                for _ in range(listener_module.MAX_HANDSHAKES_PER_IP)
            ]
            await trio.sleep(0.1)
            late = await trio.open_tcp_stream("127.0.0.1", port)
            assert await late.receive_some() == b""
            await streams.pop().aclose()
            await trio.sleep(0.1)
            await (await open_websocket("127.0.0.1", port, tls=None)).aclose()
            for stream in streams:
                await trio.aclose_forcefully(stream)

    run(test)
