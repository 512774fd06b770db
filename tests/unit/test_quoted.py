"""What peers ask, as a backbone looks it up: by their newest adverts, and within what it is ready to pay."""

from __future__ import annotations

import numpy as np
import pytest

from market.quote_runs import quote_of
from market.quotes import PriceBook
from node.market.quoted import MAX_PEERS, UNHEARD, Quoted
from routing.advert_rows import Offer, Outcome
from routing.wire.advert import Advert
from routing.wire.quote import MAX_PRICE
from tests.adverts import MODEL, NOW, advert

MODEL_BYTES = bytes.fromhex(MODEL)
MOST = {0: 40_000, 1: 500}


def asking(price: int, number: int = 1) -> Advert:
    """A server's advert: one price for eight cells of two layers."""
    cells = {layer: (np.arange(8), np.full(8, price)) for layer in (0, 1)}
    return advert("ana", quotes=[quote_of(MODEL, number, int(NOW) + 1_320, cells, 4_000)])


def book_of(quoted: Quoted) -> PriceBook:
    book = quoted.book(asking(1).peer_id, MODEL_BYTES)
    assert isinstance(book, PriceBook)
    return book


def test_a_peer_is_paid_what_it_asks_up_to_the_most() -> None:
    pairs = np.array([0, 3, 9], np.uint16)
    for price, costs in ((400, (1_200, 1_200)), (40_000, (120_000, 1_500)), (MAX_PRICE, (120_000, 1_500))):
        quoted = Quoted(lambda peer_id, price=price: asking(price), lambda model_id: MOST)  # type: ignore[misc]
        book = book_of(quoted)
        assert tuple(book.total(layer, pairs) for layer in (0, 1)) == costs
        means = [quoted.mean(asking(1).peer_id, MODEL_BYTES, layer) for layer in (0, 1)]
        assert means == [cost / 3 for cost in costs]


def test_who_asks_more_while_it_computes_is_paid_the_most_at_most() -> None:
    """Bait and switch: the answer is paid by the newest quote, which came after the call was sent."""
    quoted = Quoted(lambda peer_id: asking(400), lambda model_id: MOST)
    assert book_of(quoted).total(0, np.array([0], np.uint16)) == 400
    dear = asking(MAX_PRICE, number=2)
    assert quoted.heard(Offer(Outcome.REFRESHED, dear.peer_id, advert=dear))
    assert book_of(quoted).number == 2
    assert book_of(quoted).total(0, np.array([0], np.uint16)) == MOST[0]


def test_models_without_a_bound_are_paid_as_asked() -> None:
    quoted = Quoted(lambda peer_id: asking(400))
    assert book_of(quoted).total(1, np.array([0], np.uint16)) == 400


@pytest.mark.parametrize("known", [True, False])
def test_a_peer_that_was_not_heard_yet_has_no_price(known: bool) -> None:
    value = advert("ana") if known else None
    found = Quoted(lambda peer_id: value).book(advert("ana").peer_id, MODEL_BYTES)
    assert found is (None if known else UNHEARD)


def told(value: Advert) -> Offer:
    return Offer(Outcome.REFRESHED, value.peer_id, advert=value)


def test_adverts_of_those_whom_nobody_asks_change_nothing() -> None:
    """A swarm of thousands sends some each second, and identities cost nothing."""
    value, known = asking(400), dict[str, Advert]()
    quoted = Quoted(known.get)
    assert not quoted.heard(told(value)), "nobody has looked it up"
    assert quoted.book(value.peer_id, MODEL_BYTES) is UNHEARD
    assert not quoted.heard(told(advert("ben", quotes=value.quotes)))
    assert quoted.heard(told(value)), "whoever looked it up in vain has to look again"
    assert not quoted.heard(told(value))
    known[value.peer_id] = value
    assert book_of(quoted).number == 1
    assert not quoted.heard(told(value)) and quoted.heard(told(asking(500, number=2)))


def test_who_was_looked_up_last_is_kept_longest() -> None:
    quoted = Quoted(lambda peer_id: asking(400))
    first = quoted.book("first", MODEL_BYTES)
    for number in range(MAX_PEERS):
        quoted.book(f"peer {number}", MODEL_BYTES)
        assert quoted.book("first", MODEL_BYTES) is first
    assert len(quoted._books) == MAX_PEERS
