"""QUIC connections in a stream of bytes instead of on UDP."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from routing.errors import PeerError
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.carried import MIN_DATAGRAM_BYTES, Unframer, carry
from routing.quic.endpoint import Endpoint
from routing.quic.limits import Limits
from routing.quic.stream import Stream
from tests.served import run


class TrioStream:
    """A socket as a ByteStream: what libp2p gives, without libp2p."""

    def __init__(self, stream: trio.SocketStream, remote: str = "198.18.0.1") -> None:
        self.stream = stream
        self.peer_id = "somebody"
        self.remote = remote

    async def read(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self.stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise PeerError("the line broke") from None

    async def write(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise PeerError("the line broke") from None

    async def aclose(self) -> None:
        await self.stream.aclose()

    def abort(self) -> None:
        self.stream.socket.close()


def line(remote: str = "198.18.0.1") -> tuple[TrioStream, TrioStream]:
    left, right = socket.socketpair()
    return (
        TrioStream(trio.SocketStream(trio.socket.from_stdlib_socket(left)), remote),
        TrioStream(trio.SocketStream(trio.socket.from_stdlib_socket(right)), remote),
    )


async def echo(stream: Stream) -> None:
    while True:
        try:
            await stream.send_message(await stream.receive_message(1 << 22))
        except PeerError:
            return


@asynccontextmanager
async def pair(backend: str, **options: Any) -> Any:
    async with trio.open_nursery() as nursery:
        client = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), backend=backend)
        server = Endpoint(
            Identity.generate(), listen=("127.0.0.1", 0), backend=backend, handlers={"/echo": echo}, **options
        )
        await nursery.start(client.run)
        await nursery.start(server.run)
        yield nursery, client, server
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("backend", ["qh3", "aioquic"])
def test_a_connection_over_a_stream(backend: str) -> None:
    async def main() -> None:
        async with pair(backend) as (nursery, client, server):
            here, there = line()
            path = await nursery.start(carry, client, here)
            await nursery.start(carry, server, there)
            address = PeerAddress(*path.address, server.peer_id)
            carried = await client.connect(address)
            assert carried.is_carried and carried.peer_id == server.peer_id
            stream = carried.open_stream("/echo")
            for size in (1, 12_288, 1 << 20):
                await stream.send_message(bytes(size))
                assert await stream.receive_message(1 << 22) == bytes(size)
            # a better way beside it: UDP is preferred, the carried one lives on
            direct = await client.connect(PeerAddress(*server.local_address, server.peer_id), fresh=True)
            assert direct is not carried and carried.is_open
            assert client.connection_to(server.peer_id) is direct
            assert len(client.connections_to(server.peer_id)) == 2
            # the end of the line is the end of what ran over it, and of nothing else
            there.abort()
            await carried.closed.wait()
            assert direct.is_open
            assert client.connection_to(server.peer_id) is direct

    run(main)


def test_the_wrong_peer_is_refused_over_a_stream_too() -> None:
    async def main() -> None:
        async with pair("qh3") as (nursery, client, server):
            here, there = line()
            path = await nursery.start(carry, client, here)
            await nursery.start(carry, server, there)
            other = Identity.generate().peer_id
            with pytest.raises(PeerError, match="answered instead of"):
                await client.connect(PeerAddress(*path.address, other))

    run(main)


def test_carried_connections_count_by_their_origin() -> None:
    async def main() -> None:
        async with pair("qh3", limits=Limits(connections_per_ip=1)) as (nursery, client, server):
            here, there = line("relay R")
            path = await nursery.start(carry, client, here)
            await nursery.start(carry, server, there)
            await client.connect(PeerAddress(*path.address, server.peer_id))
            second_here, second_there = line("relay R")
            second = await nursery.start(carry, client, second_here)
            await nursery.start(carry, server, second_there)
            with pytest.raises(PeerError, match="no answer"):
                await client.connect(PeerAddress(*second.address, server.peer_id), fresh=True, timeout=0.5)

    run(main)


def test_unframing_any_cut() -> None:
    datagrams = [b"a" * 1200, b"b" * MIN_DATAGRAM_BYTES, b"c" * 65535]
    data = b"".join(len(each).to_bytes(2, "big") + each for each in datagrams)
    for step in (1, 2, 7, 1000, len(data)):
        unframer, found = Unframer(), []
        for start in range(0, len(data), step):
            found += unframer.feed(data[start : start + step])
        assert found == datagrams
    for size in (0, 1, MIN_DATAGRAM_BYTES - 1):
        with pytest.raises(PeerError, match=f"datagram of {size} bytes"):
            Unframer().feed(size.to_bytes(2, "big") + bytes(size))


def test_probes_come_beside_quic() -> None:
    async def main() -> None:
        async with pair("qh3") as (_, client, server):
            heard: list[tuple[bytes, Any]] = []
            event = trio.Event()

            def on_probe(data: bytes, sender: Any) -> None:
                heard.append((data, sender))
                event.set()

            server.on_probe = on_probe
            client.send_probe(b"\x01hello", server.local_address)
            await event.wait()
            assert heard == [(b"\x01hello", client.local_address)]

    run(main)
