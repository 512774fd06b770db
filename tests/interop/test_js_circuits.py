"""Two panal nodes that listen nowhere reach each other through a js-libp2p relay."""

from __future__ import annotations

import random

import pytest
import trio

from relay.circuit import CircuitRefused
from relay.circuit_stream import CircuitStream
from relay.hop_wire import Limit, Status
from routing.errors import PeerError
from routing.identity import Identity
from tests.integration.relay_parts import Accepted, echo, read_exactly, run, running_client, until
from tests.interop.js_node import js_node

pytestmark = pytest.mark.slow


async def exchange(circuit: CircuitStream, payload: bytes) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.write, payload)
        assert await read_exactly(circuit, len(payload)) == payload


def test_two_nodes_that_listen_nowhere_meet_at_a_js_relay() -> None:
    async def test() -> None:
        async with js_node() as js, running_client() as server, running_client() as client:
            server.accept_datagram_circuits(echo)
            reservation = await server.reserve(js.address)
            assert reservation.limit is None
            circuit = await client.open_datagram_circuit(js.address, server.host.peer_id)
            assert circuit.limit is None and circuit.left() == (None, None)
            rng = random.Random(5)
            for size in (1, 12_288, 700_000):
                await exchange(circuit, rng.randbytes(size))
            circuit.abort()

    run(test, seconds=90)


def test_both_ends_learn_of_js_relays_limits_and_dial_anew() -> None:
    async def test() -> None:
        async with js_node(limit=True) as js, running_client() as server, running_client() as client:
            accepted = Accepted()
            server.accept_datagram_circuits(accepted)
            await server.reserve(js.address)
            circuit = await client.open_datagram_circuit(js.address, server.host.peer_id)
            await circuit.write(b"hello")
            await until(lambda: accepted.circuits)
            assert circuit.limit == accepted.circuits[0].limit == Limit(duration=120, data=128 * 1024)
            with pytest.raises(PeerError):
                for _ in range(60):
                    await circuit.write(bytes(12_288))
                    await trio.sleep(0.005)
            server.accept_datagram_circuits(echo)
            again = await client.open_datagram_circuit(js.address, server.host.peer_id)
            await exchange(again, bytes(12_288))

    run(test, seconds=90)


def test_js_relays_refusals_have_names() -> None:
    async def test() -> None:
        async with js_node() as js, running_client() as client:
            with pytest.raises(CircuitRefused) as caught:
                await client.dial_through(js.address, Identity.generate().peer_id)
            assert caught.value.status == Status.NO_RESERVATION
            assert "NO_RESERVATION" in str(caught.value)

    run(test, seconds=90)
