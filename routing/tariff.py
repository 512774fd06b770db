"""What servers ask, and what that is worth against waiting for them. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


def noticed(asked: float, before: float | None) -> float:
    """A price, or what it was before if that is about the same."""
    if before is not None and abs(asked - before) <= before * PRICE_STEP:
        return before
    return asked
