"""The quotes of a server: those it issued and that callers may still pay by. Pure; `now` is unix time.

1. A quote lives for twice the lifetime of adverts and QUOTE_MARGIN. It is replaced when its prices change,
   and before less than one lifetime is left: whoever reads a live advert reads a quote that is not over.
2. Numbers grow, over restarts too: unix time in milliseconds, or the last one plus 1.
3. A caller may pay by any quote whose end, and what clocks may differ by, is not over: an advert takes time
   to arrive, and an answer under way keeps the price it was asked at. So the least that a call may cost is
   looked up among all of these.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from market.price_book import Experts, PriceBook
from market.quote_runs import CellPrices, quote_of
from routing.wire.advert import ADVERT_LIFETIME, CLOCK_SKEW
from routing.wire.quote import MAX_NUMBER, MAX_QUOTE_SECONDS, Quote, quote_fault

__all__ = ["MAX_OUTSTANDING", "QUOTE_MARGIN", "OwnQuotes", "PriceBook", "is_over"]

QUOTE_MARGIN = 120
"""Seconds that a quote has beyond two lifetimes, and that are left beyond one when it is replaced: two
periods of pricing, so that no advert waits for one."""

MAX_OUTSTANDING = 256
"""Quotes of one model that may be paid by at once: with the longest lifetime of adverts and other prices
every minute there are 127. Past it the oldest ends early."""

_NOWHERE = np.zeros((1, 1), np.int64)


def is_over(quote: Quote, now: float) -> bool:
    """Whether a quote may not be paid by any more, by whatever clock is still tolerated."""
    return now > quote.until + CLOCK_SKEW


class _Saved(msgspec.Struct, frozen=True):
    last: int
    quotes: list[Quote]


class OwnQuotes:
    """What this server asks and asked.

    Args:
        lifetime: seconds that its adverts live.
    """

    def __init__(self, lifetime: int = ADVERT_LIFETIME) -> None:
        self._lifetime = lifetime
        self._last = 0
        self._books: dict[str, list[PriceBook]] = {}  # by model, oldest first
        self._current: dict[str, PriceBook] = {}
        self._lowest: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
        self._next_end = math.inf

    @property
    def current(self) -> list[Quote]:
        """What stands in the advert."""
        return [book.quote for _, book in sorted(self._current.items())]

    def latest(self, model_id: str, now: float) -> Quote | None:
        """The last one of a model, told now or by an earlier process; None if it is over."""
        books = self._books.get(model_id)
        return None if not books or is_over(books[-1].quote, now) else books[-1].quote

    def issue(self, model_id: str, cells: CellPrices, now: float, room: int) -> bool:
        """Ask these prices from now on.

        Args:
            cells: at least one.
            room: bytes that the quote may take.

        Returns:
            Whether they are others than before. The same under a new number are no news.
        """
        self._forget(now)
        number = max(int(now * 1000), self._last + 1)
        until = int(now) + 2 * self._lifetime + QUOTE_MARGIN
        quote = quote_of(model_id, number, until, cells, room)
        before = self._current.get(model_id)
        is_same = before is not None and before.quote.asks_the_same(quote)
        if before is not None and is_same and not self.is_due(model_id, now):
            return False
        self._last = number
        self._keep(PriceBook.of(quote))
        return not is_same

    def is_due(self, model_id: str, now: float) -> bool:
        """Whether a model has no quote, or one that has to be replaced whatever the prices. A clock that was
        put back makes it so too."""
        book = self._current.get(model_id)
        if book is None:
            return True
        left = book.until - now
        return not self._lifetime + QUOTE_MARGIN <= left <= 2 * self._lifetime + QUOTE_MARGIN

    def withdraw(self, model_id: str) -> None:
        """Ask nothing more for a model that is served no more. What was asked may still be paid by."""
        self._current.pop(model_id, None)

    def total_lowest(self, model_id: str, layer: int, experts: Experts, now: float) -> int:
        """The least that a caller may pay for these pairs; 0 if nothing was asked."""
        if now > self._next_end:
            self._forget(now)
        prices = self._lowest.get((model_id, layer))
        if prices is None:
            prices = self._lowest[model_id, layer] = self._prices(model_id, layer)
        places = np.minimum(experts, prices.shape[1] - 1)
        return int(prices[:, places].sum(axis=1).min())

    def refusal(self, number: int, now: float) -> str:
        """Why a quote of that number may not be paid by; "" if it may."""
        book = self.book(number)
        newest = (
            f"the newest is {self._last}: read this server's advert again" if self._last else "it asks none"
        )
        if number > self._last:
            return f"quote {number} was never this server's; {newest}"
        if book is None:
            return f"quote {number} is over, or was never this server's; {newest}"
        if is_over(book.quote, now):
            return f"quote {number} ended {now - book.until:.0f} s ago; {newest}"
        return ""

    def valid(self, number: int, now: float) -> bool:
        """Whether a quote of that number may be paid by."""
        return not self.refusal(number, now)

    def book(self, number: int) -> PriceBook | None:
        """The quote of that number, if it is remembered."""
        every = (book for books in self._books.values() for book in books)
        return next((book for book in every if book.number == number), None)

    def encoded(self) -> bytes:
        """What has to outlive this process: callers may pay after a restart by what was asked before it."""
        quotes = [book.quote for books in self._books.values() for book in books]
        return msgspec.msgpack.encode(_Saved(self._last, quotes))

    @classmethod
    def restored(cls, data: bytes, now: float, lifetime: int = ADVERT_LIFETIME) -> OwnQuotes:
        """Quotes of an earlier process. What cannot be read is left out: it costs some callers a refusal."""
        own = cls(lifetime)
        try:
            saved = msgspec.msgpack.decode(data, type=_Saved)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return own
        own._last = min(max(0, saved.last), MAX_NUMBER - 1)
        for quote in sorted(saved.quotes, key=lambda each: each.number):
            is_far = quote.until - now > MAX_QUOTE_SECONDS + CLOCK_SKEW
            if quote.number <= own._last and not is_far and not quote_fault(quote):
                own._keep(PriceBook.of(quote))
        own._current = {}  # the cells may be others now
        own._changed()
        own._forget(now)
        return own

    def _keep(self, book: PriceBook) -> None:
        books = [*self._books.get(book.model_id, []), book][-MAX_OUTSTANDING:]
        self._books[book.model_id] = books
        self._current[book.model_id] = book
        self._changed()

    def _forget(self, now: float) -> None:
        if now <= self._next_end:
            return
        current = {book.number for book in self._current.values()}
        for model_id, books in list(self._books.items()):
            kept = [book for book in books if book.number in current or not is_over(book.quote, now)]
            if kept:
                self._books[model_id] = kept
            else:
                del self._books[model_id]
        self._changed()

    def _changed(self) -> None:
        self._lowest = {}
        current = {book.number for book in self._current.values()}
        past = [book for books in self._books.values() for book in books if book.number not in current]
        self._next_end = min((book.until + CLOCK_SKEW for book in past), default=math.inf)

    def _prices(self, model_id: str, layer: int) -> npt.NDArray[np.int64]:
        """Of each quote that may be paid by and each expert; the last column is of those that are not
        named."""
        books = self._books.get(model_id)
        if not books:
            return _NOWHERE
        named = [last for book in books for _, last, _ in book.quote.runs(layer)]
        width = max(named, default=-1) + 2
        rows = [book.prices(layer, width) for book in books]
        return np.unique(np.stack(rows), axis=0)
