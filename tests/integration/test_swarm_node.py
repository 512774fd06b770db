"""Whole nodes in one process on loopback: they find each other, by every plane, and leave in good order."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.config import SwarmConfig
from node.config.shape import RelayTable
from node.swarm.announcing import Offered
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import NOBODY, Watching
from routing.advert_rows import Offer, Outcome
from routing.control_address import ControlAddress
from routing.identity import Identity
from routing.membership import Swarm
from routing.multiaddr import ListenAddress, PeerAddress
from routing.routes import Kind
from routing.wire.holdings import Slice
from tests.served import run

MODEL = "ab" * 32
HELD = Slice(kind="experts", model_id=MODEL, architecture="test", experts=[(0, 0, [(0, 3)])])


def place(
    *peers: PeerAddress | ControlAddress,
    control: bool = True,
    relay: bool = False,
    swarm: Swarm | None = None,
    memory: Path | None = None,
    identity: Identity | None = None,
) -> Place:
    base = Place.among([], identity=identity or Identity.generate())
    config: SwarmConfig = dataclasses.replace(
        base.swarm,
        listen=ListenAddress("127.0.0.1", 0),
        peers=tuple(each for each in peers if isinstance(each, PeerAddress)),
        control_peers=tuple(each for each in peers if isinstance(each, ControlAddress)),
        control=("127.0.0.1", 0) if control else None,
        swarm=swarm or base.swarm.swarm,
        advert_seconds=10,
    )
    rules = dataclasses.replace(base.relay, table=RelayTable(serve=relay))
    return dataclasses.replace(base, swarm=config, relay=rules, memory=memory)


def serving(name: str = "") -> Role:
    return Role(serves=True, offered=lambda: Offered(name=name, slices=[HELD], versions=[1]))


@asynccontextmanager
async def node(where: Place, role: Role, watching: Watching = NOBODY) -> AsyncIterator[SwarmNode]:
    made = SwarmNode(where, role, watching=watching)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        made.close()


async def until(condition: Callable[[], object], seconds: float = 8) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def address(of: SwarmNode) -> PeerAddress:
    return PeerAddress.parse(of.address)


def control_address(of: SwarmNode) -> ControlAddress:
    assert of.control is not None
    (text,) = of.control.host.local_addresses
    return ControlAddress.parse(text).with_peer(of.identity.peer_id)


def transport(of: SwarmNode, peer_id: str) -> str:
    link = of.links.link(peer_id)
    return "" if link is None else link.route.transport


def advertised_name(at: SwarmNode, who: Identity) -> str:
    row = at.table.get(who.peer_id)
    return "" if row is None else row.advert.name


def test_two_servers_hear_of_each_other_through_a_third() -> None:
    async def test() -> None:
        async with (
            node(place(), serving("boot")) as boot,
            node(place(address(boot)), serving("a")) as a,
            node(place(address(boot)), serving("b")) as b,
        ):
            await until(lambda: all(len(each.table) == 3 for each in (boot, a, b)))
            names = {row.advert.name for row in a.table.rows()}
            assert names == {"boot", "a", "b"}

    run(test)


def test_a_backbone_connects_to_all_that_hold_its_model() -> None:
    async def test() -> None:
        async with node(place(), serving("boot")) as boot, node(place(address(boot)), serving("a")) as a:
            await until(lambda: len(boot.table) == 2)
            asks = Role(serves=False, wanted_model=MODEL)
            async with node(place(address(boot)), asks) as backbone:
                await until(lambda: backbone.links.find(a.identity.peer_id))
                link = backbone.links.link(a.identity.peer_id)
                assert link is not None and link.route.kind is Kind.DIRECT
                # who only asks says nothing of itself
                await trio.sleep(0.3)
                assert len(boot.table) == 2

    run(test)


def test_who_leaves_says_so() -> None:
    async def test() -> None:
        left: list[str] = []

        def heard(offer: Offer) -> None:
            if offer.outcome is Outcome.LEFT:
                left.append(offer.peer_id)

        async with node(place(), serving("boot"), Watching(heard=heard)) as boot:
            async with node(place(address(boot)), serving("a")) as a:
                await until(lambda: len(boot.table) == 2)
                gone = a.identity.peer_id
            await until(lambda: left == [gone])
            assert boot.table.get(gone) is None

    run(test)


def test_a_peer_known_by_its_tcp_address_alone_is_reached_over_tcp_first() -> None:
    async def test() -> None:
        async with (
            node(place(), serving("boot")) as boot,
            node(place(control_address(boot)), serving("a")) as a,
        ):
            peer = boot.identity.peer_id
            await until(lambda: a.links.find(peer))
            # its advert, come over that way, names its QUIC address: the link moves there
            await until(lambda: (link := a.links.link(peer)) is not None and link.route.transport == "udp")

    run(test, seconds=30)


def test_swarms_of_other_names_do_not_mix() -> None:
    async def test() -> None:
        async with (
            node(place(swarm=Swarm("one")), serving("boot")) as boot,
            node(place(address(boot), swarm=Swarm("two")), serving("a")) as a,
        ):
            await until(lambda: a.links.failures())
            (reason,) = a.links.failures().values()
            assert "belongs to another swarm" in reason
            assert len(boot.table) == len(a.table) == 1

    run(test)


def test_a_restarted_node_is_the_same_node(tmp_path: Path) -> None:
    async def test() -> None:
        clones: list[str] = []

        def heard(offer: Offer) -> None:
            if offer.clone is not None:
                clones.append(offer.peer_id)

        who = Identity.generate()
        async with node(place(), serving("boot"), Watching(heard=heard)) as boot:
            for name in ("before", "after"):
                where = place(address(boot), memory=tmp_path / "peers.sqlite", identity=who)
                async with node(where, serving(name)):
                    await until(
                        lambda name=name: (row := boot.table.get(who.peer_id)) and row.advert.name == name
                    )
            assert clones == []

    run(test)


def test_remembered_peers_lead_back_without_a_bootstrap(tmp_path: Path) -> None:
    async def test() -> None:
        memory = tmp_path / "peers.sqlite"
        who = Identity.generate()
        async with node(place(), serving("boot")) as boot:
            async with node(place(address(boot), memory=memory, identity=who), serving("a")) as a:
                await until(lambda: len(a.table) == 2)
                await trio.sleep(1.5)  # it is written down within a second
            async with node(place(memory=memory, identity=who), serving("a")) as again:
                await until(lambda: len(again.table) == 2, 15)

    run(test, seconds=40)


def test_a_second_node_on_the_port_is_refused_at_once() -> None:
    async def test() -> None:
        async with node(place(), serving()) as first:
            taken = place()
            listen = ListenAddress("127.0.0.1", first.endpoint.local_address[1])
            taken = dataclasses.replace(taken, swarm=dataclasses.replace(taken.swarm, listen=listen))
            with pytest.raises(Exception, match=r"\[swarm\] listen: .* in use by another program or node"):
                SwarmNode(taken, serving())

    run(test)


def test_a_public_node_asks_one_without_udp_to_dial_it() -> None:
    """`/panal/dial-me/1`, over the connection that exists."""

    async def test() -> None:
        from node.swarm.meeting import Meetings
        from relay.contacts import Contacts
        from relay.probes import Probes
        from relay.punch import Puncher

        async with (
            node(place(), serving("public")) as public,
            node(place(address(public)), serving("blocked")) as blocked,
        ):
            await until(lambda: len(public.table) == len(blocked.table) == 2)
            over = public.endpoint.connection_to(blocked.identity.peer_id)
            assert over is not None
            puncher = Puncher(Probes(public.endpoint, Contacts()), list)
            meetings = Meetings(public.endpoint, puncher)
            connection = await meetings.call_back_over_tcp(over)
            assert connection.is_carried and not connection.dialed
            route = public.ways.route_of(connection)
            assert (route.kind, route.transport) == (Kind.DIRECT, "tcp")

    run(test)
