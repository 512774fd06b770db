"""Parts of the relay tests: hosts on loopback, a relay among them, echoing ends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from relay.circuit import RelayClient, ReservationChange
from relay.circuit_stream import CircuitStream
from relay.reservations import RelayLimits
from relay.service import RelayService
from routing.byte_stream import ByteStream
from routing.control_address import ControlAddress
from routing.identity import Identity
from routing.libp2p.host import ControlHost


def run(test: Callable[[], Awaitable[None]], *, seconds: float = 20) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await test()

    trio.run(bounded)


@asynccontextmanager
async def running_host(
    *, listen: tuple[str, int] | None = None, identity: Identity | None = None
) -> AsyncIterator[ControlHost]:
    async with trio.open_nursery() as nursery:
        host = ControlHost(identity or Identity.generate(), listen=listen)
        await nursery.start(host.run)
        yield host
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_relay(
    limits: RelayLimits | None = None,
    *,
    identity: Identity | None = None,
    listen: tuple[str, int] = ("127.0.0.1", 0),
    **options: Any,
) -> AsyncIterator[tuple[RelayService, ControlAddress]]:
    async with running_host(listen=listen, identity=identity) as host:
        service = RelayService(host, limits, **options)
        service.start()
        yield service, address_of(host)


@asynccontextmanager
async def running_client(identity: Identity | None = None) -> AsyncIterator[RelayClient]:
    async with running_host(identity=identity) as host:
        yield RelayClient(host, rng=random.Random(1))


def address_of(host: ControlHost) -> ControlAddress:
    return ControlAddress.parse(host.local_addresses[0]).with_peer(host.peer_id)


async def echo(stream: ByteStream) -> None:
    while data := await stream.read(65536):
        await stream.write(data)


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.005)


async def read_exactly(stream: ByteStream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = await stream.read(count - len(data))
        assert part, f"ended after {len(data)} of {count} bytes"
        data += part
    return bytes(data)


class Changes:
    """What `keep_reserved` has reported."""

    def __init__(self) -> None:
        self.seen: list[ReservationChange] = []

    def __call__(self, change: ReservationChange) -> None:
        self.seen.append(change)

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.seen]


class Accepted:
    """Takes circuits and leaves them open until told."""

    def __init__(self) -> None:
        self.circuits: list[CircuitStream] = []
        self.may_end = trio.Event()

    async def __call__(self, circuit: CircuitStream) -> None:
        self.circuits.append(circuit)
        await self.may_end.wait()
