"""Relays that do not exist, are full or swallow packets must not keep a node from the good ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from node.swarm import control as control_module
from node.swarm.control import Control
from node.swarm.place import Place
from relay.reservations import RelayLimits
from routing.byte_stream import ByteStream, Meter
from routing.control_address import ControlAddress
from routing.identity import Identity
from routing.membership import Membership
from tests.integration.relay_parts import address_of, run, running_client, running_host, running_relay, until


@asynccontextmanager
async def looking_for_relays(relays: Sequence[ControlAddress]) -> AsyncIterator[Control]:
    """A node that needs relays and knows these, as node.swarm.node tells it every two seconds."""

    async def take(stream: ByteStream, left: Meter | None) -> None:
        stream.abort()

    identity = Identity.generate()
    config = Place.among([], identity=identity).relay
    async with trio.open_nursery() as nursery:
        control = Control(
            identity, Membership(), config, listen=None, on_stream=take, on_reservations=lambda: None
        )
        await nursery.start(control.run)

        async def keep_telling() -> None:
            while True:
                control.use_relays(relays)
                await trio.sleep(0.05)

        nursery.start_soon(keep_telling)
        yield control
        nursery.cancel_scope.cancel()


def nobody(port: int = 1) -> ControlAddress:
    return ControlAddress.of("127.0.0.1", port, Identity.generate().peer_id)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "RELAY_PATIENCE", 0.3)


def test_relays_that_do_not_exist_do_not_take_the_place_of_one_that_does() -> None:
    async def test() -> None:
        fakes = [nobody() for _ in range(6)]
        async with running_relay() as (_, relay), looking_for_relays([*fakes, relay]) as control:
            await until(lambda: control.reserved, 10)
            await trio.sleep(1.0)  # and it is kept, while others are tried beside it
            assert relay in control.reserved

    run(test)


def test_a_full_relay_gives_its_place_to_another() -> None:
    async def test() -> None:
        limits = RelayLimits(reservations=1)
        async with (
            running_relay(limits) as (_, full),
            running_relay(limits) as (_, also_full),
            running_relay() as (_, free),
            running_client() as first,
            running_client() as second,
        ):
            await first.reserve(full)
            await second.reserve(also_full)
            async with looking_for_relays([full, also_full, free]) as control:
                await until(lambda: control.reserved, 10)
                assert free in control.reserved

    run(test)


def test_a_relay_is_found_where_it_has_moved_to() -> None:
    async def test() -> None:
        identity = Identity.generate()
        gone = ControlAddress.of("127.0.0.1", 1, identity.peer_id)
        known = [gone]
        async with running_relay(identity=identity) as (_, relay), looking_for_relays(known) as control:
            await trio.sleep(0.1)
            known[:] = [gone, relay]
            await until(lambda: control.reserved, 10)

    run(test)


def test_an_address_that_swallows_everything_does_not_hold_up_the_others_of_its_peer() -> None:
    async def test() -> None:
        async with running_host(listen=("127.0.0.1", 0)) as server, running_host() as client:
            silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = silent[0].socket.getsockname()[1]
            swallows = ControlAddress.of("127.0.0.1", port, server.peer_id)
            async with trio.open_nursery() as nursery:

                async def hang() -> None:
                    await client.connect(swallows, timeout=60)

                nursery.start_soon(hang)
                await trio.sleep(0.1)
                await client.connect(address_of(server), timeout=5)
                assert client.is_connected(server.peer_id)
                nursery.cancel_scope.cancel()
            await silent[0].aclose()

    run(test)
