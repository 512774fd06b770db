"""QUIC connections that outlive the circuits they run over: relays with limits, as libp2p's public ones."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from relay.circuit import RelayClient
from relay.circuit_stream import CircuitStream
from relay.reservations import RelayLimits
from relay.service import RelayService
from routing.byte_stream import ByteStream, Left, Meter
from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.accepted import AcceptedPaths
from routing.quic.carried import frame
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.paths import Path
from routing.quic.renewed import ANNOUNCEMENT, ID_BYTES, MAX_CIRCUITS, RenewedPath
from routing.quic.stream import Stream
from tests.integration.relay_parts import run, running_client, running_relay, until

pytestmark = pytest.mark.slow

ECHO = "/test/echo/1"
each_backend = pytest.mark.parametrize("backend", ["qh3", "aioquic"])


async def echo(stream: Stream) -> None:
    while True:
        try:
            await stream.send_message(await stream.receive_message(1 << 22))
        except PeerError:
            return


@dataclass
class Pair:
    """An endpoint that dials and one that answers, with a relay between them."""

    nursery: trio.Nursery
    service: RelayService
    relay: ControlAddress
    caller: RelayClient
    client: Endpoint
    server: Endpoint
    accepted: AcceptedPaths
    opened: list[CircuitStream] = field(default_factory=list)

    async def circuit(self) -> tuple[ByteStream, Meter | None]:
        circuit = await self.caller.open_datagram_circuit(self.relay, self.server.peer_id)
        self.opened.append(circuit)
        return circuit, circuit.left

    async def dial(self) -> tuple[Connection, Path]:
        stream, left = await self.circuit()
        assert left is not None
        renewed = RenewedPath(self.client, stream.remote, left)

        async def carry(task_status: trio.TaskStatus[Path]) -> None:
            await renewed.dial(stream, left, self.circuit, task_status=task_status)

        path: Path = await self.nursery.start(carry)
        address = PeerAddress(*path.address, self.server.peer_id)
        return await self.client.connect(address, fresh=True), path


@asynccontextmanager
async def pair(backend: str, limits: RelayLimits) -> AsyncIterator[Pair]:
    identity = Identity.generate()
    async with (
        running_relay(limits) as (service, relay),
        running_client(identity) as callee,
        running_client() as caller,
        trio.open_nursery() as nursery,
    ):
        client = Endpoint(caller.host.identity, listen=("127.0.0.1", 0), backend=backend)
        server = Endpoint(identity, listen=("127.0.0.1", 0), backend=backend, handlers={ECHO: echo})
        await nursery.start(client.run)
        await nursery.start(server.run)
        accepted = AcceptedPaths(server)

        async def take(circuit: CircuitStream) -> None:
            await accepted.accept(circuit, circuit.left)

        callee.accept_datagram_circuits(take)
        await callee.reserve(relay)
        yield Pair(nursery, service, relay, caller, client, server, accepted)
        nursery.cancel_scope.cancel()


@each_backend
def test_a_connection_outlives_many_circuits(backend: str) -> None:
    async def test() -> None:
        async with pair(backend, RelayLimits(circuit_bytes=128 << 10)) as nodes:
            connection, path = await nodes.dial()
            assert path.metered
            stream = connection.open_stream(ECHO)
            rng = random.Random(1)
            for size in (*[3_000] * 100, 40_000, 300_000, 1):  # 300,000: more than two circuits carry
                message = rng.randbytes(size)
                await stream.send_message(message)
                assert await stream.receive_message(1 << 22) == message
            assert connection.is_open
            assert nodes.server.connections and len(nodes.server.connections) == 1
            total = 2 * (100 * 3_000 + 40_000 + 300_000)
            assert len(nodes.opened) >= total // (128 << 10)
            # used ones are closed, and the path is one
            await until(lambda: nodes.service.statistics().circuits <= 2)

    run(test, seconds=60)


@each_backend
def test_time_runs_out_while_nothing_is_sent(backend: str) -> None:
    async def test() -> None:
        async with pair(backend, RelayLimits(circuit_seconds=2)) as nodes:
            connection, path = await nodes.dial()
            assert not path.metered  # its bytes are not limited
            await trio.sleep(5)
            stream = connection.open_stream(ECHO)
            await stream.send_message(b"hola")
            assert await stream.receive_message(100) == b"hola"
            assert 3 <= len(nodes.opened) <= 6

    run(test, seconds=30)


def test_a_circuit_that_breaks_in_the_middle_loses_nothing() -> None:
    async def test() -> None:
        async with pair("qh3", RelayLimits(circuit_bytes=1 << 20)) as nodes:
            connection, _ = await nodes.dial()
            stream = connection.open_stream(ECHO)
            message = random.Random(2).randbytes(300_000)
            for _ in range(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.send_message, message)
                    await trio.sleep(0.01)
                    nodes.opened[-1].abort()
                    assert await stream.receive_message(1 << 22) == message
            assert connection.is_open and len(nodes.opened) > 5

    run(test, seconds=60)


def test_the_end_of_a_path_ends_its_circuits_at_both_ends() -> None:
    async def test() -> None:
        async with pair("qh3", RelayLimits(circuit_bytes=1 << 20)) as nodes:
            _, path = await nodes.dial()
            await until(lambda: nodes.server.connections)
            (answering,) = nodes.server.connections
            nodes.client.close_path(path, "enough")
            await until(lambda: nodes.service.statistics().circuits == 0)
            assert path.ended.is_set()
            # what ended may only have been a circuit: for that long the other end waits
            await until(lambda: not answering.is_open, seconds=10)

    run(test, seconds=30)


def test_a_path_nobody_carries_is_given_up() -> None:
    async def test() -> None:
        async with pair("qh3", RelayLimits(circuit_bytes=1 << 20)) as nodes:
            connection, _ = await nodes.dial()
            stream = connection.open_stream(ECHO)
            await stream.send_message(b"hola")
            nodes.service.stop()
            nodes.opened[-1].abort()
            await connection.closed.wait()
            assert not nodes.client.connections

    run(test, seconds=30)


class Silent:
    """The near end of a circuit of which only the beginning is of interest."""

    def __init__(self, *parts: bytes) -> None:
        self.peer_id = "somebody"
        self.remote = "relay R"
        self.parts = list(parts)
        self.ended = trio.Event()

    async def read(self, max_bytes: int) -> bytes:
        if self.parts:
            return self.parts.pop(0)
        await self.ended.wait()
        return b""

    async def write(self, data: bytes) -> None:
        pass

    async def aclose(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        self.ended.set()


def test_circuits_of_one_path_are_bounded_and_those_nobody_uses_are_closed() -> None:
    async def test() -> None:
        async with trio.open_nursery() as nursery:
            server = Endpoint(Identity.generate(), listen=("127.0.0.1", 0))
            await nursery.start(server.run)
            accepted = AcceptedPaths(server)
            announced = frame(ANNOUNCEMENT + bytes(ID_BYTES))
            circuits = [Silent(announced) for _ in range(MAX_CIRCUITS + 2)]
            over = [trio.Event() for _ in circuits]

            async def take(number: int) -> None:
                await accepted.accept(circuits[number], lambda: Left(120, 128 << 10))
                over[number].set()

            nursery.start_soon(take, 0)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(1, len(circuits)):
                nursery.start_soon(take, number)
            await until(lambda: sum(each.is_set() for each in over) == 2)
            # no handshake comes over them: after a while they are closed
            await until(lambda: all(each.is_set() for each in over), seconds=15)
            assert all(circuit.ended.is_set() for circuit in circuits)
            nursery.cancel_scope.cancel()

    run(test, seconds=30)
