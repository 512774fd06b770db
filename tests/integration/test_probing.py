"""Probes in a real swarm: who is there counts although nobody stays connected to it, and phantoms do not."""

from __future__ import annotations

import dataclasses
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from market import answering
from market.view import STRANGER
from node.device.folder import NodeFolder
from node.device.running_node import NodeSilent, find_running
from node.engine import library as llama
from node.importing import import_model
from node.market import probing as module
from node.market.probing import Probing
from node.model.store import Store
from node.swarm import finding, ways
from node.swarm.announcing import Offered
from node.swarm.holdings_told import tell_holdings
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from routing.dial_limits import DialLimits
from routing.identity import Identity
from routing.multiaddr import ListenAddress, PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.wire import holdings
from routing.wire.advert import Advert, sign_advert
from routing.wire.holdings import Holdings, Slice
from tests.ready_panal import popen
from tests.served import listening, run
from tests.swarm_process import PANAL, Home, Launch, NodeProcess, running, start_all

MODEL = "ab" * 32
HELD = Slice("experts", MODEL, "test", experts=[(0, 3, [(0, 7)])])
FEWER = Slice("experts", MODEL, "test", experts=[(0, 3, [(0, 3)])])

SECONDS = 60.0
"""For what takes a few, on a machine that may be busy."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes come quickly, and nobody has neighbours: who is not configured is known by its advert alone."""
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(answering, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(answering, "QUICK_SECONDS", 0.05)
    monkeypatch.setattr(answering, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(answering, "REFRESH_SECONDS", 0.5)
    monkeypatch.setattr(ways, "DIAL_TIMEOUT", 1.0)
    monkeypatch.setattr(finding, "NEIGHBOURS", 0)
    monkeypatch.setattr(finding, "ENOUGH", 0)


def place(*peers: SwarmNode) -> Place:
    base = Place.among([PeerAddress.parse(each.address) for each in peers], identity=Identity.generate())
    swarm = dataclasses.replace(base.swarm, listen=ListenAddress("127.0.0.1", 0))
    return dataclasses.replace(base, swarm=swarm)


@asynccontextmanager
async def server(*peers: SwarmNode) -> AsyncIterator[SwarmNode]:
    """A node that serves, as its advert says."""
    told = holdings.encode_holdings(Holdings([1], "server", [HELD], ["f32"], ["sum"], 512))
    node = SwarmNode(
        place(*peers),
        Role(
            serves=True,
            offered=lambda: Offered(name="server", slices=[HELD], versions=[1]),
            handlers={holdings.PROTOCOL_ID: lambda stream: tell_holdings(stream, lambda: told)},
        ),
    )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            yield node
            nursery.cancel_scope.cancel()
    finally:
        node.close()


@asynccontextmanager
async def lying_endpoint() -> AsyncIterator[Endpoint]:
    """One that answers, and tells of fewer cells than it will claim."""
    told = holdings.encode_holdings(Holdings([1], "liar", [FEWER], ["f32"], ["sum"], 512))
    handlers: dict[str, Handler] = {holdings.PROTOCOL_ID: lambda stream: tell_holdings(stream, lambda: told)}
    async with listening(handlers) as endpoint:
        yield endpoint


def note_connections(node: SwarmNode, calls: list[str]) -> None:
    """Note who connects to a node."""
    made = node.endpoint.on_connection
    assert made is not None

    def noted(connection: Connection) -> None:
        calls.append(connection.peer_id)
        made(connection)

    node.endpoint.on_connection = noted


def claim(
    identity: Identity,
    port: int,
    swarm_id: bytes,
    reach: Literal["unknown", "private"] = "unknown",
    claimed: Slice = HELD,
) -> bytes:
    """A validly signed advert that says who this is, and that it holds what the servers hold, there."""
    now = int(time.time())
    advert = Advert(
        swarm_id=swarm_id, peer_id=str(identity.peer_id), instance=1, seq=now * 1000, issued_at=now,
        lifetime=600, addresses=[f"/ip4/127.0.0.1/udp/{port}/quic-v1"], reach=reach, slices=[claimed],
    )  # fmt: skip
    return sign_advert(advert, identity)


async def until(condition: Callable[[], object], what: str) -> None:
    with trio.move_on_after(SECONDS) as patience:
        while not condition():
            await trio.sleep(0.02)
    assert not patience.cancelled_caught, what


def test_phantoms_count_nothing_and_servers_wholly_and_nobody_stays_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with (
            server() as boot,
            server(boot) as near,
            server(boot) as me,
            lying_endpoint() as liar,
        ):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
                nobody.bind(("127.0.0.1", 0))
                phantoms = [Identity.generate() for _ in range(2)]
                places = [nobody.getsockname()[1], near.endpoint.local_address[1]]
                swarm_id = boot.membership.swarm.id
                for identity, port in zip(phantoms, places, strict=True):
                    assert boot.exchange.offer(claim(identity, port, swarm_id), from_peer="").changed
                lie = claim(liar.identity, liar.local_address[1], swarm_id)
                assert boot.exchange.offer(lie, from_peer="").changed
                await until(lambda: len(me.table) == 6, "three servers, three claims, by way of boot")
                calls: list[str] = []
                note_connections(near, calls)
                probing = Probing(me, lambda: {MODEL}, rng=random.Random(1))
                assert probing.answers().weight(near.identity.peer_id) == STRANGER
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(probing.run)

                    def is_found() -> bool:
                        answers = probing.answers()
                        there = [str(each.identity.peer_id) for each in (boot, near)]
                        claimed = [str(each.peer_id) for each in [*phantoms, liar.identity]]
                        return [answers.weight(each) for each in there + claimed] == [1.0, 1.0, 0.0, 0.0, 0.0]

                    await until(is_found, "servers to answer and phantoms to be found out")
                    assert probing.answers().counts(probing.holders()) == (2, 3, 0)
                    own_id = me.identity.peer_id
                    await until(lambda: calls.count(own_id) >= 3, "some probes of one server")
                    # from now on nobody is due; what is left of the probes goes
                    monkeypatch.setattr(answering, "REFRESH_SECONDS", 3_600.0)
                    await until(lambda: not near.endpoint.connections_to(own_id), "no connection")
                    await until(lambda: not liar.connections, "none to the liar either")
                    assert {str(each.peer_id) for each in me.endpoint.connections} <= {boot.identity.peer_id}
                    assert me.links.wanted == {boot.identity.peer_id}
                    nursery.cancel_scope.cancel()

    run(test, seconds=3 * SECONDS)


def test_who_may_not_be_dialed_any_more_is_not_called_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that name its host have used up what that host may be dialed."""
    refused: list[str] = []

    def may(limits: DialLimits, host: str, now: float) -> bool:
        refused.append(host)
        return False

    async def test() -> None:
        async with server() as boot, server(boot) as far, server(boot) as me:
            await until(lambda: len(me.table) == 3, "three servers")
            monkeypatch.setattr(DialLimits, "may", may)
            probing = Probing(me, lambda: {MODEL}, rng=random.Random(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(probing.run)
                await until(lambda: len(refused) >= 3, "some tries")
                assert probing.answers().weight(far.identity.peer_id) == STRANGER
                nursery.cancel_scope.cancel()

    run(test, seconds=3 * SECONDS)


# --- whole nodes ---

SOON = (
    "import market.answering as answering, node.market.probing as probing; probing.FIRST_SECONDS = 0.2; "
    "answering.PROBE_SECONDS = answering.QUICK_SECONDS = answering.RETRY_SECONDS = 0.2; "
    "answering.REFRESH_SECONDS = 3.0; "
    "import node.swarm.ways as ways; ways.DIAL_TIMEOUT = 2.0; "
)
SELLER, FREE = "127.0.0.3", "127.0.0.2"
"""A probe goes out from the address that its node listens at."""


def less_patient(command: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
    """`panal` that probes sooner."""
    code = SOON + "import sys; from node.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-P", "-c", code, *command[len(PANAL) :]], **streams)


@pytest.mark.slow
def test_who_sells_probes_and_tells_of_it_and_who_gives_probes_nobody(
    tmp_path: Path, demo_model: Path
) -> None:
    """Both hear of a phantom that is no neighbour of anybody."""
    store = tmp_path / "store"
    model_id = import_model(llama.load(), Store(store), demo_model).model_id
    phantom = Identity.generate()
    claimed = Slice("experts", model_id, "qwen2moe", experts=[(0, 3, [(0, 11)])])

    async def test() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
            nobody.bind(("127.0.0.1", 0))
            async with server() as boot:
                place = nobody.getsockname()[1]
                data = claim(phantom, place, boot.membership.swarm.id, "private", claimed)
                assert boot.exchange.offer(data, from_peer="").changed

                def node(host: str, mode: str, launch: Launch) -> NodeProcess:
                    rest = f'[http]\nlisten = "127.0.0.1:0"\n[market]\nmode = "{mode}"\n'
                    home = Home(
                        tmp_path / mode, store, demo_model, "0-11", host, peers=[boot.address],
                        swarm='lan = false\ncontrol = "off"', rest=rest,
                    )  # fmt: skip
                    return NodeProcess(home, launch)

                seller, free = node(SELLER, "scarcity", less_patient), node(FREE, "free", popen)
                with running([seller, free]):
                    await trio.to_thread.run_sync(start_all, [seller, free])
                    for each, other in ((seller, free), (free, seller)):
                        for peer_id in (phantom.peer_id, other.peer_id):
                            await until(lambda: peer_id in each.table, f"{each.name} to hear")  # noqa: B023

                    def has_told() -> bool:
                        told = status(seller).get("market", {})
                        kinds = ("answered", "silent", "heard")
                        return [told.get(f"holders_{kind}") for kind in kinds] == [1, 1, 0]

                    with trio.fail_after(SECONDS):
                        while not await trio.to_thread.run_sync(has_told):
                            await trio.sleep(0.2)
                    senders = senders_of(nobody)
                    assert SELLER in senders and FREE not in senders

    run(test, seconds=3 * SECONDS)


def status(node: NodeProcess) -> dict[str, Any]:
    """As it tells of itself; nothing while it does not yet."""
    here = find_running(NodeFolder(node.home.folder), None)
    try:
        told = {} if here is None else here.get("/api/status")
    except NodeSilent:
        return {}
    assert isinstance(told, dict)
    return told


def senders_of(port: socket.socket) -> set[str]:
    """From where something has come."""
    port.setblocking(False)
    found = set()
    with suppress(BlockingIOError):
        while True:
            found.add(port.recvfrom(2048)[1][0])
    return found
