"""What hostile peers might make of single parts: floods in Yamux, calls of strangers, links without end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from relay import reach_wire
from relay.circuit import RelayClient
from relay.circuit_stream import CircuitStream
from relay.contacts import Contacts
from relay.hop_wire import STOP_PROTOCOL
from relay.prober import ReachProber
from relay.probes import Probes
from relay.service import MAX_REQUESTS_PER_ORIGIN
from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import Identity
from routing.libp2p.host import PING, ControlHost
from routing.libp2p.secure_channel import SecureChannel, secure
from routing.libp2p.yamux import CONTROL_BURST, OPENING_BURST, PING_BURST, YAMUX
from routing.libp2p.yamux_frames import RST, SYN, Kind, encode_frame
from routing.multiaddr import PeerAddress
from routing.quic.stream import Stream
from routing.wire.multistream import Dialer
from tests.integration.relay_parts import address_of, running_client, running_host, running_relay, until
from tests.integration.test_links import linked
from tests.served import listening, run


@asynccontextmanager
async def channel_to(address: ControlAddress) -> AsyncIterator[SecureChannel]:
    """A connection up to Yamux; what is sent on it is the test's matter."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    channel = await secure(stream, Identity.generate(), expected=address.peer_id, initiator=True)
    await channel.negotiate(YAMUX, initiator=True)
    try:
        yield channel
    finally:
        await channel.abort()


async def hung_up(channel: SecureChannel) -> None:
    with pytest.raises(PeerError):
        while await channel.read():
            pass
        raise PeerError("a clean end")


@pytest.mark.parametrize(
    ("frame", "count"),
    [
        (lambda number: encode_frame(Kind.PING, SYN, 0, number), PING_BURST),
        (lambda number: encode_frame(Kind.WINDOW_UPDATE, SYN, 2 * number + 1, 0), OPENING_BURST),
        (lambda number: encode_frame(Kind.WINDOW_UPDATE, RST, 2 * number + 1, 0), CONTROL_BURST),
        (lambda number: encode_frame(Kind.DATA, 0, 99, 0), CONTROL_BURST),
    ],
    ids=["pings", "streams", "resets", "empty data"],
)
def test_who_floods_with_frames_that_carry_nothing_loses_the_connection(frame: object, count: int) -> None:
    async def test() -> None:
        async with running_host(listen=("127.0.0.1", 0)) as host, channel_to(address_of(host)) as channel:
            await channel.write(b"".join(frame(n) for n in range(count // 2)))  # type: ignore[operator]
            await trio.sleep(0.1)
            assert len(host.connected_peers) == 1, "what is usual is let through"
            await channel.write(b"".join(frame(n) for n in range(count // 2, 2 * count)))  # type: ignore[operator]
            await hung_up(channel)
            await until(lambda: not host.connected_peers)

    run(test)


def test_a_stream_that_begins_with_data_may_arrive_in_pieces() -> None:
    async def test() -> None:
        async with running_host(listen=("127.0.0.1", 0)) as host, channel_to(address_of(host)) as channel:
            body = Dialer(PING).opening() + bytes(32)
            first = encode_frame(Kind.DATA, SYN, 1, len(body)) + body
            await channel.write(first[:20])
            await trio.sleep(0.05)
            await channel.write(first[20:])
            read = b""
            while bytes(32) not in read:
                read += await channel.read()
            assert len(host.connected_peers) == 1

    run(test)


def test_calls_of_strangers_take_no_places_of_a_relays_calls() -> None:
    async def test() -> None:
        async def take(circuit: CircuitStream) -> None:
            await trio.sleep_forever()

        async with (
            running_relay() as (_, relay),
            running_host(listen=("127.0.0.1", 0)) as called,
            running_host() as stranger,
            running_client() as caller,
        ):
            client = RelayClient(called)
            client.accept_datagram_circuits(take, max_circuits=2)
            await client.reserve(relay)
            await stranger.connect(address_of(called), timeout=5)
            silent = [await stranger.open_stream(called.peer_id, STOP_PROTOCOL, timeout=5) for _ in range(20)]
            await caller.open_datagram_circuit(relay, called.peer_id)
            assert len(silent) == 20

    run(test)


def test_silent_requests_of_many_identities_leave_room_at_a_relay() -> None:
    async def test() -> None:
        async with running_relay() as (service, relay), trio.open_nursery() as nursery:
            hosts = [ControlHost(Identity.generate(), listen=None) for _ in range(6)]
            for host in hosts:
                await nursery.start(host.run)
                await host.connect(relay, timeout=5)
                for _ in range(10):
                    await host.open_stream(str(relay.peer_id), "/libp2p/circuit/relay/0.2.0/hop", timeout=5)
            await trio.sleep(0.2)
            assert service._requests.total() == MAX_REQUESTS_PER_ORIGIN
            assert service.statistics().refused["TOO_MANY_REQUESTS"] == 60 - MAX_REQUESTS_PER_ORIGIN
            nursery.cancel_scope.cancel()

    run(test)


def test_peers_that_come_and_go_in_one_breath() -> None:
    """Adverts and farewells may bring that about, in the order that hurts most."""

    async def test() -> None:
        peer = PeerAddress("127.0.0.1", 9, Identity.generate().peer_id)
        async with linked(peer) as (links, _):
            name = str(peer.peer_id)
            for pause in (False, True, False):
                for _ in range(3):
                    links.unwant(name)
                    links.want(name)
                if pause:
                    await trio.sleep(0.01)
            await trio.sleep(0.05)
            assert links.wanted == {name} and links.missing_since(name) is not None
            links.news(name)
            links.unwant(name)
            await trio.sleep(0.05)
            assert links.wanted == set() and links.missing_since(name) is None

    run(test)


@pytest.mark.parametrize("claimed", ["0.0.0.0", "224.0.0.251", "255.255.255.255", "::", "ff02::1"])
def test_a_liar_cannot_make_a_node_say_that_it_is_nowhere(claimed: str) -> None:
    """Its advert would be refused by everybody, this node included."""

    async def test() -> None:
        async def lie(stream: Stream) -> None:
            await stream.receive_message(reach_wire.MAX_MESSAGE_BYTES)
            seen = reach_wire.Observed(reach_wire.pack_host(claimed), 4190, time.time())
            await stream.send_message(reach_wire.encode(seen))

        async with listening({reach_wire.PROTOCOL_ID: lie}) as liar, listening({}) as node:
            prober = ReachProber(Probes(node, Contacts()))
            await node.connect(PeerAddress(*liar.local_address, liar.peer_id))
            assert (await prober.round()).addresses == ()

    run(test)
