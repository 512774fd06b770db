"""Whole nodes in this process, among strangers: a relay of somebody else, a private swarm, non-members."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from node.config import RelayConfig, SwarmConfig
from node.config.shape import RelayTable
from node.swarm import relay_keeper
from node.swarm.control import MEMBER
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from relay.circuit import CircuitRefused, RelayClient
from relay.hop_wire import HOP_PROTOCOL, Status
from routing.byte_stream import ByteStream
from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import Identity
from routing.membership import OPEN_SWARM, MemberCertificate, Membership, Swarm, proof
from routing.multiaddr import ListenAddress, PeerAddress
from routing.quic import accepted
from routing.quic.carried import PROTOCOL_ID as DATAGRAMS
from routing.quic.carried import carry
from routing.quic.endpoint import Endpoint
from routing.quic.paths import Path as CarriedPath
from routing.quic.stream import Stream
from routing.routes import Attempt, Way
from routing.wire.multistream import Dialer, NegotiationError
from tests.integration.relay_parts import run, running_client, running_relay, until

pytestmark = pytest.mark.slow

ECHO = "/test/echo/1"
KEY = Identity.generate().private_key
CASA = Swarm("casa", KEY.public_key().public_bytes_raw())


@dataclass
class Member:
    """A node that echoes, and remembers for whom."""

    node: SwarmNode
    served: list[str] = field(default_factory=list)

    @property
    def peer_id(self) -> str:
        return self.node.identity.peer_id

    @property
    def tcp(self) -> ControlAddress:
        assert self.node.control is not None
        (text,) = self.node.control.host.local_addresses
        return ControlAddress.parse(text).with_peer(self.node.identity.peer_id)

    @property
    def udp(self) -> PeerAddress:
        return PeerAddress(*self.node.endpoint.local_address, self.node.identity.peer_id)


@asynccontextmanager
async def member(
    folder: Path,
    *peers: PeerAddress | ControlAddress,
    swarm: Swarm = CASA,
    relay: RelayTable = RelayTable(),  # noqa: B008  (frozen)
) -> AsyncIterator[Member]:
    """A node of a swarm on loopback, running."""
    identity = Identity.generate()
    path = folder / f"{identity.peer_id}.member"
    if swarm.is_private:
        issued = MemberCertificate.issue(KEY, swarm, identity.peer_id, time.time(), 1)
        path.write_bytes(issued.encode())
    place = Place(
        identity,
        SwarmConfig(
            listen=ListenAddress("127.0.0.1", 0),
            peers=tuple(each for each in peers if isinstance(each, PeerAddress)),
            control_peers=tuple(each for each in peers if isinstance(each, ControlAddress)),
            backend="qh3",
            swarm=swarm,
            member=path if swarm.is_private else None,
            lan=False,
            control=("127.0.0.1", 0),
            advert_seconds=600,
        ),
        RelayConfig(
            table=relay, websocket=None, certificate=None, certificate_key=None, ca=None, announce=()
        ),
        None,
    )
    served: list[str] = []

    async def echo(stream: Stream) -> None:
        served.append(stream.peer_id)
        await stream.send_message(await stream.receive_message(100))

    made = Member(SwarmNode(place, Role(serves=True, handlers={ECHO: echo})), served)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.node.run)
        yield made
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def asker(client: RelayClient, shown: Membership) -> AsyncIterator[tuple[Endpoint, trio.Nursery]]:
    """The data plane that belongs to a control host."""
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(client.host.identity, listen=("127.0.0.1", 0), membership=shown)
        await nursery.start(endpoint.run)
        yield endpoint, nursery
        nursery.cancel_scope.cancel()


def as_member(identity: Identity) -> Membership:
    issued = MemberCertificate.issue(KEY, CASA, identity.peer_id, time.time(), 1)
    return Membership(CASA, issued.encode())


def as_stranger(identity: Identity) -> Membership:
    return Membership(OPEN_SWARM)


async def ask(endpoint: Endpoint, address: PeerAddress) -> bytes:
    connection = await endpoint.connect(address, timeout=5, fresh=True)
    stream = connection.open_stream(ECHO)
    await stream.send_message(b"hola")
    return await stream.receive_message(100)


Open = Callable[[RelayClient, Member, ControlAddress], Awaitable[ByteStream]]


async def over_tcp(client: RelayClient, server: Member, relay: ControlAddress) -> ByteStream:
    await client.host.connect(server.tcp, timeout=5)
    return await client.host.open_stream(server.peer_id, DATAGRAMS, timeout=5)


async def over_a_circuit(client: RelayClient, server: Member, relay: ControlAddress) -> ByteStream:
    return await client.open_datagram_circuit(relay, server.node.identity.peer_id)


@pytest.mark.parametrize("way", [over_tcp, over_a_circuit])
def test_only_members_reach_a_handler_over_carried_quic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Open
) -> None:
    monkeypatch.setattr(relay_keeper, "UNDECIDED_SECONDS", 0.0)
    monkeypatch.setattr(relay_keeper, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(accepted, "UNUSED_SECONDS", 1.0)

    async def asked(
        server: Member, relay: ControlAddress, shown: Callable[[Identity], Membership]
    ) -> bytes | PeerError:
        async with running_client() as client, asker(client, shown(client.host.identity)) as made:
            endpoint, nursery = made
            stream = await way(client, server, relay)
            path: CarriedPath = await nursery.start(carry, endpoint, stream)
            try:
                return await ask(endpoint, PeerAddress(*path.address, server.node.identity.peer_id))
            except PeerError as error:
                # the stranger keeps its stream: the member closes what nobody uses
                with trio.fail_after(30):
                    await path.ended.wait()
                return error

    async def test() -> None:
        async with running_relay() as (_, relay), member(tmp_path, relay) as server:
            await until(lambda: server.node.control and server.node.control.reserved)
            assert await asked(server, relay, as_member) == b"hola"
            assert len(server.served) == 1
            refusal = str(await asked(server, relay, as_stranger))
            assert "belongs to another swarm" in refusal
            assert ("through relay" if way is over_a_circuit else "over TCP to 127.0.0.1") in refusal
            assert len(server.served) == 1

    run(test, seconds=40)


def test_only_members_reach_a_handler_over_udp(tmp_path: Path) -> None:
    async def test() -> None:
        async with member(tmp_path) as server, running_client() as client:
            async with asker(client, as_member(client.host.identity)) as (endpoint, _):
                assert await ask(endpoint, server.udp) == b"hola"
            async with asker(client, as_stranger(client.host.identity)) as (endpoint, _):
                with pytest.raises(PeerError, match="belongs to another swarm"):
                    await ask(endpoint, server.udp)
            assert len(server.served) == 1

    run(test)


def test_a_members_relay_serves_members_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_keeper, "UNDECIDED_SECONDS", 0.0)
    monkeypatch.setattr(relay_keeper, "LOOK_SECONDS", 0.1)

    async def test() -> None:
        async with (
            member(tmp_path, relay=RelayTable(serve=True)) as relay,
            member(tmp_path, relay.udp, relay.tcp) as server,
            member(tmp_path, relay.udp, relay.tcp) as caller,
            running_client() as stranger,
        ):
            await until(lambda: server.node.control and server.node.control.reserved)
            for request in (
                stranger.reserve(relay.tcp),
                stranger.dial_through(relay.tcp, server.node.identity.peer_id),
            ):
                with pytest.raises(CircuitRefused) as refused:
                    await request
                assert refused.value.status == Status.PERMISSION_DENIED
            # the certificate of somebody else proves nothing
            stream = await stranger.host.open_stream(relay.peer_id, MEMBER, timeout=5)
            await stream.write(proof(as_member(Identity.generate())))
            taken = b""
            with contextlib.suppress(PeerError):
                taken = await stream.read(1)
            assert taken == b""
            with pytest.raises(CircuitRefused):
                await stranger.reserve(relay.tcp)
            # members meet there
            await until(lambda: caller.node.table.get(server.peer_id))
            await until(lambda: Way.RELAY in [each.way for each in caller.node.ways.attempts(server.peer_id)])
            connection, route = await caller.node.ways.carry_out(
                server.peer_id, Attempt(Way.RELAY, "for the test"), None
            )
            assert connection.is_carried and route.via == relay.peer_id
            stream_to = connection.open_stream(ECHO)
            await stream_to.send_message(b"hola")
            assert await stream_to.receive_message(100) == b"hola"
            # the end of the connection is the end of its circuit
            assert relay.node.control is not None and relay.node.control.service is not None
            service = relay.node.control.service
            assert service.statistics().circuits >= 1
            for each in caller.node.endpoint.connections_to(server.peer_id):
                if each.is_carried:
                    await each.aclose()
            caller.node.links.unwant(server.peer_id)
            await until(lambda: service.statistics().circuits == 0)

    run(test, seconds=40)


def test_nothing_but_quic_runs_over_a_circuit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_keeper, "UNDECIDED_SECONDS", 0.0)
    monkeypatch.setattr(relay_keeper, "LOOK_SECONDS", 0.1)

    async def test() -> None:
        async with (
            running_relay() as (_, outer),
            running_client() as client,
            member(tmp_path, outer, swarm=OPEN_SWARM, relay=RelayTable(serve=True)) as inner,
        ):
            await until(lambda: inner.node.control and inner.node.control.reserved)
            # it relays for who comes to it directly, not for who comes through a relay
            await client.reserve(inner.tcp)
            circuit = await client.dial_through(outer, inner.node.identity.peer_id)
            dialer = Dialer(HOP_PROTOCOL)
            await circuit.write(dialer.opening())
            with pytest.raises((NegotiationError, PeerError)):
                while dialer.agreed is None:
                    data = await circuit.read(4096)
                    if not data:
                        raise PeerError("ended")
                    dialer.receive_data(data)

    run(test)
