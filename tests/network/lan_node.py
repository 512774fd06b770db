"""A node in one process: an endpoint and LAN discovery, no config. Prints a JSON line for each event."""

from __future__ import annotations

import json
import sys

import trio

from routing.errors import PeerError
from routing.identity import Identity
from routing.lan import LanDiscovery
from routing.lan_peers import LanPeer
from routing.membership import Membership, Swarm
from routing.quic.endpoint import Endpoint


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def main(swarm: Swarm) -> None:
    endpoint = Endpoint(Identity.generate(), membership=Membership(swarm))
    send, receive = trio.open_memory_channel[LanPeer](64)
    discovery = LanDiscovery(swarm, endpoint.peer_id, endpoint.local_address, send.send_nowait)
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run)
        await nursery.start(discovery.run)
        say(peer_id=endpoint.peer_id)
        async for peer in receive:
            say(found=peer.peer_id, hosts=[each.host for each in peer.addresses])
            try:
                connection = await endpoint.connect(peer.addresses[0])
                say(connected=connection.peer_id)
            except PeerError as error:
                say(failed=str(error))


trio.run(main, Swarm(sys.argv[1]))
