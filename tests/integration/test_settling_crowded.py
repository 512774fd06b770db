"""Settling where more peers come than there is room for: who was forgotten is met anew, and who was to make
room stays if nothing came of it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import trio

from market.market_wire import Countersigned, Offer, decode, encode
from market.price_book import PriceBook
from market.receipt import Kind, Receipt, epoch_of, sign
from market.registry import MAX_STRANGERS
from node.market import settling
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from tests.integration.test_settling import MODEL, Side, answer_to, run, settled, side, work
from tests.served import address_of


def test_a_stranger_that_was_forgotten_while_connected_is_paid(tmp_path: Path) -> None:
    """Nothing is signed before books were compared, once a connection: and who was compared with is forgotten
    when thousands of others come."""

    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            await payer.endpoint.connect(address_of(payee.endpoint))
            payer.settler.met(payee.peer_id)
            while not payer.books.account(payee.peer_id).caught_up or payer.settler._under_way:
                await trio.sleep(0.01)
            for number in range(MAX_STRANGERS):
                payer.books.account(f"passer-by {number}")
            assert not payer.books.account(payee.peer_id).caught_up
            await settled(payer, payee, work(payer, payee))

    run(test)


def offer_of(payer: Identity, payee: Side, n: int) -> bytes:
    """A receipt for a little more with each n."""
    receipt = Receipt(
        Kind.WORK, payer.peer_id, payee.identity.peer_id, epoch_of(time.time()), n, (0, 0), n, 1_000 * n,
        MODEL.hex(),
    )  # fmt: skip
    return encode(Offer(sign(receipt, payer.private_key)))


def test_who_was_to_make_room_stays_if_that_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hangs, and who asked has gone before anything was written."""
    monkeypatch.setattr(settling, "ASKED_SECONDS", 60.0)

    async def test() -> None:
        async with side(tmp_path, "payee") as payee, trio.open_nursery() as nursery:
            payee.books._registry._max_peers = 1
            now, experts = time.time(), np.array([1], np.uint16)
            old, new = Endpoint(Identity.generate()), Endpoint(Identity.generate())
            for endpoint in (old, new):
                await nursery.start(endpoint.run)
                payee.books.payee.served(endpoint.identity.peer_id, MODEL, 0, experts, now)
            to_old, to_new = [await each.connect(address_of(payee.endpoint)) for each in (old, new)]
            reply = await answer_to(to_old, offer_of(old.identity, payee, 1))
            assert isinstance(decode(reply, ""), Countersigned)
            account = payee.books.account(old.identity.peer_id)
            async with payee.settler._writing:  # the disk
                monkeypatch.setattr(settling, "ASKED_SECONDS", 0.5)
                with pytest.raises(StreamClosed):
                    await answer_to(to_new, offer_of(new.identity, payee, 1))
                monkeypatch.setattr(settling, "ASKED_SECONDS", 60.0)
            assert not account.leaving
            reply = await answer_to(to_old, offer_of(old.identity, payee, 2))
            assert isinstance(decode(reply, ""), Countersigned)
            reply = await answer_to(to_new, offer_of(new.identity, payee, 1))
            assert isinstance(decode(reply, ""), Countersigned)
            assert [row.peer for row in payee.ledger.balances()] == [new.identity.peer_id]
            nursery.cancel_scope.cancel()

    run(test)


def test_servers_that_answer_once_and_leave_are_not_remembered_for_settling(tmp_path: Path) -> None:
    """What is owed to them stands in the books, which are bounded."""

    async def test() -> None:
        async with side(tmp_path, "payer") as payer, side(tmp_path, "payee") as payee:
            assert payer.prices.quotes is not None
            book = PriceBook.of(payer.prices.quotes.current[0])
            for number in range(50):
                experts = np.array([1], np.uint16)
                payer.books.payer.answered(f"gone {number}", MODEL, 0, experts, book, time.time())
                payer.settler.answered(f"gone {number}")
            while payer.settler._answered:
                await trio.sleep(0.05)
            assert len(payer.books.payer.open_accounts()) == 50
            total = work(payer, payee)  # before it is connected
            while payer.settler._answered:
                await trio.sleep(0.05)
            await payer.endpoint.connect(address_of(payee.endpoint))
            payer.settler.met(payee.peer_id)
            await settled(payer, payee, total)

    run(test)
