"""A node's market put together, without a network: what it takes for experience with a peer."""

from __future__ import annotations

from pathlib import Path

from market.market_wire import Countersigned, Offer, decode, encode
from market.receipt import CREDIT, MAX_TOTAL
from node.config.meaning import parse_config
from node.market.part import MarketPart
from tests.attackers import fake
from tests.market_books import MODEL, NOW, PRICE, FlatPrices, experts, identity


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
