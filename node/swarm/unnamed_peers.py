"""Peers that no config names, for `panal netcheck`: those of this network, and those of earlier days."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from relay.netcheck import Check, Status, Unnamed
from relay.prober import own_host
from routing.dial_limits import networks_of, reachable_from
from routing.lan import LanDiscovery
from routing.lan_peers import LanPeer
from routing.membership import Swarm
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.remembered import RememberedPeers

LISTEN_SECONDS = 3.0
"""mDNS answers a question within half a second; a busy or sleeping machine may need the repeats after one and
after three."""

MORE_SECONDS = 0.5
"""Once one was heard: answers are spread over a tenth of a second."""

MAX_ASKED = 8
"""Of either kind: enough to tell what this network lets through."""

MAX_ADDRESSES = 3
"""Of one peer: each may take the whole patience of a dial."""


async def lan_peers(
    endpoint: Endpoint, swarm: Swarm, *, listen_seconds: float = LISTEN_SECONDS
) -> tuple[Check, list[Unnamed]]:
    """Look for nodes of a swarm on this network, without being found: a check `LAN`, and who they are."""
    heard: list[LanPeer] = []
    news = trio.Event()

    def found(peer: LanPeer) -> None:
        heard.append(peer)
        news.set()

    lan = LanDiscovery(swarm, endpoint.peer_id, endpoint.local_address, found, announce=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(lan.run)
        with trio.move_on_after(listen_seconds):
            await news.wait()
            await trio.sleep(MORE_SECONDS)
        nursery.cancel_scope.cancel()
    peers = {peer.peer_id: Unnamed("LAN", peer.addresses[:MAX_ADDRESSES]) for peer in heard}
    if not peers:
        detail = f"no node of this swarm was heard on this network in {listen_seconds:g} s"
        advice = "PANAL_LOG=debug tells what was heard and why it does not count"
        return Check("LAN", Status.SKIP, detail, advice), []
    count = f"{len(peers)} node{'s' if len(peers) > 1 else ''} heard"
    return Check("LAN", Status.PASS, count), list(peers.values())[:MAX_ASKED]


def remembered_peers(
    memory: RememberedPeers, swarm: Swarm, endpoint: Endpoint, passed_over: Sequence[str]
) -> list[Unnamed]:
    """Where peers of earlier days were."""
    networks = networks_of([own_host(endpoint, "192.0.2.1")])  # any address beyond this network
    peers = []
    for each in memory.peers(swarm.id):
        told = [PeerAddress.parse(f"{text}/p2p/{each.peer_id}") for text in each.advert.addresses]
        addresses = tuple(address for address in told if reachable_from(networks, address.host))
        if addresses and each.peer_id not in passed_over:
            peers.append(Unnamed("remembered", addresses[:MAX_ADDRESSES]))
    return peers[:MAX_ASKED]
