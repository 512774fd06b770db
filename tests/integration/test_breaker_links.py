"""Links and dials at their seams: two dials that win at once, peers let go, restarts, long calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from routing import links as links_module
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.identity import Identity
from routing.links import PeerLinks
from routing.quic.connection import Connection
from routing.quic.stream import Stream
from routing.race import first
from routing.routes import Attempt, Route, Way
from routing.wire import holdings, messages
from tests.integration.test_links import (
    Addresses,
    Events,
    handlers,
    impatient,  # noqa: F401  (a fixture for all of this file)
    linked,
    speaking,
    until,
)
from tests.served import address_of, listening, run


async def set_when(event: trio.Event, condition: Callable[[], bool]) -> None:
    await until(condition)
    event.set()


def test_of_two_dials_that_succeed_at_once_one_is_closed() -> None:
    async def test() -> None:
        async with listening({}) as server, listening({}) as client:
            both = trio.Event()
            made: list[Connection] = []

            async def dial() -> Connection:
                connection = await client.connect(address_of(server), fresh=True)
                made.append(connection)
                await both.wait()  # both tasks go on in the same turn of the loop
                return connection

            async with trio.open_nursery() as nursery:
                nursery.start_soon(set_when, both, lambda: len(made) == 2)
                won = await first(
                    str(server.identity.peer_id), [dial, dial], lambda loser: loser.shut(0, "not needed")
                )
            assert won.is_open
            await until(lambda: [each.is_open for each in made].count(True) == 1)
            assert client.connections_to(server.identity.peer_id) == [won]

    run(test)


def test_of_two_ways_that_succeed_at_once_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "STAGGER", 0.01)

    class Together(Addresses):
        async def carry_out(
            self, peer_id: str, attempt: Attempt, over: Connection | None
        ) -> tuple[Connection, Route]:
            found = await super().carry_out(peer_id, attempt, over)
            await both.wait()
            return found

    both = trio.Event()

    async def test() -> None:
        events = Events()
        async with (
            listening(handlers(speaking())) as server,
            listening({}) as client,
            trio.open_nursery() as nursery,
        ):
            wayfinder = Together(client, (address_of(server),))
            wayfinder.ways = [Attempt(Way.DIAL, "one"), Attempt(Way.DIAL_TCP, "other")]
            links = PeerLinks(client, wayfinder, on_connected=events.on_connected, on_lost=events.on_lost)
            links.want(str(server.identity.peer_id))
            nursery.start_soon(links.run)
            nursery.start_soon(set_when, both, lambda: len(wayfinder.made) == 2)
            await until(lambda: events.connected)
            assert len(wayfinder.made) == 2
            await until(lambda: len(client.connections_to(server.identity.peer_id)) == 1)
            assert links.find(str(server.identity.peer_id)) is not None
            nursery.cancel_scope.cancel()

    run(test)


def test_who_is_let_go_as_it_goes_is_told_as_lost() -> None:
    """Its farewell and the end of its connection come in one packet."""

    async def test() -> None:
        async with (
            listening(handlers(speaking())) as server,
            linked(address_of(server)) as (links, events),
        ):
            peer_id = str(server.identity.peer_id)
            await until(lambda: events.connected)
            link = links.link(peer_id)
            assert link is not None
            link.connection.shut(0, "it has left")
            links.unwant(peer_id)
            await until(lambda: events.lost)
            assert [each[0] for each in events.lost] == [peer_id]
            assert links.failures() == {}

    run(test)


def test_a_restarted_peer_that_has_dialed_us_already_is_asked_anew_what_it_serves() -> None:
    async def test() -> None:
        identity = Identity.generate()
        events = Events()
        async with listening({}) as client, trio.open_nursery() as nursery:
            async with (
                listening(handlers(speaking(name="before")), identity) as server,
                listening(handlers(speaking(name="after")), identity) as restarted,
            ):
                wayfinder = Addresses(client, (address_of(server),))
                links = PeerLinks(client, wayfinder, on_connected=events.on_connected, on_lost=events.on_lost)
                links.want(str(identity.peer_id))
                nursery.start_soon(links.run)
                await until(lambda: [each[1] for each in events.connected] == ["before"])
                (first_one,) = client.connections
                await restarted.connect(address_of(client))
                await until(lambda: len(client.connections) == 2)
                first_one.shut(0, "it was killed")
                await until(lambda: [each[1] for each in events.connected] == ["before", "after"])
                link = links.link(str(identity.peer_id))
                assert link is not None and link.name == "after"
            nursery.cancel_scope.cancel()

    run(test)


def test_an_open_connection_that_takes_over_and_serves_the_same_is_no_news() -> None:
    async def test() -> None:
        speaker = speaking()
        async with (
            listening(handlers(speaker)) as server,
            linked(address_of(server)) as (links, events),
        ):
            await until(lambda: events.connected)
            link = links.link(str(server.identity.peer_id))
            assert link is not None
            await links._endpoint.connect(address_of(server), fresh=True)
            link.connection.shut(0, "gone")
            await until(lambda: speaker.asked == 2)
            await trio.sleep(0.05)
            assert len(events.connected) == 1 and events.lost == []

    run(test)


def test_a_long_call_is_not_cut_off_by_a_better_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "DRAIN", 0.05)
    monkeypatch.setattr(links_module, "FIRST_UPGRADE", 0.1)
    go_on = trio.Event()

    async def slow(stream: Stream) -> None:
        await stream.receive_message(1 << 20)
        await go_on.wait()
        await stream.send_message(b"an answer")

    async def test() -> None:
        speaker = speaking()
        async with (
            listening({holdings.PROTOCOL_ID: speaker.answer, messages.PROTOCOL_ID: slow}) as server,
            listening({}) as client,
            trio.open_nursery() as nursery,
        ):
            events = Events()
            wayfinder = Addresses(client, (address_of(server),))
            wayfinder.ways = [Attempt(Way.PUNCH, "better"), Attempt(Way.RELAY, "worse")]
            links = PeerLinks(client, wayfinder, on_connected=events.on_connected, on_lost=events.on_lost)
            peer_id = str(server.identity.peer_id)
            links.want(peer_id)
            nursery.start_soon(links.run)
            await until(lambda: links.find(peer_id))
            peer = links.find(peer_id)
            assert isinstance(peer, QuicExpertPeer)
            answers: list[bytes] = []

            async def call() -> None:
                with peer.calling():
                    stream = peer.connection.open_stream(messages.PROTOCOL_ID)
                    await stream.send_message(b"a question")
                    answers.append(await stream.receive_message(1 << 20))

            nursery.start_soon(call)
            await until(lambda: links.find(peer_id) is not peer)
            await trio.sleep(0.3)  # several times DRAIN
            assert peer.connection.is_open
            go_on.set()
            await until(lambda: answers == [b"an answer"])
            await until(lambda: not peer.connection.is_open)
            nursery.cancel_scope.cancel()

    run(test)


def test_wanted_and_unwanted_in_any_order_nothing_breaks() -> None:
    async def test() -> None:
        async with (
            listening(handlers(speaking())) as server,
            linked(address_of(server)) as (links, _),
        ):
            peer_id = str(server.identity.peer_id)
            for turn in range(60):
                links.unwant(peer_id)
                if turn % 3:
                    await trio.sleep(0.001 * (turn % 7))
                links.want(peer_id)
                if turn % 4 == 0:
                    links.unwant(peer_id)
                    links.want(peer_id)
                await trio.sleep(0.0015 * (turn % 5))
            await until(lambda: links.find(peer_id))
            links.unwant(peer_id)
            await until(lambda: not links._links and not links._missing and not links._news)

    run(test)
