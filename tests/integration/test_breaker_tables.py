"""What strangers can make a node remember is bounded: peers on the LAN, peers that were connected once."""

from __future__ import annotations

import trio

from node.swarm.candidates import MAX_ON_LAN
from routing.identity import Identity
from routing.lan_peers import LanPeer
from routing.multiaddr import PeerAddress
from routing.table import MAX_FORMER, CallShape, HolderTable
from routing.wire.holdings import Holdings, Slice
from tests.integration.test_swarm_node import node, place, serving, until
from tests.served import run

MODEL = "ab" * 32
HELD = Slice(kind="experts", model_id=MODEL, architecture="test", experts=[(0, 0, [(0, 3)])])


def test_announcements_without_end_on_the_lan_are_not_all_dialed_for_ever() -> None:
    async def test() -> None:
        async with node(place(), serving()) as made:
            for number in range(3 * MAX_ON_LAN):
                peer_id = Identity.generate().peer_id
                where = PeerAddress("127.0.0.1", 1 + number % 9, peer_id)
                made._finder.found_on_lan(LanPeer(peer_id, (where,), 0))
                await trio.sleep(0)
            assert len(made.candidates.on_lan) == MAX_ON_LAN
            # who was forgotten is let go at the next look
            await until(lambda: len(made.links.wanted) <= MAX_ON_LAN, 15)
            await until(lambda: len(made.links._news) <= MAX_ON_LAN + 1, 5)  # as their tasks end

    run(test, seconds=30)


def test_peers_that_come_and_go_without_end_are_forgotten() -> None:
    table = HolderTable(MODEL, {(0, 0): CallShape(4, 4)})
    told = Holdings([1], "x", [HELD], ["f32"], ["rows"], 16)
    table.connected("stays", told)
    for number in range(3 * MAX_FORMER):
        table.connected(f"peer-{number}", told)
        table.disconnected(f"peer-{number}", "it has gone")
    formerly = table.holders(0, 0).formerly
    assert len(formerly) == MAX_FORMER
    assert f"peer-{3 * MAX_FORMER - 1}" in formerly and "peer-0" not in formerly
    assert table.peers() == ["stays"]
