"""Circuits through a relay over real sockets: honest ends, limits, and others."""

from __future__ import annotations

import random
import resource
from collections.abc import Awaitable, Callable

import pytest
import trio

import relay.service as service_module
from relay.circuit import CircuitRefused, RelayClient
from relay.circuit_stream import CircuitStream, understood
from relay.hop_wire import (
    HOP_PROTOCOL,
    STOP_PROTOCOL,
    HopMessage,
    HopType,
    Limit,
    Status,
    StopMessage,
    StopType,
    decode_hop,
    encode_hop,
    encode_stop,
)
from relay.reservations import RelayLimits
from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import Identity, PeerId
from routing.libp2p.delimited import DelimitedReader, write_delimited
from routing.libp2p.host import ControlHost
from routing.libp2p.inbound_limits import BURST_PER_IP
from routing.libp2p.muxed_stream import MuxedStream
from routing.wire.multistream import Dialer, ProtocolRefused
from tests.integration.relay_parts import (
    Accepted,
    Changes,
    address_of,
    echo,
    read_exactly,
    run,
    running_client,
    running_host,
    running_relay,
    until,
)

Test = Callable[[], Awaitable[None]]


async def ask(host: ControlHost, relay: ControlAddress, body: bytes) -> HopMessage | None:
    """One request of any bytes; the answer, or None if the stream ended without."""
    await host.connect(relay, timeout=5)
    assert relay.peer_id is not None
    stream = await host.open_stream(relay.peer_id, HOP_PROTOCOL, timeout=5)
    try:
        await write_delimited(stream, body)
        answer = await DelimitedReader(stream).read(4096)
        return None if answer is None else decode_hop(answer)
    finally:
        stream.abort()


# --- honest ends ---


def test_bytes_pass_both_ways_and_ends_are_passed_on() -> None:
    async def test() -> None:
        async with (
            running_relay() as (service, relay),
            running_client() as server,
            running_client() as client,
        ):
            server.accept_datagram_circuits(echo)
            reservation = await server.reserve(relay)
            assert reservation.limit == RelayLimits().limit()
            circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
            payload = random.Random(7).randbytes(3_000_000)

            async def send() -> None:
                await circuit.write(payload)
                circuit._stream.close_write()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                assert await read_exactly(circuit, len(payload)) == payload
            assert await circuit.read(1) == b""
            await until(lambda: service.statistics().circuits == 0)
            statistics = service.statistics()
            assert statistics.circuits_opened == 1 and statistics.reservations == 1
            # both ways, and the few bytes with which the ends agreed on their protocol
            assert 2 * len(payload) < statistics.bytes_relayed < 2 * len(payload) + 200
            assert statistics.refused == {}

    run(test)


def test_both_ends_know_who_called_through_whom_and_under_which_limit() -> None:
    async def test() -> None:
        limits = RelayLimits(circuit_seconds=90, circuit_bytes=70_000)
        async with (
            running_relay(limits) as (_, relay),
            running_client() as server,
            running_client() as client,
        ):
            accepted = Accepted()
            server.accept_datagram_circuits(accepted)
            await server.reserve(relay)
            assert server.relays == {relay.peer_id}
            circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
            await circuit.write(b"first")  # leaves together with the question, before any answer
            await until(lambda: accepted.circuits)
            far = accepted.circuits[0]
            assert await far.read(100) == b"first"
            await far.write(b"x" * 1000)
            assert await read_exactly(circuit, 1000) == b"x" * 1000
            assert far.peer_id == client.host.peer_id and circuit.peer_id == server.host.peer_id
            assert far.remote == circuit.remote == f"relay {relay.peer_id}"
            assert far.limit == circuit.limit == Limit(90, 70_000)
            seconds, left = circuit.left()
            assert seconds is not None and 80 < seconds <= 90
            assert left is not None and 68_900 < left < 69_000
            accepted.may_end.set()
            assert await circuit.read(1) == b""

    run(test)


def test_a_relay_without_limits_says_none() -> None:
    async def test() -> None:
        limits = RelayLimits(circuit_seconds=0, circuit_bytes=0)
        async with running_relay(limits) as (_, relay), running_client() as client:
            assert (await client.reserve(relay)).limit is None

    run(test)


def test_a_relay_tells_its_addresses_and_the_time() -> None:
    async def test() -> None:
        outside = ControlAddress.parse("/dns4/relay.example.org/tcp/443/tls/ws")
        options = {"addresses": lambda: (outside,), "wall_clock": lambda: 1_000_000.5}
        async with running_relay(**options) as (_, relay), running_client() as client:
            reservation = await client.reserve(relay)
            assert reservation.addresses == (outside.with_peer(relay.peer_id),)
            assert reservation.expires_at == 1_003_600

    run(test)


def test_an_end_that_breaks_breaks_the_other() -> None:
    async def test() -> None:
        async with (
            running_relay() as (service, relay),
            running_client() as server,
            running_client() as client,
        ):
            accepted = Accepted()
            server.accept_datagram_circuits(accepted)
            await server.reserve(relay)
            circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
            await until(lambda: accepted.circuits)
            circuit.abort()
            with pytest.raises(PeerError, match="reset"):
                await accepted.circuits[0].read(1)
            await until(lambda: service.statistics().circuits == 0)

    run(test)


# --- what is refused ---


def refused(status: Status) -> pytest.RaisesExc[CircuitRefused]:
    return pytest.raises(CircuitRefused, match=status.name)


def test_who_has_no_reservation_can_not_be_called() -> None:
    async def test() -> None:
        async with (
            running_relay() as (service, relay),
            running_client() as server,
            running_client() as client,
        ):
            server_id = server.host.peer_id
            with refused(Status.NO_RESERVATION):
                await client.dial_through(relay, server_id)
            await server.reserve(relay)
            with refused(Status.CONNECTION_FAILED):  # it does not speak the stop protocol yet
                await client.dial_through(relay, server_id)
            server.accept_datagram_circuits(echo)
            circuit = await client.open_datagram_circuit(relay, server_id)
            await circuit.write(b"hello")
            assert await circuit.read(10) == b"hello"
            assert relay.peer_id is not None
            await server.host.disconnect(relay.peer_id)
            await until(lambda: service.statistics().reservations == 0)
            assert server.relays == frozenset()
            with pytest.raises(PeerError):
                await circuit.read(1)
            with refused(Status.NO_RESERVATION):
                await client.dial_through(relay, server_id)
            assert service.statistics().refused == {"NO_RESERVATION": 2, "CONNECTION_FAILED": 1}

    run(test)


def test_a_call_goes_to_the_process_that_has_reserved() -> None:
    """A node that serves and a command of the same identity that asks are two processes."""

    async def test() -> None:
        who = Identity.generate()
        async with (
            running_relay() as (_, relay),
            running_client(who) as serving,
            running_client(who) as asking,
            running_client() as caller,
        ):
            serving.accept_datagram_circuits(echo)
            await serving.reserve(relay)
            await asking.host.connect(relay, timeout=5)
            circuit = await caller.open_datagram_circuit(relay, who.peer_id)
            await circuit.write(b"hello")
            assert await read_exactly(circuit, 5) == b"hello"

    run(test)


def test_members_only() -> None:
    async def test() -> None:
        members: set[PeerId] = set()
        async with (
            running_relay(allow=members.__contains__) as (_, relay),
            running_client() as server,
            running_client() as client,
        ):
            with refused(Status.PERMISSION_DENIED):
                await server.reserve(relay)
            members.add(server.host.peer_id)
            await server.reserve(relay)
            with refused(Status.PERMISSION_DENIED):
                await client.dial_through(relay, server.host.peer_id)

    run(test)


def test_no_relay_over_relay() -> None:
    async def test() -> None:
        async with running_host() as host, running_host() as caller, trio.open_nursery() as nursery:
            service = service_module.RelayService(host)
            service.start()
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(lambda: host.serve_stream(here, remote="relay 12D3KooWsomebody"))
            await caller.connect_over(there, host.peer_id, remote="relay 12D3KooWsomebody", timeout=5)
            stream = await caller.open_stream(host.peer_id, HOP_PROTOCOL, timeout=5)
            await write_delimited(stream, encode_hop(HopMessage(HopType.RESERVE)))
            answer = await DelimitedReader(stream).read(4096)
            assert answer is not None and decode_hop(answer).status == Status.PERMISSION_DENIED
            nursery.cancel_scope.cancel()

    run(test)


def test_calls_by_strangers_are_refused() -> None:
    async def test() -> None:
        async with running_host(listen=("127.0.0.1", 0)) as host, running_host() as stranger:
            client = RelayClient(host)
            client.accept_datagram_circuits(echo)
            await stranger.connect(address_of(host), timeout=5)
            stream = await stranger.open_stream(host.peer_id, STOP_PROTOCOL, timeout=5)
            call = StopMessage(StopType.CONNECT, peer=Identity.generate().peer_id)
            await write_delimited(stream, encode_stop(call))
            answer = await DelimitedReader(stream).read(4096)
            assert answer == encode_stop(StopMessage(StopType.STATUS, status=Status.PERMISSION_DENIED))

    run(test)


def test_a_far_end_that_speaks_something_else_is_an_error_of_the_first_read() -> None:
    async def test() -> None:
        async with running_relay() as (_, relay), running_client() as server, running_client() as client:
            server.accept_datagram_circuits(echo)
            await server.reserve(relay)
            raw = await client.dial_through(relay, server.host.peer_id)
            question = Dialer("/other/1")
            await raw.write(question.opening())
            circuit = CircuitStream(raw._stream, server.host.peer_id, None, negotiation=question)
            with pytest.raises(ProtocolRefused, match="/other/1"):
                await circuit.read(1)

    run(test)


# --- limits of a circuit ---


def test_a_circuit_ends_when_its_bytes_are_used_up() -> None:
    async def test() -> None:
        limits = RelayLimits(circuit_bytes=100_000)
        async with (
            running_relay(limits) as (_, relay),
            running_client() as server,
            running_client() as client,
        ):
            server.accept_datagram_circuits(echo)
            await server.reserve(relay)
            circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
            await circuit.write(b"x" * 49_000)
            await read_exactly(circuit, 49_000)
            left = circuit.left().bytes  # of both ways together, as the strictest relays count
            assert left is not None and 1_000 < left < 2_000
            await circuit.write(b"x" * 49_000)
            await read_exactly(circuit, 49_000)
            assert circuit.left().bytes == 0
            with pytest.raises(PeerError, match="reset"):
                await circuit.write(b"x" * 2_000)
                await read_exactly(circuit, 2_000)
            again = await client.open_datagram_circuit(relay, server.host.peer_id)
            await again.write(b"fresh")
            assert await again.read(10) == b"fresh"

    run(test)


def test_a_circuit_ends_when_its_time_is_over() -> None:
    async def test() -> None:
        limits = RelayLimits(circuit_seconds=1)
        async with (
            running_relay(limits) as (service, relay),
            running_client() as server,
            running_client() as client,
        ):
            server.accept_datagram_circuits(echo)
            await server.reserve(relay)
            circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
            await circuit.write(b"x")
            await circuit.read(1)
            with pytest.raises(PeerError, match="reset"):
                await circuit.read(1)
            assert service.statistics().circuits == 0

    run(test)


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        (None, None),
        (Limit(0, 0), None),
        (Limit(120, 131072), Limit(120, 131072)),
        (Limit(0, 131072), Limit(0, 131072)),
        (Limit(120_000, 131072), Limit(120, 131072)),  # js-libp2p's milliseconds
        (Limit(86_400, 0), Limit(86_400, 0)),
    ],
)
def test_a_limit_is_taken_as_its_relay_must_have_meant_it(named: Limit | None, meant: Limit | None) -> None:
    assert understood(named) == meant


# --- keeping a reservation ---


def test_a_reservation_is_made_again_when_the_relay_comes_back() -> None:
    async def test() -> None:
        identity, changes = Identity.generate(), Changes()
        async with running_client() as server, trio.open_nursery() as nursery:
            async with running_relay(identity=identity) as (_, relay):
                nursery.start_soon(lambda: server.keep_reserved(relay, changes))
                await until(lambda: changes.states == ["reserved"])
            await until(lambda: "lost" in changes.states)
            assert str(relay) in changes.seen[1].reason
            async with running_relay(identity=identity, listen=(relay.host, relay.port)) as (service, _):
                await until(lambda: changes.states[-1] == "reserved", seconds=10)
                assert service.statistics().reservations == 1
            nursery.cancel_scope.cancel()

    run(test)


def test_a_reservation_is_refreshed_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.circuit.MIN_REFRESH_SECONDS", 0.1)

    async def test() -> None:
        limits, changes = RelayLimits(reservation_seconds=1), Changes()
        async with (
            running_relay(limits) as (service, relay),
            running_client() as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: server.keep_reserved(relay, changes))
            await until(lambda: len(changes.seen) == 4)
            assert changes.states == ["reserved"] * 4
            assert service.statistics().reservations == 1
            nursery.cancel_scope.cancel()

    run(test)


# --- hostile ---


def test_malformed_requests_are_named_and_hurt_nobody() -> None:
    async def test() -> None:
        async with running_relay() as (service, relay), running_host() as host:
            rng = random.Random(3)
            for body in (b"\x08\x07", b"\xff" * 40, b"\x08\x01\x12\x05\x0a\x03abc"):
                answer = await ask(host, relay, body)
                assert answer is not None and answer.status == Status.MALFORMED_MESSAGE
            for body in (b"\x08\x01", b"\x08\x02\x28\x64"):  # a CONNECT to nobody, a STATUS
                answer = await ask(host, relay, body)
                assert answer is not None and answer.status == Status.UNEXPECTED_MESSAGE
            answer = await ask(host, relay, bytes(5000))
            assert answer is not None and answer.status == Status.MALFORMED_MESSAGE
            for _ in range(50):
                try:
                    await ask(host, relay, rng.randbytes(rng.randrange(1, 300)))
                except PeerError:
                    continue
            async with running_client() as client:
                await client.reserve(relay)
            assert service.statistics().circuits == 0

    run(test)


def test_calls_that_are_never_answered_cost_a_place_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "CALL_SECONDS", 0.5)

    async def silent(stream: MuxedStream) -> None:
        await trio.sleep_forever()

    async def test() -> None:
        limits = RelayLimits(circuits_per_target=4)
        async with (
            running_relay(limits) as (service, relay),
            running_client() as dead,
            running_client() as server,
            running_client() as client,
        ):
            dead.host.set_handler(STOP_PROTOCOL, silent)
            await dead.reserve(relay)
            server.accept_datagram_circuits(echo)
            await server.reserve(relay)
            statuses: list[int | None] = []

            async def call() -> None:
                with pytest.raises(CircuitRefused) as caught:
                    await client.dial_through(relay, dead.host.peer_id)
                statuses.append(caught.value.status)

            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(call)
                await until(lambda: service.statistics().circuits == 4)
                circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
                await circuit.write(b"meanwhile")
                assert await circuit.read(20) == b"meanwhile"
            assert (
                sorted(statuses, key=str)
                == [Status.RESOURCE_LIMIT_EXCEEDED] * 4 + [Status.CONNECTION_FAILED] * 4
            )
            assert service.statistics().circuits == 1

    run(test)


def test_a_reader_that_takes_nothing_holds_up_its_own_circuit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(service_module, "_STALL_CHECK_SECONDS", 0.1)

    async def test() -> None:
        async with (
            running_relay() as (service, relay),
            running_client() as lazy,
            running_client() as server,
            running_client() as client,
        ):
            lazy.accept_datagram_circuits(Accepted())
            await lazy.reserve(relay)
            server.accept_datagram_circuits(echo)
            await server.reserve(relay)
            stuck = await client.open_datagram_circuit(relay, lazy.host.peer_id)
            written = 0

            async def pour() -> None:
                nonlocal written
                with pytest.raises(PeerError, match="reset"):
                    while True:
                        await stuck.write(bytes(16_384))
                        written += 16_384

            async with trio.open_nursery() as nursery:
                nursery.start_soon(pour)
                circuit = await client.open_datagram_circuit(relay, server.host.peer_id)
                for _ in range(50):
                    await circuit.write(b"x" * 12_288)
                    await read_exactly(circuit, 12_288)
            # two windows, one read, and what both connections queue
            assert written < 2_000_000
            await circuit.write(b"still")
            assert await circuit.read(10) == b"still"
            assert service.statistics().circuits == 1

    run(test)


def test_requests_that_never_come_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "REQUEST_SECONDS", 1.0)

    async def test() -> None:
        async with running_relay() as (service, relay), running_host() as host, running_client() as client:
            await host.connect(relay, timeout=5)
            assert relay.peer_id is not None
            streams = [await host.open_stream(relay.peer_id, HOP_PROTOCOL, timeout=5) for _ in range(60)]
            await until(
                lambda: (
                    service.statistics().refused
                    == {"TOO_MANY_REQUESTS": 60 - service_module.MAX_REQUESTS_PER_PEER}
                )
            )
            await client.reserve(relay)
            for stream in streams:
                with pytest.raises(PeerError):
                    while await stream.read(100):
                        pass
            await until(lambda: not service._requests)

    run(test)


@pytest.mark.slow
def test_a_thousand_reservations_from_one_address() -> None:
    async def test() -> None:
        async with running_relay() as (service, relay), running_client() as client:
            granted: list[ControlHost] = []
            statuses: dict[int | None, int] = {}
            await client.host.connect(relay, timeout=5)  # before it gets crowded at the door

            async def attack(nursery: trio.Nursery) -> None:
                host = ControlHost(Identity.generate(), listen=None)
                await nursery.start(host.run)
                try:
                    answer = await ask(host, relay, encode_hop(HopMessage(HopType.RESERVE)))
                except PeerError:
                    statuses[None] = statuses.get(None, 0) + 1
                    return
                assert answer is not None
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                if answer.status == Status.OK:
                    granted.append(host)
                else:
                    await host.disconnect(str(relay.peer_id))

            async with trio.open_nursery() as nursery:
                for count in range(1000):
                    if count == 200:
                        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    await attack(nursery)
                after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                assert len(granted) == RelayLimits().reservations_per_ip
                # by the relay, or already at the door, where connections of one address are counted, too
                assert statuses[Status.RESERVATION_REFUSED] >= BURST_PER_IP - 1 - len(granted)
                assert statuses[Status.RESERVATION_REFUSED] + statuses.get(None, 0) == 1000 - len(granted)
                assert service.statistics().reservations == len(granted)
                # the attackers' hosts live in this process, too, and are kept until the end
                assert after - before < 64 * 1024, "KiB"
                with refused(Status.RESERVATION_REFUSED):
                    await client.reserve(relay)
                nursery.cancel_scope.cancel()
            await until(lambda: service.statistics().reservations == 0)
            await client.reserve(relay)

    run(test, seconds=120)
