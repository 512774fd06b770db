"""What servers ask, and what that is worth against waiting for them. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routing.dispatch.holders import Slack

PRICE_STEP = 0.1
"""By which share of a price it must change to be noticed: replicas must not take turns at every little step
of a price, as they must not at every breath of the network (routing.table)."""

Prices = Callable[[str, int], float]
"""What a peer asks for a pair of a layer, in micro-credits; 0 where it asks for nothing."""


@dataclass(frozen=True)
class Tariff:
    """What prices come to in seconds.

    Attributes:
        prices: of each peer and layer.
        seconds: of waiting that a micro-credit is worth; where `is_relative`, what the least that anybody
            asks for a pair of the layer is worth.
        slack: how much slower than the quickest servers may be for their price.
    """

    prices: Prices
    seconds: float
    is_relative: bool
    slack: Slack

    def per_unit(self, asked: Mapping[str, float]) -> float:
        """Seconds that a micro-credit is worth in a layer.

        Args:
            asked: for a pair of it, by peer.
        """
        if not self.is_relative:
            return self.seconds
        least = min((price for price in asked.values() if price > 0), default=0.0)
        return self.seconds / least if least else 0.0


DEARER_SECONDS = 0.03
"""Of waiting that asking twice as much counts as, whatever is preferred. Homes of a country differ by as much
in distance: a server that asked more than it needs to would lose more calls than it gains in price. In the
simulated market those who ask four times the price, or make their cells dear by dealing with themselves, then
earn less than honest ones (scripts/simulate_market --attacks); without it they earned two to eight times as
much."""

COMPETITORS = 5
"""Quotes of a layer from which on there is something to compare with. Of two servers the near one may be
dear."""

TEASER = 4.0
"""A quote is not compared with one of less than the median over this: one lone cheap quote makes not all
others dear."""


def surcharges(asked: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Seconds by which each of a layer's servers is taken to be slower, for asking more than the others.

    Args:
        asked: for a pair; 0 where nothing is asked, which is never dear.
    """
    priced = asked[asked > 0]
    if len(priced) < COMPETITORS:
        return np.zeros(len(asked))
    least = max(float(priced.min()), float(np.median(priced)) / TEASER)
    return DEARER_SECONDS * np.log2(np.maximum(asked, least) / least)


def noticed(asked: float, before: float | None) -> float:
    """A price, or what it was before if that is about the same."""
    if before is not None and abs(asked - before) <= before * PRICE_STEP:
        return before
    return asked
