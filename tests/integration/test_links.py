"""Links to wanted peers over real sockets: they come, go, come back, move to better ways, talk nonsense."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from routing import links as links_module
from routing.errors import PeerError
from routing.identity import Identity
from routing.links import PeerLinks, ask_holdings
from routing.multiaddr import PeerAddress
from routing.quic import endpoint as endpoint_module
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.routes import OPENED_BY_PEER, Attempt, Kind, Route, Way
from routing.wire import holdings
from routing.wire.holdings import Holdings, Slice, encode_holdings
from tests.served import address_of, connected, listening, run

MODEL = "ab" * 32


def told(name: str) -> Holdings:
    held = [Slice(kind="experts", model_id=MODEL, architecture="test", experts=[(0, 0, [(0, 3)])])]
    return Holdings([1], name, held, ["f32"], ["rows"], 16)


class Speaker:
    """Answers `/panal/slices/1` with whatever `says` is; None: never."""

    def __init__(self, says: bytes | None) -> None:
        self.says = says
        self.asked = 0

    async def answer(self, stream: Stream) -> None:
        while True:
            await stream.receive_message(holdings.MAX_REQUEST_BYTES)
            self.asked += 1
            if self.says is None:
                await trio.sleep_forever()
            else:
                await stream.send_message(self.says)


class Events:
    """What the links reported."""

    def __init__(self) -> None:
        self.connected: list[tuple[str, str]] = []
        self.lost: list[tuple[str, str]] = []

    def on_connected(self, peer_id: str, said: Holdings) -> None:
        self.connected.append((peer_id, said.name))

    def on_lost(self, peer_id: str, reason: str) -> None:
        self.lost.append((peer_id, reason))


class Addresses:
    """A wayfinder that knows addresses, and pretends that some ways are something else than dials."""

    def __init__(self, endpoint: Endpoint, addresses: tuple[PeerAddress, ...]) -> None:
        self.endpoint = endpoint
        self.addresses = {str(address.peer_id): address for address in addresses}
        self.ways = [Attempt(Way.DIAL, "known from a list")]
        self.broken: set[Way] = set()
        self.tried: list[Way] = []
        self.made: dict[Connection, Route] = {}

    def attempts(self, peer_id: str) -> list[Attempt]:
        return self.ways

    async def carry_out(
        self, peer_id: str, attempt: Attempt, over: Connection | None
    ) -> tuple[Connection, Route]:
        self.tried.append(attempt.way)
        if attempt.way in self.broken:
            raise PeerError(f"no way by {attempt.way.name}", peer=peer_id)
        connection = await self.endpoint.connect(
            self.addresses[peer_id], timeout=links_module.DIAL_TIMEOUT, fresh=True
        )
        route = Route(attempt.way.kind, attempt.reason, rank=attempt.way.value)
        self.made[connection] = route
        return connection, route

    def route_of(self, connection: Connection) -> Route:
        return self.made.get(connection) or Route(Kind.DIRECT, OPENED_BY_PEER)

    def label(self, peer_id: str) -> str:
        return str(self.addresses[peer_id])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(links_module, "LAST_RETRY", 0.08)


@asynccontextmanager
async def linked(*addresses: PeerAddress) -> AsyncIterator[tuple[PeerLinks, Events]]:
    events = Events()
    async with listening({}) as client, trio.open_nursery() as nursery:
        links = PeerLinks(
            client,
            Addresses(client, addresses),
            on_connected=events.on_connected,
            on_lost=events.on_lost,
        )
        for address in addresses:
            links.want(str(address.peer_id))
        nursery.start_soon(links.run)
        yield links, events
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.002)


def speaking(says: bytes | None = None, name: str = "kitchen") -> Speaker:
    return Speaker(says if says is not None else encode_holdings(told(name)))


def handlers(speaker: Speaker) -> dict[str, endpoint_module.Handler]:
    return {holdings.PROTOCOL_ID: speaker.answer}


def nobody(port: int = 1) -> PeerAddress:
    return PeerAddress("127.0.0.1", port, Identity.generate().peer_id)


def test_a_peer_is_connected_and_found() -> None:
    async def test() -> None:
        async with listening(handlers(speaking())) as server, linked(address_of(server)) as (links, events):
            await links.first_round()
            peer_id = str(server.identity.peer_id)
            assert events.connected == [(peer_id, "kitchen")] and events.lost == []
            peer = links.find(peer_id)
            assert peer is not None and peer.peer_id == peer_id
            assert links.find("12D3KooWnobody") is None
            assert links.failures() == {}

    run(test)


def test_no_peers_at_all() -> None:
    async def test() -> None:
        async with linked() as (links, _):
            await links.first_round()
            assert links.failures() == {}

    run(test)


def test_the_first_round_waits_for_all_also_for_those_who_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "DIAL_TIMEOUT", 0.15)

    async def test() -> None:
        missing = nobody()
        async with (
            listening(handlers(speaking())) as server,
            linked(address_of(server), missing, address_of(server)) as (links, events),
        ):
            await links.first_round()
            assert {name for _, name in events.connected} == {"kitchen"}
            assert list(links.failures()) == [str(missing)]
            assert "\n" not in links.failures()[str(missing)]
            # nothing is left to hope for: one is there, and every way to the other has failed
            assert not any(map(links.is_under_way, links.wanted))
            assert links.reason(str(missing.peer_id)) and not links.reason(server.peer_id)
            later = nobody()
            assert not links.is_under_way(str(later.peer_id))

    run(test)


def test_a_server_that_comes_back_on_its_port_is_linked_again() -> None:
    async def test() -> None:
        identity = Identity.generate()
        first = speaking(name="before")
        async with trio.open_nursery() as nursery:
            server = Endpoint(identity, listen=("127.0.0.1", 0), handlers=handlers(first))
            scope = trio.CancelScope()

            async def serve(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                with scope:
                    await server.run(task_status=task_status)

            await nursery.start(serve)
            address = address_of(server)
            peer_id = str(identity.peer_id)
            async with linked(address) as (links, events):
                await links.first_round()
                scope.cancel()
                await until(lambda: events.lost)
                assert events.lost[0][0] == peer_id and events.lost[0][1]
                assert links.find(peer_id) is None
                assert str(address) in links.failures()
                async with listening(handlers(speaking(name="after")), identity, address.port):
                    await until(lambda: len(events.connected) == 2)
                    assert events.connected == [(peer_id, "before"), (peer_id, "after")]
                    assert links.find(peer_id) is not None and links.failures() == {}
                await until(lambda: len(events.lost) == 2)

    run(test)


def test_another_identity_on_the_port_is_not_the_peer() -> None:
    async def test() -> None:
        async with listening(handlers(speaking())) as server:
            wrong = PeerAddress(*server.local_address, Identity.generate().peer_id)
            async with linked(wrong) as (links, events):
                await links.first_round()
                await trio.sleep(0.1)
                assert events.connected == [] and str(wrong) in links.failures()

    run(test)


NONSENSE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[" * 10_000,
    b'{"versions":[1]}',
    encode_holdings(told("x")).replace(b"[0,3]", b"[3,0]"),
    encode_holdings(told("x")).replace(b'"ab', b'"\\n'),
    bytes(holdings.MAX_ANSWER_BYTES + 1),
]


@pytest.mark.parametrize("says", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_never_ends_a_link(says: bytes) -> None:
    async def test() -> None:
        speaker = speaking(says)
        good = speaking(name="good")
        async with (
            listening(handlers(speaker)) as server,
            listening(handlers(good)) as other,
            linked(address_of(server), address_of(other)) as (links, events),
        ):
            await links.first_round()
            await until(lambda: speaker.asked >= 3)
            assert [name for _, name in events.connected] == ["good"]
            (reason,) = links.failures().values()
            assert reason and "\n" not in reason and len(reason) < 500
            # It comes to its senses.
            speaker.says = encode_holdings(told("better"))
            await until(lambda: len(events.connected) == 2)
            assert events.connected[1][1] == "better" and links.failures() == {}

    run(test)


def test_a_peer_without_the_protocol() -> None:
    async def test() -> None:
        async with listening({}) as server, linked(address_of(server)) as (links, events):
            await links.first_round()
            await trio.sleep(0.1)
            assert events.connected == [] and len(links.failures()) == 1

    run(test)


def test_a_peer_that_says_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "DIAL_TIMEOUT", 0.1)

    async def test() -> None:
        speaker = Speaker(None)
        async with listening(handlers(speaker)) as server:
            async with connected(server) as connection:
                with pytest.raises(PeerError) as caught:
                    await ask_holdings(connection)
                assert "did not say what it serves in 0.1 s" in str(caught.value)
                assert caught.value.peer == connection.peer_id and connection.is_open
            async with linked(address_of(server)) as (links, events):
                await links.first_round()
                await until(lambda: speaker.asked >= 3)
                assert "did not say" in next(iter(links.failures().values()))
                speaker.says = encode_holdings(told("awake"))
                await until(lambda: events.connected)

    run(test)


def test_names_of_peers_are_made_printable() -> None:
    async def test() -> None:
        rude = encode_holdings(told("xyz")).replace(b"xyz", b"a\\u001b[31m\\nb")
        async with (
            listening(handlers(speaking(rude))) as server,
            linked(address_of(server)) as (links, events),
        ):
            await links.first_round()
            assert events.connected and events.connected[0][1].isprintable()

    run(test)


@asynccontextmanager
async def routed(*ways: Way) -> AsyncIterator[tuple[PeerLinks, Addresses, list[Route], str]]:
    """Links to one server by these ways, best first, none of which is tried until told."""
    routes: list[Route] = []
    async with (
        listening(handlers(speaking())) as server,
        listening({}) as client,
        trio.open_nursery() as nursery,
    ):
        wayfinder = Addresses(client, (address_of(server),))
        wayfinder.ways = [Attempt(way, f"by {way.name}") for way in ways]
        links = PeerLinks(
            client,
            wayfinder,
            on_connected=lambda peer_id, said: None,
            on_lost=lambda peer_id, reason: None,
            on_route=lambda peer_id, route: routes.append(route),
        )
        nursery.start_soon(links.run)
        yield links, wayfinder, routes, str(server.identity.peer_id)
        nursery.cancel_scope.cancel()


def test_a_relayed_peer_is_used_at_once_and_moves_to_the_punched_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "DRAIN", 0.05)

    async def test() -> None:
        async with routed(Way.PUNCH, Way.RELAY) as (links, wayfinder, routes, peer_id):
            links.want(peer_id)
            await until(lambda: len(routes) == 2)
            assert [route.kind for route in routes] == [Kind.RELAYED, Kind.PUNCHED]
            assert [route.reason for route in routes] == ["by RELAY", "by PUNCH"]
            assert wayfinder.tried == [Way.RELAY, Way.PUNCH]
            link = links.link(peer_id)
            assert link is not None and link.route.kind is Kind.PUNCHED
            # the relayed connection is let go once calls on it have had their time
            await until(lambda: len([each for each in wayfinder.made if each.is_open]) == 1)
            assert links.find(peer_id) is not None
            await trio.sleep(0.2)
            assert wayfinder.tried == [Way.RELAY, Way.PUNCH]  # nothing better: nothing is tried

    run(test)


def test_a_way_that_fails_waits_before_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "FIRST_UPGRADE", 0.01)
    monkeypatch.setattr(links_module, "UPGRADE_RETRY", 0.05)

    async def test() -> None:
        async with routed(Way.DIAL_TCP, Way.PUNCH, Way.RELAY) as (links, wayfinder, routes, peer_id):
            wayfinder.broken = {Way.DIAL_TCP, Way.PUNCH}
            links.want(peer_id)
            await trio.sleep(0.4)
            assert [route.kind for route in routes] == [Kind.RELAYED]
            punches = wayfinder.tried.count(Way.PUNCH)
            assert 1 <= punches <= 4  # after 0, 50, 150, 350 ms; eight without pauses that grow
            wayfinder.broken = {Way.DIAL_TCP}
            await until(lambda: len(routes) == 2)
            assert routes[1].kind is Kind.PUNCHED

    run(test)


def test_a_peer_that_dials_us_is_used_without_a_dial() -> None:
    async def test() -> None:
        async with routed() as (links, wayfinder, routes, _), listening(handlers(speaking())) as other:
            peer_id = str(other.identity.peer_id)
            wayfinder.addresses[peer_id] = PeerAddress("127.0.0.1", 9, other.identity.peer_id)
            wayfinder.endpoint.on_connection = lambda connection: links.news(connection.peer_id)
            links.want(peer_id)
            await until(lambda: links.failures())
            assert "no way to it is known" in links.failures()[wayfinder.label(peer_id)]
            await other.connect(address_of(wayfinder.endpoint))
            await until(lambda: links.find(peer_id))
            assert routes[-1] == Route(Kind.DIRECT, OPENED_BY_PEER)
            assert wayfinder.tried == []

    run(test)


def test_an_unwanted_peer_is_let_go() -> None:
    async def test() -> None:
        async with routed(Way.DIAL) as (links, _, routes, peer_id):
            links.want(peer_id)
            await until(lambda: routes)
            links.unwant(peer_id)
            await until(lambda: links.link(peer_id) is None)
            assert links.find(peer_id) is None and links.wanted == set()

    run(test)
