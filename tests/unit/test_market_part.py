"""A node's market put together, without a network: what it takes for experience with a peer."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from market.market_wire import Countersigned, Offer, decode, encode
from market.quotes import OwnQuotes
from market.receipt import CREDIT, MAX_TOTAL
from node.config.meaning import parse_config
from node.market.part import MarketPart
from routing.wire.advert import Advert
from routing.wire.codecs import Codec
from routing.wire.messages import Combine, ExpertsRequest
from tests.attackers import fake
from tests.market_books import LAYER, MODEL, NOW, PRICE, FlatPrices, experts, identity


def test_what_a_peer_only_signs_for_is_no_experience_with_it(tmp_path: Path) -> None:
    """A receipt costs whoever owes nothing: were it standing, one would outweigh all honest witnesses."""
    config = parse_config('[market]\nmode = "fixed"\n', tmp_path / "panal.toml", tmp_path / "store")
    ann, washer, bob = identity("ann"), identity("washer").peer_id, identity("bob")
    with MarketPart.opened(config, ann) as part:
        books = part.books
        step = books.received(washer, encode(Offer(fake("washer", "ann", MAX_TOTAL))), NOW)
        part.ledger.write(step.write)
        books.written(step)
        assert isinstance(decode(step.message, ann.peer_id), Countersigned)
        books.account(bob.peer_id).caught_up = True
        books.payer.answered(bob.peer_id, MODEL, 0, experts(1_000), FlatPrices(), NOW)
        offer = books.offer(bob.peer_id, NOW)
        assert offer is not None
        books.written(offer)
        message = decode(offer.message, ann.peer_id)
        assert isinstance(message, Offer)
        full = Countersigned(message.signed.countersigned(bob.private_key))
        books.written(books.replied(bob.peer_id, encode(full), NOW))
        assert part._dealt() == {washer: 0.0, bob.peer_id: 1_000 * PRICE / CREDIT}


def test_what_was_asked_in_vain_is_owed_and_spent_once_its_server_counts_it(tmp_path: Path) -> None:
    """The loser of a hedge has computed it, as likely as not."""
    config = parse_config('[market]\nmode = "fixed"\n', tmp_path / "panal.toml", tmp_path / "store")
    ann, bob = identity("ann"), identity("bob")
    own = OwnQuotes()
    own.issue(MODEL.hex(), {LAYER: (np.arange(60), np.full(60, PRICE))}, NOW, 1_000)
    told = Advert(
        swarm_id=bytes(32), peer_id=bob.peer_id, instance=1, seq=1, issued_at=int(NOW), quotes=own.current
    )
    request = ExpertsRequest(
        MODEL, LAYER, 0, 1, np.zeros((1, 4), np.float32), np.array([10], np.uint16), experts(10), None,
        4, Codec.F32, Codec.F32, Combine.ROWS, 1_000,
    )  # fmt: skip
    with MarketPart.opened(config, ann) as part:
        books, account = part.books, part.books.account(bob.peer_id)
        part._given_up(bob.peer_id, request)
        assert account.given_up_on == 0, "who has told no price asks none"
        part._quoted._advert = {str(bob.peer_id): told}.get
        part._given_up(bob.peer_id, request)
        assert account.given_up_on == 10 * PRICE and books.payer.due_to(bob.peer_id) == 0
        before, now = part.spending.purse.today(time.time()), time.time()
        account.caught_up = True
        books.payer.answered(bob.peer_id, MODEL, LAYER, experts(9), FlatPrices(), now)
        offer = books.offer(bob.peer_id, now)
        assert offer is not None
        books.written(offer)
        message = decode(offer.message, ann.peer_id)
        assert isinstance(message, Offer)
        full = Countersigned(message.signed.countersigned(bob.private_key), unsigned=7 * PRICE)
        books.written(books.replied(bob.peer_id, encode(full), now))
        assert books.payer.due_to(bob.peer_id) == 7 * PRICE and account.given_up_on == 3 * PRICE
        assert part.spending.purse.today(time.time()) == before + 7 * PRICE
        assert books.payer.open_accounts() == [bob.peer_id]
