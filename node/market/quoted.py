"""What peers ask for their cells, looked up in their adverts and kept ready for the hot path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum

from market.quotes import PriceBook
from routing.advert_rows import Offer
from routing.wire.advert import Advert

MAX_PEERS = 1024
"""Peers whose prices are kept ready, those least recently looked up forgotten first: ten times those that a
backbone asks."""


class Unheard(Enum):
    """A peer whose advert has not come yet: it may have been asked before it could tell what it wants."""

    UNHEARD = "unheard"


UNHEARD = Unheard.UNHEARD


class Quoted:
    """Prices by peer and model. Of a peer whose advert has ended the last price holds.

    Args:
        advert: the newest of a peer; None if there is none.
        most: of a model, the most that a pair is paid with, by layer.
    """

    def __init__(
        self,
        advert: Callable[[str], Advert | None],
        most: Callable[[bytes], Mapping[int, int]] = lambda model_id: {},
    ) -> None:
        self._advert = advert
        self._most = most
        self._books: OrderedDict[str, dict[bytes, PriceBook | None]] = OrderedDict()
        self._in_vain: OrderedDict[str, None] = OrderedDict()  # looked up before their adverts came

    def heard(self, offer: Offer) -> bool:
        """The table of adverts has changed; whether a peer asks something else now, as far as that was looked
        up."""
        known = self._books.get(offer.peer_id)
        if offer.advert is None or offer.advert.leaving:
            return False
        if known is None:  # of thousands whom nobody asks, adverts come all the time
            if offer.peer_id not in self._in_vain:
                return False
            del self._in_vain[offer.peer_id]
            return bool(offer.advert.quotes)
        has_changed = False
        for model_id, book in known.items():
            quote = offer.advert.quote(model_id.hex())
            if quote is None:
                has_changed |= book is not None
                known[model_id] = None
            elif book is None or book.number != quote.number:
                has_changed = True
                known[model_id] = PriceBook.of(quote, self._most(model_id))
        return has_changed

    def book(self, peer_id: str, model_id: bytes) -> PriceBook | Unheard | None:
        """What a peer asks for a model's cells; None: nothing."""
        known = self._books.get(peer_id)
        if known is not None and model_id in known:
            self._books.move_to_end(peer_id)
            return known[model_id]
        advert = self._advert(peer_id)
        if advert is None:
            self._in_vain[peer_id] = None
            if len(self._in_vain) > MAX_PEERS:
                self._in_vain.popitem(last=False)
            return UNHEARD
        if known is None:
            known = self._books[peer_id] = {}
            if len(self._books) > MAX_PEERS:
                self._books.popitem(last=False)
        quote = advert.quote(model_id.hex())
        book = known[model_id] = None if quote is None else PriceBook.of(quote, self._most(model_id))
        return book

    def mean(self, peer_id: str, model_id: bytes, layer: int) -> float:
        """Micro-credits that a pair of a layer costs there on the average; 0 if it is free.

        Who has not said yet what it asks counts as the dearest, not as free: else it would get the work.
        """
        book = self.book(peer_id, model_id)
        if isinstance(book, PriceBook):
            return book.mean(layer)
        if book is None:
            return 0.0
        others = (known.get(model_id) for known in self._books.values())
        return max((other.mean(layer) for other in others if other is not None), default=0.0)
