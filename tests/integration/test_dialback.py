"""Dial-backs and punches between real endpoints, each at a loopback address of its own, and their abuse."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from node.config import load_config
from node.swarm.own_membership import load_membership
from node.swarm.place import Place
from relay.contacts import Contacts
from relay.dialback import DIAL_BACKS_PER_PEER, PROBES_PER_TARGET, DialBackService
from relay.netcheck import Check, Status, netcheck
from relay.prober import ReachProber
from relay.probes import Probes
from relay.punch import PUNCHES_PER_PEER, Puncher
from relay.punch_plan import PROTOCOL_ID as PUNCH
from relay.punch_plan import CallBack, Outcome, decode, encode, pack_addresses
from relay.reach_wire import (
    COPIES,
    MAX_MESSAGE_BYTES,
    PROTOCOL_ID,
    DialBack,
    DialedBack,
    Observe,
    Observed,
    Probed,
    ProbeFor,
    ProbeKind,
    ReachError,
    decode_answer,
    encode_probe,
    pack_host,
)
from relay.reach_wire import encode as encode_reach
from relay.reachability import Filtering, Mapping, Reach, Reachability
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.paths import Path as CarriedPath
from tests.ready_panal import run_panal

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs more loopback addresses than 127.0.0.1"
)

NONCE = bytes(range(16))
HOUR = 3600.0


def run(test: Callable[[], Awaitable[None]], seconds: float = 30) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await test()

    trio.run(bounded)


class Node:
    """What a node has of this part, at 127.0.0.NUMBER."""

    def __init__(self, number: int, wall_clock: Callable[[], float]) -> None:
        handlers = {
            PROTOCOL_ID: lambda stream: self.service.serve(stream),
            PUNCH: lambda stream: self.puncher.serve(stream),
        }
        self.endpoint = Endpoint(Identity.generate(), listen=(f"127.0.0.{number}", 0), handlers=handlers)
        self.probes = Probes(self.endpoint, Contacts())
        self.service = DialBackService(self.probes, wall_clock=wall_clock, rng=random.Random(number))
        self.changes: list[Reachability] = []
        self.prober = ReachProber(
            self.probes, on_change=self.changes.append, wall_clock=lambda: 1000.0, rng=random.Random(number)
        )
        self.puncher = Puncher(self.probes, self.prober.candidates)

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(*self.endpoint.local_address, self.endpoint.peer_id)

    async def connect(self, other: Node) -> Connection:
        self.probes.contacts.note(other.address.host, self.endpoint.now())
        return await self.endpoint.connect(other.address)


@asynccontextmanager
async def nodes(count: int, wall_clock: Callable[[], float] = lambda: 1000.0) -> AsyncIterator[list[Node]]:
    async with trio.open_nursery() as nursery:
        made = [Node(number, wall_clock) for number in range(1, count + 1)]
        for node in made:
            await nursery.start(node.endpoint.run)
        yield made
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def victim(number: int) -> AsyncIterator[socket.socket]:
    """Somebody who takes no part, at 127.0.0.NUMBER."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bystander:
        bystander.bind((f"127.0.0.{number}", 0))
        bystander.setblocking(False)
        yield bystander


def received(bystander: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(bystander.recv(65536))
        except BlockingIOError:
            return found


async def ask(connection: Connection, request: Any, kind: Any) -> Any:
    stream = connection.open_stream(PROTOCOL_ID)
    await stream.send_message(request if isinstance(request, bytes) else encode_reach(request))
    answer = decode_answer(await stream.receive_message(MAX_MESSAGE_BYTES), kind)
    stream.reset()
    return answer


# --- the evidence ---


def test_peers_and_their_helpers_show_that_a_node_is_public() -> None:
    async def test() -> None:
        async with nodes(5, wall_clock=lambda: 1000.0 + HOUR) as (x, p1, p2, h1, h2):
            for helper in (h1, h2):
                for peer in (p1, p2):
                    await helper.connect(peer)
            await x.connect(p1)
            await x.connect(p2)
            verdict = await x.prober.round()
            assert (verdict.reach, verdict.mapping, verdict.filtering, verdict.udp) == (
                Reach.PUBLIC,
                Mapping.NONE,
                Filtering.NONE,
                True,
            ), verdict
            assert verdict.addresses == (x.endpoint.local_address,)
            assert verdict.port_kept is True
            assert x.changes[-1] == verdict
            assert x.prober.candidates() == [x.endpoint.local_address]
            assert list(x.prober.clock_offsets.values()) == [HOUR, HOUR]

    run(test)


def test_without_a_stranger_the_question_stays_open() -> None:
    async def test() -> None:
        async with nodes(4) as (x, p1, p2, h):
            await h.connect(p1)
            await h.connect(p2)
            for peer in (p1, p2, h):  # h is none, then
                await x.connect(peer)
            verdict = await x.prober.round()
            assert verdict.reach is Reach.UNKNOWN
            assert verdict.filtering is Filtering.ADDRESS
            assert "no peer knows another host" in verdict.reason

    run(test)


def test_one_peer_is_enough_where_there_is_no_other() -> None:
    async def test() -> None:
        async with nodes(3) as (x, p, h):
            await h.connect(p)
            await x.connect(p)
            verdict = await x.prober.round()
            assert verdict.reach is Reach.PUBLIC
            assert "only one peer was able to have one sent" in verdict.reason

    run(test)


@pytest.mark.slow
def test_a_connection_that_nobody_invited_is_evidence_once() -> None:
    async def test() -> None:
        async with nodes(3) as (x, invited, stranger):
            x.probes.contacts.note(invited.address.host, x.endpoint.now())
            await invited.connect(x)
            await x.prober.round()
            assert x.prober.reachability.reach is Reach.UNKNOWN
            x.endpoint.on_connection = x.prober.on_connection
            async with trio.open_nursery() as nursery:
                nursery.start_soon(x.prober.run)
                await trio.sleep(0)
                await stranger.connect(x)
                while x.prober.reachability.reach is Reach.UNKNOWN:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            await x.prober.round()
            lines = [line for line in x.prober.reachability.evidence if line.startswith("uninvited")]
            assert len(lines) == 1 and stranger.endpoint.peer_id in lines[0]

    run(test)


@pytest.mark.parametrize(("reach", "woken"), [(Reach.PUBLIC, False), (Reach.PRIVATE, True)])
def test_that_strangers_come_is_no_news_to_a_public_node(reach: Reach, woken: bool) -> None:
    async def test() -> None:
        async with nodes(2) as (x, stranger):
            x.prober.reachability = Reachability(reach=reach)
            arrived = trio.Event()

            def on_connection(connection: Connection) -> None:
                x.prober.on_connection(connection)
                arrived.set()

            x.endpoint.on_connection = on_connection
            await stranger.connect(x)
            await arrived.wait()
            assert x.prober._wake.is_set() is woken

    run(test)


def test_peers_that_do_not_know_the_protocol_or_go_away_are_passed_over() -> None:
    async def test() -> None:
        async with nodes(2) as (x, gone), AsyncExitStack() as ends:
            nursery = await ends.enter_async_context(trio.open_nursery())
            plain = Endpoint(Identity.generate(), listen=("127.0.0.7", 0))
            await nursery.start(plain.run)
            await x.endpoint.connect(PeerAddress(*plain.local_address, plain.peer_id))
            connection = await gone.connect(x)
            await connection.aclose()
            verdict = await x.prober.round()
            assert verdict.reach is Reach.UNKNOWN and not verdict.addresses
            nursery.cancel_scope.cancel()

    run(test)


# --- what a peer could do with it ---


def test_a_helper_sends_a_few_small_datagrams_and_then_no_more() -> None:
    async def test() -> None:
        async with nodes(3) as (helper, p1, p2), victim(9) as bystander:
            host, port = bystander.getsockname()
            request = ProbeFor(NONCE, pack_host(host), [port])
            first, second = await p1.connect(helper), await p2.connect(helper)
            for _ in range(PROBES_PER_TARGET):
                await ask(first, request, Probed)
            for asker in (first, second):  # another one does not get more sent to the same address
                with pytest.raises(ReachError, match="probed too often"):
                    await ask(asker, request, Probed)
            await trio.sleep(0.05)
            got = received(bystander)
            assert got == [encode_probe(NONCE, ProbeKind.STRANGER)] * (PROBES_PER_TARGET * COPIES)

    run(test)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("192.168.1.1", 4190, "the asker is not there"),
        ("224.0.0.1", 4190, "no address of a single machine"),
        ("127.0.0.9", 53, "not one that nodes listen on"),
        ("127.0.0.2", 4190, "would prove nothing"),
        ("::1", 4190, "no way to"),
    ],
)
def test_what_a_helper_refuses(host: str, port: int, reason: str) -> None:
    async def test() -> None:
        async with nodes(2) as (helper, peer):
            connection = await peer.connect(helper)
            with pytest.raises(ReachError, match=reason):
                await ask(connection, ProbeFor(NONCE, pack_host(host), [port]), Probed)

    run(test)


def test_a_dial_back_goes_to_the_asker_only_and_is_counted() -> None:
    async def test() -> None:
        async with nodes(2) as (p, x):
            connection = await x.connect(p)
            arrived: list[tuple[str, int]] = []
            with x.probes.expecting(
                NONCE, ProbeKind.OTHER_PORT, then=lambda _, sender: arrived.append(sender)
            ):
                for _ in range(DIAL_BACKS_PER_PEER):
                    answer = await ask(connection, DialBack(NONCE), DialedBack)
                    assert answer.other_port and not answer.helper
                with pytest.raises(ReachError, match="asked too often"):
                    await ask(connection, DialBack(NONCE), DialedBack)
                await trio.sleep(0.05)
            assert len(arrived) == DIAL_BACKS_PER_PEER * COPIES
            assert {host for host, _ in arrived} == {p.address.host}
            assert p.address.port not in {port for _, port in arrived}

    run(test)


def test_bytes_that_are_no_request_end_one_stream_only() -> None:
    async def test() -> None:
        async with nodes(2) as (p, x):
            connection = await x.connect(p)
            for junk in (b"", b"\x00" * 50, encode_reach(Probed())):
                with pytest.raises(StreamClosed):
                    await ask(connection, junk, Observed)
            assert (await ask(connection, Observe(), Observed)).address() == x.endpoint.local_address

    run(test)


def test_unknown_probes_are_dropped_without_an_answer() -> None:
    async def test() -> None:
        async with nodes(1) as (node,), victim(9) as stranger:
            for kind in ProbeKind:
                stranger.sendto(encode_probe(NONCE, kind), node.endpoint.local_address)
            stranger.sendto(b"\x01" + bytes(1400), node.endpoint.local_address)
            await trio.sleep(0.05)
            assert received(stranger) == []

    run(test)


# --- over a carried connection ---


@asynccontextmanager
async def carried(a: Node, b: Node) -> AsyncIterator[Connection]:
    """A connection of a's to b that runs beside the socket, as through a relay."""

    def outbox(other: Endpoint, paths: list[CarriedPath], into: int) -> Callable[[Any], None]:
        send, receive = trio.open_memory_channel[Any](1000)

        async def pump() -> None:
            async for datagrams in receive:
                other.take_carried(paths[into], datagrams)

        nursery.start_soon(pump)
        return lambda datagrams: send.send_nowait(list(datagrams))

    async with trio.open_nursery() as nursery:
        paths: list[CarriedPath] = []
        paths.append(a.endpoint.open_path(outbox(b.endpoint, paths, 1), "relay"))
        paths.append(b.endpoint.open_path(outbox(a.endpoint, paths, 0), "relay"))
        address = PeerAddress(*paths[0].address, b.endpoint.peer_id)
        yield await a.endpoint.connect(address)
        nursery.cancel_scope.cancel()


def test_a_carried_connection_shows_no_address() -> None:
    async def test() -> None:
        async with nodes(2) as (a, b), carried(a, b) as connection:
            assert connection.is_carried
            for request, kind in ((Observe(), Observed), (DialBack(NONCE), DialedBack)):
                with pytest.raises(ReachError, match="carried by a stream"):
                    await ask(connection, request, kind)
            verdict = await a.prober.round()
            assert not verdict.addresses and verdict.udp is None

    run(test)


@pytest.mark.parametrize("lower_begins", [True, False])
@pytest.mark.parametrize("call_back", [True, False])
def test_a_punch_leads_from_a_relayed_connection_to_a_direct_one(lower_begins: bool, call_back: bool) -> None:
    async def test() -> None:
        async with nodes(3) as (p, *two):
            a, b = sorted(two, key=lambda node: node.endpoint.peer_id, reverse=not lower_begins)
            for node in (a, b):
                await node.connect(p)
                await node.prober.round()
            async with carried(a, b) as relayed:
                begin = a.puncher.ask_to_call_back if call_back else a.puncher.punch
                direct = await begin(relayed.open_stream(PUNCH), b.endpoint.peer_id)
                assert not direct.is_carried and direct.remote_address == b.endpoint.local_address
                assert direct.dialed is (lower_begins and not call_back)
                assert a.endpoint.connection_to(b.endpoint.peer_id) is direct
                assert relayed.is_open

    run(test)


def test_both_sides_begin_at_once_and_meet_once() -> None:
    async def test() -> None:
        async with nodes(3) as (p, a, b):
            for node in (a, b):
                await node.connect(p)
                await node.prober.round()
            async with carried(a, b), trio.open_nursery() as nursery:
                for one, other in ((a, b), (b, a)):
                    relayed = one.endpoint.connection_to(other.endpoint.peer_id)
                    assert relayed is not None
                    nursery.start_soon(one.puncher.punch, relayed.open_stream(PUNCH), other.endpoint.peer_id)
            assert len([each for each in a.endpoint.connections if each.peer_id == b.endpoint.peer_id]) == 2

    run(test)


@pytest.mark.slow
def test_a_punch_sends_no_quic_to_an_address_that_has_not_answered() -> None:
    async def test() -> None:
        async with nodes(3) as (p, liar, node), victim(9) as bystander:
            await node.connect(p)
            await node.prober.round()
            stream = (await liar.connect(node)).open_stream(PUNCH)
            await stream.send_message(encode(CallBack(NONCE, pack_addresses([bystander.getsockname()] * 4))))
            outcome = decode(await stream.receive_message(MAX_MESSAGE_BYTES))
            assert isinstance(outcome, Outcome) and not outcome.connected
            assert "no probe came through" in outcome.text
            got = received(bystander)
            assert got == [encode_probe(NONCE, ProbeKind.PUNCH)] * len(got)
            assert 0 < len(got) <= 20

    run(test)


def test_punches_are_counted_and_forbidden_addresses_left_alone() -> None:
    async def test() -> None:
        async with nodes(2) as (liar, node):
            connection = await liar.connect(node)

            async def call_back() -> str:
                stream = connection.open_stream(PUNCH)
                await stream.send_message(encode(CallBack(NONCE, pack_addresses([("127.0.0.9", 53)]))))
                outcome = decode(await stream.receive_message(MAX_MESSAGE_BYTES))
                assert isinstance(outcome, Outcome) and not outcome.connected
                return outcome.text

            for _ in range(PUNCHES_PER_PEER):
                assert "none of the 1 addresses" in await call_back()
            assert "too many punches" in await call_back()

    run(test)


def test_a_peer_that_knows_no_punching_is_one_error() -> None:
    async def test() -> None:
        async with nodes(2) as (a, b):
            connection = await a.connect(b)
            for _ in range(2):  # nothing of the first is left behind
                with pytest.raises(StreamClosed):
                    await a.puncher.punch(connection.open_stream("/test/unknown/1"), b.endpoint.peer_id)

    run(test)


# --- netcheck ---


def test_netcheck_names_each_check() -> None:
    async def test() -> None:
        async with nodes(4, wall_clock=lambda: 1000.0 - HOUR) as (p1, p2, h, x):
            await h.connect(p1)
            await h.connect(p2)

            async def relays() -> list[Check]:
                return [Check("relay R", Status.PASS, "round trip 3 ms")]

            report = await netcheck(
                x.endpoint, [p1.address, p2.address], relay_checks=relays, wall_clock=lambda: 1000.0
            )
            assert report.can_take_part
            status = {check.name: check.status for check in report.checks}
            assert status == {
                "UDP out": Status.PASS,
                "public address": Status.PASS,
                "mapping": Status.PASS,
                "filtering": Status.PASS,
                "port kept": Status.PASS,
                "clock": Status.FAIL,
                f"peer {p1.address}": Status.PASS,
                f"peer {p2.address}": Status.PASS,
                "relay R": Status.PASS,
            }
            clock = next(check for check in report.checks if check.name == "clock")
            assert "3600 s ahead of the clocks of 2 peers" in clock.detail and "NTP" in clock.advice
            assert all("\n" not in str(check) for check in report.checks)

    run(test)


def panal(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_panal(*arguments)


@pytest.mark.slow
def test_in_a_private_swarm_the_command_asks_as_the_member_it_is(tmp_path: Path) -> None:
    key = tmp_path / "swarm.key"
    assert panal("swarm", "create", "casa", "--dir", tmp_path).returncode == 0
    configs = []
    for name in ("asker", "peer", "stranger"):
        listen = "/ip4/127.0.0.1/udp/0/quic-v1"
        made = panal("init", "--dir", tmp_path / name, "--listen", listen, "--json")
        configs.append(tmp_path / name / "node.toml")
        if name != "stranger":
            peer_id = json.loads(made.stdout)["peer_id"]
            invited = panal("swarm", "invite", peer_id, "--key", key, "--json")
            invitation = json.loads(invited.stdout)["invite"]
            assert panal("swarm", "join", invitation, "-c", configs[-1]).returncode == 0
    asker, peer, stranger = configs
    place = Place.of(load_config(peer))

    async def test() -> None:
        service: list[DialBackService] = []
        handlers = {PROTOCOL_ID: lambda stream: service[0].serve(stream)}
        endpoint = Endpoint(
            place.identity, listen=("127.0.0.2", 0), handlers=handlers, membership=load_membership(place)
        )
        service.append(DialBackService(Probes(endpoint, Contacts())))
        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.run)
            address = PeerAddress(*endpoint.local_address, endpoint.peer_id)
            for config, code, status in ((asker, 0, "pass"), (stranger, 1, "fail")):
                done = await trio.to_thread.run_sync(
                    panal, "netcheck", "-c", config, f"--peer={address}", "--json"
                )
                assert done.returncode == code, done
                checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
                assert checks[f"peer {address}"]["status"] == status
            nursery.cancel_scope.cancel()

    run(test)
