"""Receipts over real sockets and real files: two nodes agree, and who misuses the protocol costs little."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from market.books import Books
from market.credit_line import Terms
from market.ledger_sqlite import SqliteLedger
from market.market_wire import MAX_MESSAGE_BYTES, PROTOCOL_ID, Offer, encode
from market.price_book import PriceBook
from market.quotes import OwnQuotes
from market.receipt import Kind, sign
from market.vouch_wire import PROTOCOL_ID as VOUCH_PROTOCOL_ID
from node.market import settling
from node.market.quotes_port import OwnPrices
from node.market.settling import Settler
from node.market.vouching import Teller
from routing.errors import PeerError
from routing.identity import Identity
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from tests.served import address_of

MODEL = bytes(range(32))
EXPERTS = np.array([1, 2, 5], np.uint16)
PRICE = 1_000
CREDIT = 1_000_000


def run(test: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await test(*arguments)

    trio.run(bounded)


@dataclass
class Side:
    """A node, as far as it settles."""

    identity: Identity
    prices: OwnPrices
    ledger: SqliteLedger
    books: Books
    settler: Settler
    endpoint: Endpoint

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    def owed_by(self, other: Side) -> int:
        """What another owes this node, by this node's file."""
        rows = {row.peer: row.owes_us for row in self.ledger.balances()}
        return rows.get(other.peer_id, 0)


@asynccontextmanager
async def side(folder: Path, name: str) -> AsyncIterator[Side]:
    identity = Identity.generate()
    prices = OwnPrices()
    prices.quotes = OwnQuotes()
    prices.quotes.issue(MODEL.hex(), {0: (np.arange(8), np.full(8, PRICE))}, time.time(), 1000)
    ledger = SqliteLedger(folder / f"{name}.db")
    books = Books(identity, Terms(1000 * CREDIT, 200 * CREDIT), prices, ledger.load(time.time()))
    settler = Settler(books, ledger, lambda peer_id: endpoint.connection_to(peer_id), time.time)
    teller = Teller(books.has_receipts, books.vouches, time.time)
    handlers = {PROTOCOL_ID: settler.serve, VOUCH_PROTOCOL_ID: teller.serve}
    endpoint = Endpoint(identity, listen=("127.0.0.1", 0), handlers=handlers)
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run)
        nursery.start_soon(settler.run)
        yield Side(identity, prices, ledger, books, settler, endpoint)
        nursery.cancel_scope.cancel()
    ledger.close()


def work(payer: Side, payee: Side, calls: int = 1) -> int:
    """Calls that one node has answered for another; what they cost."""
    assert payee.prices.quotes is not None
    book = PriceBook.of(payee.prices.quotes.current[0])
    cost, now = 0, time.time()
    for _ in range(calls):
        assert not payee.books.payee.refusal(payer.peer_id, now)
        payee.books.payee.served(payer.peer_id, MODEL, 0, EXPERTS, now)
        cost += payer.books.payer.answered(payee.peer_id, MODEL, 0, EXPERTS, book, now)
        payer.settler.answered(payee.peer_id)
    return cost


async def settled(payer: Side, payee: Side, total: int) -> None:
    """Until both files say that this is owed, and both nodes know what their files say."""

    def said() -> list[int]:
        in_memory = (payee.books.account(payer.peer_id), payer.books.account(payee.peer_id))
        return [payee.owed_by(payer), payer.owed_by(payee), *(each.standing.owes for each in in_memory)]

    while said() != [total, -total, total, -total]:
        await trio.sleep(0.02)


@asynccontextmanager
async def stranger_to(payee: Side) -> AsyncIterator[Connection]:
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0))
        await nursery.start(endpoint.run)
        yield await endpoint.connect(address_of(payee.endpoint))
        nursery.cancel_scope.cancel()


async def answer_to(connection: Connection, message: bytes) -> bytes:
    stream = connection.open_stream(PROTOCOL_ID)
    try:
        await stream.send_message(message)
        return await stream.receive_message(MAX_MESSAGE_BYTES)
    finally:
        stream.reset()


async def is_ended(stream: Stream) -> None:
    """Wait until the other side has ended a stream without an answer."""
    with pytest.raises(StreamClosed):
        await stream.receive_message(MAX_MESSAGE_BYTES)


# --- two honest nodes ---


def test_a_quiet_moment_after_the_answers_and_both_have_the_receipt(tmp_path: Path) -> None:
    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            total = work(payer, payee, 7)
            assert total == 7 * 3 * PRICE
            await settled(payer, payee, total)
            total += work(payer, payee)
            await settled(payer, payee, total)

    run(test)


def test_both_ways_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with side(tmp_path, "one") as one, side(tmp_path, "other") as other:
            await one.endpoint.connect(address_of(other.endpoint))
            there, back = work(one, other, 5), work(other, one, 3)
            await settled(one, other, there - back)

    run(test)


def test_at_the_end_the_last_receipts_are_exchanged(tmp_path: Path) -> None:
    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            total = work(payer, payee, 2)
            await payer.settler.finish(seconds=50)
            assert (payee.owed_by(payer), payer.owed_by(payee)) == (total, -total)

    run(test)


def test_a_payee_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "ANSWER_SECONDS", 3_600.0)

    async def mute(stream: Stream) -> None:
        await trio.sleep_forever()

    async def test() -> None:
        async with side(tmp_path, "payer") as payer, trio.open_nursery() as nursery:
            endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), handlers={PROTOCOL_ID: mute})
            await nursery.start(endpoint.run)
            await payer.endpoint.connect(address_of(endpoint))
            assert payer.prices.quotes is not None
            book = PriceBook.of(payer.prices.quotes.current[0])
            payer.books.payer.answered(endpoint.identity.peer_id, MODEL, 0, EXPERTS, book, time.time())
            payer.settler.answered(endpoint.identity.peer_id)
            with trio.fail_after(60):  # it is not waited for until it is late
                await payer.settler.finish(seconds=0.1)
            nursery.cancel_scope.cancel()

    run(test)


def test_who_has_signed_double_is_named_and_once_pardoned_settles_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            connection = await payer.endpoint.connect(address_of(payee.endpoint))
            total = work(payer, payee)
            await settled(payer, payee, total)
            account = payee.books.account(payer.peer_id)
            full = account.accepting(False, Kind.WORK).full
            assert full is not None
            other = sign(replace(full.receipt, credits=full.receipt.credits + 1), payer.identity.private_key)
            await answer_to(connection, encode(Offer(other)))
            assert account.fault and payee.books.payee.refusal(payer.peer_id, time.time())
            (line,) = [each.getMessage() for each in caplog.records if "signed double" in each.getMessage()]
            assert line.startswith(f"{payer.peer_id} has signed double, and gets no work here: two receipts")
            await payee.settler.pardon(payer.peer_id)
            assert not account.fault and payee.ledger.evidence()[0].pardoned
            total += work(payer, payee)
            await settled(payer, payee, total)

    run(test)


# --- others ---


def test_garbage_costs_a_stream(tmp_path: Path) -> None:
    rng = random.Random(3)

    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            total = work(payer, payee)
            await settled(payer, payee, total)
            hello = payer.books.hello(payee.peer_id)  # with the payer's receipt, which is not the stranger's
            async with stranger_to(payee) as stranger:
                for message in [
                    b"",
                    b"\0",
                    bytes(MAX_MESSAGE_BYTES),
                    *(rng.randbytes(size) for size in (1, 4, 40, 300, MAX_MESSAGE_BYTES)),
                    hello,
                    hello[:-1],
                    bytes([hello[0], 99]) + hello[2:],
                ]:
                    with pytest.raises(StreamClosed):
                        await answer_to(stranger, message)
                stream = stranger.open_stream(PROTOCOL_ID)
                await stream.send_bytes(b"\xff\xff\xff\xff")  # claims 4 GiB
                await is_ended(stream)
                unread = stranger.open_stream(PROTOCOL_ID)
                await unread.send_message(payee.books.hello(payer.peer_id)[:4])
                unread.reset()
            assert [row.peer for row in payee.ledger.balances()] == [payer.peer_id]
            total += work(payer, payee)
            await settled(payer, payee, total)

    run(test)


def test_who_says_nothing_is_sent_away_and_has_two_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "ASKED_SECONDS", 1.0)

    async def test() -> None:
        async with (
            side(tmp_path, "payer") as payer,
            side(tmp_path, "payee") as payee,
            stranger_to(payee) as stranger,
        ):
            await payer.endpoint.connect(address_of(payee.endpoint))
            streams = [stranger.open_stream(PROTOCOL_ID) for _ in range(20)]
            for stream in streams:
                await stream.send_bytes(b"\0\0")  # half of a length
            total = work(payer, payee)
            await settled(payer, payee, total)  # whatever the stranger does
            for stream in streams:
                await is_ended(stream)

    run(test)


def test_a_flood_is_answered_so_often_a_minute_and_others_are_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "ASKED_PER_MINUTE", 20)

    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            async with stranger_to(payee) as stranger:
                answered = 0
                for _ in range(60):
                    try:
                        await answer_to(stranger, payer.books.hello(stranger.peer_id))
                        answered += 1
                    except PeerError:
                        pass
                assert 0 < answered <= 40  # two windows may touch
                total = work(payer, payee)
                await settled(payer, payee, total)

    run(test)


def test_books_that_cannot_be_written_sign_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            SqliteLedger(tmp_path / "payee.db").close()  # another writer: the payee's is fenced off
            work(payer, payee)
            await payer.settler.finish(seconds=5)
            reader = SqliteLedger.reading(tmp_path / "payee.db")
            assert reader.balances() == []
            reader.close()
            assert payer.owed_by(payee) == 0  # and so the payer counts nothing either
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1 and "payee.db" in errors[0], errors

    run(test)
