"""A quote as the status tells it. A quote of a thousand bytes may name four thousand million cells."""

from __future__ import annotations

import numpy as np

from node.status.market_facts import QuotedPrices
from routing.wire.advert import Advert
from routing.wire.quote import Quote

MAX_TOLD_RUNS = 65_536
"""Runs of experts told of one quote, cell by cell: ten times those of 48 layers with 128 prices each. Layers
beyond them are left out."""


def quote_told(advert: Advert | None, quote: Quote, *, by_cell: bool) -> QuotedPrices:
    """Quick: a swarm's quotes are told on the event loop.

    Args:
        advert: where it stands; None: it is this node's own.
        by_cell: with `layers`.
    """
    cells = total = 0
    found: list[int] = []
    prices = np.array([0, *quote.prices], np.int64)
    for first, last, numbers in quote.layers:
        more, which = np.divmod(np.array(numbers, np.int64), len(prices))
        counts = np.where(which > 0, more + 1, 0)
        cells += int(counts.sum()) * (last + 1 - first)
        total += int(counts @ prices[which]) * (last + 1 - first)
        named = prices[which[which > 0]]
        if len(named):
            found += [int(named.min()), int(named.max())]
    return QuotedPrices(
        peer="" if advert is None else advert.peer_id,
        name="" if advert is None else advert.name,
        model=quote.model_id,
        number=quote.number,
        until=float(quote.until),
        cells=cells,
        lowest=min(found, default=0),
        mean=round(total / cells, 1) if cells else 0.0,
        highest=max(found, default=0),
        layers=_by_cell(quote) if by_cell else [],
    )


def _by_cell(quote: Quote) -> list[tuple[int, list[tuple[int, int, int]]]]:
    layers: list[tuple[int, list[tuple[int, int, int]]]] = []
    room = MAX_TOLD_RUNS
    for first, last, _ in quote.layers:
        runs = list(quote.runs(first))  # the same in all of these layers
        fits = min(last + 1 - first, room // max(1, len(runs)))
        layers += [(layer, runs) for layer in range(first, first + fits)]
        room -= fits * max(1, len(runs))
    return layers
