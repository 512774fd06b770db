"""`/panal/adverts/1` over real sockets: news spreads, copies don't, and liars are left alone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from routing import exchange as exchange_module
from routing.advert_rows import Offer, Outcome
from routing.adverts import AdvertTable
from routing.errors import PeerError
from routing.exchange import AdvertExchange
from routing.identity import Identity
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import exchange as wire
from routing.wire.advert import farewell, sign_advert
from tests.adverts import NOW, SWARM, advert, identity, signed
from tests.served import address_of, listening, run


class Clock:
    """Unix time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Node:
    """A table, its exchange, and an endpoint that serves it."""

    def __init__(self, name: str, clock: Clock, swarm_id: bytes = SWARM) -> None:
        self.name = name
        self.clock = clock
        self.identity = identity(name)
        self.peer_id = str(self.identity.peer_id)
        self.instance = sum(name.encode())
        self.table = AdvertTable(swarm_id, self.peer_id, self.instance, lambda advert, now: "")
        self.heard: list[Offer] = []
        self.exchange = AdvertExchange(self.table, clock, self.heard.append)
        self.endpoint: Endpoint
        self.nursery: trio.Nursery
        self.seq = 0

    @property
    def known(self) -> set[str]:
        return {row.advert.name for row in self.table.rows()}

    def say(self, **fields: object) -> bytes:
        """Put a new own advert in."""
        self.seq += 1
        data = signed(
            self.name,
            **{
                "name": self.name,
                "instance": self.instance,
                "seq": self.seq,
                "issued_at": int(self.clock.now),
            }
            | fields,
        )
        self.exchange.put_own(data)
        return data

    async def link(self, other: Node) -> Connection:
        """Connect, and let both follow each other."""
        connection = await self.endpoint.connect(address_of(other.endpoint))
        self.nursery.start_soon(self.exchange.follow, connection)
        (there,) = [each for each in other.endpoint.connections if each.peer_id == self.peer_id]
        other.nursery.start_soon(other.exchange.follow, there)
        return connection


@asynccontextmanager
async def nodes(*names: str) -> AsyncIterator[list[Node]]:
    clock = Clock()
    made = [Node(name, clock) for name in names]
    async with trio.open_nursery() as nursery:
        for node in made:
            node.nursery = nursery
            node.endpoint = Endpoint(
                node.identity,
                listen=("127.0.0.1", 0),
                handlers={wire.PROTOCOL_ID: node.exchange.serve},
            )
            await nursery.start(node.endpoint.run)
        yield made
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.005)


def heard_of(node: Node) -> list[tuple[Outcome, str]]:
    return [(offer.outcome, offer.advert.name) for offer in node.heard if offer.advert is not None]


def test_news_crosses_a_line_of_nodes_and_each_hears_it_once() -> None:
    async def test() -> None:
        async with nodes("a", "b", "c") as (a, b, c):
            a.say()
            b.say()
            await a.link(b)
            await b.link(c)
            c.say()
            await until(lambda: a.known == b.known == c.known == {"a", "b", "c"})
            a.say(load=9)
            await until(lambda: any(row.advert.load == 9 for row in c.table.rows()))
            assert (Outcome.REFRESHED, "a") in heard_of(c)
            for node in (a, b, c):
                assert sorted(heard_of(node), key=str) == sorted(set(heard_of(node)), key=str)
            await trio.sleep(0.3)  # no echo of it comes back around
            assert [len(node.heard) for node in (a, b, c)] == [4, 4, 4]

    run(test)


def test_a_held_request_is_answered_by_news_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "LOOK_AGAIN", 100.0)  # news alone wakes it

    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            a.say()
            connection = await b.endpoint.connect(address_of(a.endpoint))
            stream = connection.open_stream(wire.PROTOCOL_ID)

            async def ask(epoch: int, counter: int, wait_ms: int) -> wire.ChangesAnswer:
                request = wire.ChangesRequest(epoch, counter, wait_ms)
                await stream.send_message(wire.encode_request(request))
                return wire.decode_answer(await stream.receive_message(wire.MAX_ANSWER_BYTES))

            first = await ask(0, 0, 20_000)
            assert len(first.adverts) == 1 and not first.more
            empty = await ask(first.epoch, first.counter, 10)
            assert empty.adverts == [] and (empty.epoch, empty.counter) == (first.epoch, first.counter)
            got: list[wire.ChangesAnswer] = []

            async def wait() -> None:
                got.append(await ask(first.epoch, first.counter, 20_000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(0.2)
                assert got == []
                news = a.say(load=3)
            assert [data for _, data in got[0].adverts] == [news]

    run(test)


def test_ages_are_told_and_rows_end_everywhere_together() -> None:
    async def test() -> None:
        async with nodes("a", "b", "c") as (a, b, c):
            a.say(lifetime=20)
            await a.link(b)
            await until(lambda: b.known == {"a"})
            a.clock.now += 15
            await b.link(c)
            await until(lambda: c.known == {"a"})
            a.clock.now += 4.9
            assert b.table.expire(a.clock()) == c.table.expire(a.clock()) == []
            a.clock.now += 0.2
            assert b.table.expire(a.clock()) == c.table.expire(a.clock()) == [a.peer_id]

    run(test)


def test_a_farewell_is_everywhere_before_the_node_has_gone() -> None:
    async def test() -> None:
        async with nodes("a", "b", "c") as (a, b, c):
            for node in (a, b, c):
                node.say()
            await a.link(b)
            await b.link(c)
            await until(lambda: c.known == {"a", "b", "c"})
            last = farewell(advert("a", name="a", instance=a.instance), seq=99, issued_at=int(NOW))
            await a.exchange.say_farewell(sign_advert(last, a.identity))
            await until(lambda: c.known == b.known == {"b", "c"})
            assert (Outcome.LEFT, "a") in heard_of(c)

    run(test)


def test_after_a_reconnect_only_the_news_travels_and_a_restarted_peer_gets_all() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            for number in range(100):
                a.exchange.offer(signed(number, name=f"n{number}"), from_peer="x", age=0)
            connection = await b.link(a)
            await until(lambda: len(b.table) == 100)
            await connection.aclose()
            await until(lambda: not a.endpoint.connections)
            a.say()
            before = connection.bytes_received
            again = await b.link(a)
            await until(lambda: len(b.table) == 101)
            assert before > 50_000
            assert len(b.heard) == 101
            await again.aclose()
            await until(lambda: not a.endpoint.connections)
            # b starts anew, with nothing remembered: it hears all, also what a has from its former run
            reborn = Node("b", a.clock)
            reborn.nursery, reborn.endpoint = b.nursery, b.endpoint
            await reborn.link(a)
            await until(lambda: len(reborn.table) == 101)

    run(test)


def test_a_clone_is_reported_over_the_exchange() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            await a.link(b)
            for seq, instance in [(1, 1), (2, 2), (3, 1)]:
                a.exchange.offer(signed("twin", seq=seq, instance=instance), from_peer="")
                await until(lambda seq=seq: any(row.advert.seq == seq for row in b.table.rows()))  # type: ignore[misc]
            (clone,) = [offer.clone for offer in b.heard if offer.clone is not None]
            assert clone.peer_id == identity("twin").peer_id

    run(test)


# ---- others -------------------------------------------------------------------------------------


def saying(*adverts: bytes) -> Callable[[Stream], Awaitable[None]]:
    """A peer that answers every request at once with these."""

    async def serve(stream: Stream) -> None:
        counter = 0
        while True:
            await stream.receive_message(wire.MAX_REQUEST_BYTES)
            counter += 1
            answer = wire.ChangesAnswer(5, counter, True, [(0, each) for each in adverts])
            await stream.send_message(wire.encode_answer(answer))

    return serve


FORGED = bytes([1]) + bytes(64) + signed("victim", name="victim")[65:]


def test_who_brings_bad_adverts_is_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "SHUN_SECONDS", 0.4)
    monkeypatch.setattr(exchange_module, "MAX_REFUSED", 4)

    async def test() -> None:
        good = signed("good", name="good")
        async with nodes("a") as (a,), listening({wire.PROTOCOL_ID: saying(good, FORGED)}) as liar:
            connection = await a.endpoint.connect(address_of(liar))
            a.nursery.start_soon(a.exchange.follow, connection)
            await until(lambda: caplog.records)
            assert a.known == {"good"} and a.table.refusals(connection.peer_id) == 0
            assert connection.is_open  # calls may go on
            await trio.sleep(0.2)
            assert a.table.refusals(connection.peer_id) == 0  # nothing is asked now
            await until(lambda: len(caplog.records) == 2)  # a second chance, wasted

    with caplog.at_level(logging.WARNING, "panal.adverts"):
        run(test)
    text = caplog.records[0].getMessage()
    assert "brought more than 4 adverts that are forged" in text and "\n" not in text


def test_nothing_goes_back_over_the_connection_it_came_by() -> None:
    async def test() -> None:
        async with nodes("a") as (a,), listening({wire.PROTOCOL_ID: saying(signed("x", name="x"))}) as peer:
            here = await a.endpoint.connect(address_of(peer))
            a.nursery.start_soon(a.exchange.follow, here)
            await until(lambda: a.known == {"x"})
            mine = a.say()
            (same,) = peer.connections
            async with listening({}) as stranger:
                other = await stranger.connect(address_of(a.endpoint))
                for connection, expected in [(same, [mine]), (other, [signed("x", name="x"), mine])]:
                    stream = connection.open_stream(wire.PROTOCOL_ID)
                    await stream.send_message(wire.encode_request(wire.ChangesRequest(0, 0, 0)))
                    answer = wire.decode_answer(await stream.receive_message(wire.MAX_ANSWER_BYTES))
                    assert [data for _, data in answer.adverts] == expected

    run(test)


def test_another_swarm_never_mixes() -> None:
    async def test() -> None:
        async with nodes("a") as (a,):
            foreign = signed("f", name="f", swarm_id=bytes(32))
            async with listening({wire.PROTOCOL_ID: saying(foreign)}) as other:
                connection = await a.endpoint.connect(address_of(other))
                a.nursery.start_soon(a.exchange.follow, connection)
                await until(lambda: a.table.refusals(connection.peer_id) > 3)
                assert a.known == set() and a.heard == []

    run(test)


NONSENSE = [b"", b"\xc1", b"\x80", b"\xdd\xff\xff\xff\xff", bytes(wire.MAX_ANSWER_BYTES + 1)]


@pytest.mark.parametrize("says", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_never_ends_the_following(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "FIRST_RETRY", 0.02)
    sane = False
    asked = 0

    async def serve(stream: Stream) -> None:
        nonlocal asked
        asked += 1
        if sane:
            await saying(signed("good", name="good"))(stream)
        while True:
            await stream.receive_message(wire.MAX_REQUEST_BYTES)
            await stream.send_message(says)

    async def test() -> None:
        nonlocal sane
        async with nodes("a") as (a,), listening({wire.PROTOCOL_ID: serve}) as peer:
            connection = await a.endpoint.connect(address_of(peer))
            a.nursery.start_soon(a.exchange.follow, connection)
            await until(lambda: asked >= 3)
            assert a.known == set()
            sane = True
            await until(lambda: a.known == {"good"})

    run(test)


def test_a_peer_without_the_protocol_costs_little_and_the_end_is_noticed() -> None:
    async def test() -> None:
        async with nodes("a") as (a,), listening({}) as peer:
            connection = await a.endpoint.connect(address_of(peer))
            over = trio.Event()

            async def follow() -> None:
                await a.exchange.follow(connection)
                over.set()

            a.nursery.start_soon(follow)
            await trio.sleep(0.3)
            assert connection.is_open and not over.is_set()
            await connection.aclose()
            with trio.fail_after(30):
                await over.wait()

    run(test)


def test_a_peer_that_floods_with_copies_is_asked_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "ADVERTS_BURST", 100)
    monkeypatch.setattr(exchange_module, "ADVERTS_PER_SECOND", 0.001)
    asked = 0

    async def serve(stream: Stream) -> None:
        nonlocal asked
        while True:
            await stream.receive_message(wire.MAX_REQUEST_BYTES)
            asked += 1
            answer = wire.ChangesAnswer(5, asked, True, [(0, signed("good"))] * 64)
            await stream.send_message(wire.encode_answer(answer))

    async def test() -> None:
        async with nodes("a") as (a,), listening({wire.PROTOCOL_ID: serve}) as peer:
            connection = await a.endpoint.connect(address_of(peer))
            a.nursery.start_soon(a.exchange.follow, connection)
            await until(lambda: asked == 2)  # 100 at once, in answers of 64
            await trio.sleep(0.3)
            assert asked == 2
            assert a.table.refusals(connection.peer_id) == 0

    run(test)


@pytest.mark.parametrize("asks", [b"", b"\xc1", b"\x80", bytes(wire.MAX_REQUEST_BYTES + 1)])
def test_nonsense_as_a_request_ends_the_stream_alone(asks: bytes) -> None:
    async def test() -> None:
        async with nodes("a") as (a,), listening({}) as peer:
            a.say()
            connection = await peer.connect(address_of(a.endpoint))
            stream = connection.open_stream(wire.PROTOCOL_ID)
            with pytest.raises(PeerError):
                await stream.send_message(asks)
                await stream.receive_message(wire.MAX_ANSWER_BYTES)
            stream = connection.open_stream(wire.PROTOCOL_ID)
            await stream.send_message(wire.encode_request(wire.ChangesRequest(0, 0, 0)))
            answer = wire.decode_answer(await stream.receive_message(wire.MAX_ANSWER_BYTES))
            assert len(answer.adverts) == 1

    run(test)


def test_held_requests_are_bounded_for_each_connection() -> None:
    async def test() -> None:
        async with nodes("a") as (a,), listening({}) as peer:
            connection = await peer.connect(address_of(a.endpoint))
            refused = 0

            async def hold() -> None:
                nonlocal refused
                stream = connection.open_stream(wire.PROTOCOL_ID)
                with suppress(PeerError):
                    await stream.send_message(wire.encode_request(wire.ChangesRequest(0, 0, 0)))
                    first = wire.decode_answer(await stream.receive_message(wire.MAX_ANSWER_BYTES))
                    request = wire.ChangesRequest(first.epoch, first.counter, 20_000)
                    await stream.send_message(wire.encode_request(request))
                    await stream.receive_message(wire.MAX_ANSWER_BYTES)
                    return
                refused += 1

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(hold)
                await until(lambda: refused == 48)
                await trio.sleep(0.1)
                assert refused == 48
                nursery.cancel_scope.cancel()

    run(test)


def test_who_is_gone_is_served_no_longer() -> None:
    async def test() -> None:
        async with nodes("a") as (a,), listening({}, Identity.generate()) as peer:
            a.say()
            connection = await peer.connect(address_of(a.endpoint))
            stream = connection.open_stream(wire.PROTOCOL_ID)
            cursor = a.table.cursor
            request = wire.ChangesRequest(cursor.epoch, cursor.counter, 20_000)
            await stream.send_message(wire.encode_request(request))
            await until(lambda: a.exchange.held == 1)
            await connection.aclose()
            await until(lambda: a.exchange.held == 0)

    run(test)
