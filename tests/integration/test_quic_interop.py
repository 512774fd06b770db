"""Our plane and py-libp2p's QUIC host dial each other and ping: same TLS identity, ALPN, multistream."""

from __future__ import annotations

import os

import pytest
import trio

from routing.identity import Identity, parse_peer_id
from routing.multiaddr import PeerAddress
from routing.quic.core import BACKENDS
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

pytestmark = pytest.mark.slow

PING = "/ipfs/ping/1.0.0"
PING_BYTES = 32


async def answer_pings(stream: Stream) -> None:
    while True:
        await stream.send_bytes(await stream.receive_exactly(PING_BYTES))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ping_both_ways_with_py_libp2p(backend: str) -> None:
    libp2p = pytest.importorskip("libp2p")
    from libp2p.host.ping import handle_ping
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    async def test() -> None:
        host = libp2p.new_host(enable_quic=True)
        host.set_stream_handler(PING, handle_ping)
        listen = [Multiaddr("/ip4/127.0.0.1/udp/0/quic-v1")]
        with trio.fail_after(40):
            async with host.run(listen_addrs=listen), trio.open_nursery() as nursery:
                theirs = next(each for each in map(str, host.get_addrs()) if "quic-v1" in each)
                port = int(theirs.split("/udp/")[1].split("/")[0])
                their_id = parse_peer_id(str(host.get_id()))

                ours = Endpoint(
                    Identity.generate(),
                    listen=("127.0.0.1", 0),
                    backend=backend,
                    handlers={PING: answer_pings},
                )
                await nursery.start(ours.run)

                connection = await ours.connect(PeerAddress("127.0.0.1", port, their_id))
                assert connection.peer_id == their_id
                stream = connection.open_stream(PING)
                for _ in range(3):
                    payload = os.urandom(PING_BYTES)
                    await stream.send_bytes(payload)
                    assert await stream.receive_exactly(PING_BYTES) == payload
                await connection.aclose("done")

                other = Endpoint(
                    Identity.generate(),
                    listen=("127.0.0.1", 0),
                    backend=backend,
                    handlers={PING: answer_pings},
                )
                await nursery.start(other.run)
                address = PeerAddress(*other.local_address, other.identity.peer_id)
                info = info_from_p2p_addr(Multiaddr(str(address)))
                await host.connect(info)
                their_stream = await host.new_stream(info.peer_id, [PING])
                for _ in range(3):
                    payload = os.urandom(PING_BYTES)
                    await their_stream.write(payload)
                    answer = b""
                    while len(answer) < PING_BYTES:
                        answer += await their_stream.read(PING_BYTES - len(answer))
                    assert answer == payload
                assert [each.peer_id for each in other.connections] == [their_id]
                nursery.cancel_scope.cancel()

    trio.run(test)
