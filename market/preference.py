"""What a backbone wants of servers that hold the same: to be near, or to be cheap. Pure.

- `fast`: among servers of which none is clearly slower than the quickest, the cheapest.
- `cheap`: the cheapest, unless it is hopelessly slow.
- `balanced`: a second of waiting is worth so many credits.

Under `fast` and `cheap` a price counts by its share of the least that is asked, as models differ by thousands
in what a pair costs: a tenth dearer weighs as much as being clearly slower (`fast`), or hopelessly (`cheap`).
"""

from __future__ import annotations

from typing import Literal

from routing.dispatch.choice import CLEAR_SECONDS, CLEAR_SHARE
from routing.dispatch.holders import Slack
from routing.table import REFERENCE_PAIRS
from routing.tariff import PRICE_STEP, Prices, Tariff

Prefer = Literal["fast", "cheap", "balanced"]

HOPELESS_TIMES = 10.0
HOPELESS_SECONDS = 0.5
"""A server is hopelessly slow if it takes ten times as long as the quickest and half a second more. The other
side of the Earth answers in a third of a second, and by a relay in half; what takes longer is overloaded or
broken, and each layer of each token would wait for it."""

_EQUAL = PRICE_STEP * REFERENCE_PAIRS
"""Pairs at the least price that a price must come to more to weigh."""


def tariff(prefer: Prefer, second: int, prices: Prices) -> Tariff:
    """How prices are weighed.

    Args:
        second: micro-credits that a second of waiting is worth, for `balanced`; 0: waiting is worth nothing,
            which is `cheap`.
        prices: of each peer and layer.
    """
    if prefer == "fast":
        return Tariff(prices, CLEAR_SECONDS / _EQUAL, True, Slack(CLEAR_SHARE, CLEAR_SECONDS))
    if prefer == "balanced" and second > 0:
        return Tariff(prices, 1 / second, False, Slack())
    return Tariff(prices, HOPELESS_SECONDS / _EQUAL, True, Slack(HOPELESS_TIMES - 1, HOPELESS_SECONDS))
