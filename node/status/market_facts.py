"""The market as the status sees it: who tells of it, and what quotes look like to people. Pure."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from node.model.manifest import Manifest
from node.status.facts.market import Market


class QuotedPrices(msgspec.Struct, frozen=True):
    """A quote that is live, as `GET /api/market/quotes` tells it. Prices are micro-credits a pair.

    Attributes:
        peer, name: whose.
        number, until: as in its advert.
        cells: that it names.
        layers: [layer, [[first expert, last, price], ...]] each; empty unless one peer was asked for.
        silent: this node has asked it whether it is there, and got no answer.
    """

    peer: str
    name: str
    model: str
    number: int
    until: float
    cells: int
    lowest: int
    mean: float
    highest: int
    layers: list[tuple[int, list[tuple[int, int, int]]]] = []
    silent: bool = False


class Pardon(msgspec.Struct, frozen=True):
    """What the owner has forgiven a peer, as `POST /api/market/pardon` tells it.

    Attributes:
        peer: its id.
        strikes: how many stood against it; 0: none did.
        until: unix time up to which it was not to be asked; null if it was.
        fault: what it has signed double, "" if nothing.
    """

    peer: str
    strikes: int
    until: float | None
    fault: str


class MarketSource(Protocol):
    """node.market.told.MarketTold."""

    def facts(self, now: float) -> Market: ...

    def heights(
        self, model_id: str, layers: tuple[int, ...], experts: int, manifest: Manifest, clock: float
    ) -> npt.NDArray[np.float64] | None: ...

    async def quotes(self, peer_id: str = "") -> list[QuotedPrices]: ...

    def served(self, model_id: str) -> dict[int, list[float]]: ...

    async def settle(self, peer_id: str, credits: int, *, forgiven: bool) -> None: ...

    async def pardon(self, peer_id: str) -> Pardon: ...


def scarcity(
    replicas: npt.NDArray[np.uint8], wanted: int, heights: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    """How scarce each cell is, in 255ths: by lacking replicas or by its price, whichever says more.

    Args:
        replicas: live ones of each cell.
        wanted: with so many it is not scarce.
        heights: where its price lies between floor (0) and cap (1).
    """
    lacking = np.clip(1 - replicas / wanted, 0, 1)
    scarce: npt.NDArray[np.uint8] = np.rint(np.maximum(lacking, heights) * 255).astype(np.uint8)
    return scarce
