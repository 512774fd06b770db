"""What the line and the machine carry at all: bytes of one stream, sent as fast as QUIC does.

share_plain.py serve HOST PORT       prints the address; sends zeros to who asks for them
share_plain.py fetch ADDRESS BYTES   prints the seconds that they took
"""

from __future__ import annotations

import json
import sys

import trio

from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

PROTOCOL = "/panal-bench/bytes/1"
PIECE = bytes(256 << 10)


async def send(stream: Stream) -> None:
    left = int.from_bytes(await stream.receive_exactly(8), "big")
    while left:
        piece = PIECE[:left]
        await stream.send_bytes(piece)
        left -= len(piece)
    await stream.aclose()


async def serve(host: str, port: int) -> None:
    endpoint = Endpoint(Identity.generate(), listen=(host, port), handlers={PROTOCOL: send})
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run)
        print(json.dumps(f"/ip4/{host}/udp/{port}/quic-v1/p2p/{endpoint.identity.peer_id}"), flush=True)


async def fetch(addresses: list[PeerAddress], count: int) -> None:
    endpoint = Endpoint(Identity.generate(), listen=("0.0.0.0", 0), accept=False)

    async def fetch_from(connection: Connection, left: int) -> None:
        stream = connection.open_stream(PROTOCOL)
        await stream.send_bytes(left.to_bytes(8, "big"))
        while left:
            left -= len(await stream.receive_exactly(min(left, len(PIECE))))

    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run)
        connections = [await endpoint.connect(address) for address in addresses]
        begun = trio.current_time()
        async with trio.open_nursery() as fetching:
            for connection in connections:
                fetching.start_soon(fetch_from, connection, count // len(connections))
        print(json.dumps(trio.current_time() - begun))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        trio.run(serve, sys.argv[2], int(sys.argv[3]))
    else:
        trio.run(fetch, [PeerAddress.parse(each) for each in sys.argv[3:]], int(sys.argv[2]))
