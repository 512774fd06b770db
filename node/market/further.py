"""What pairs of a layer's further MoE calls cost (grovemoe's chunk experts): a share of a cell's price.

Quotes name cells, the experts of a layer's first call. A further call has fewer and smaller experts; each of
them stands for the cells of a range, and costs as much of the first one's price as it weighs of its base.
Both sides come to the same by the manifest, whichever servers answered the first call: replicas take over for
each other between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from market.price_book import PriceBook
from node.market.base_prices import weight_of
from node.model.manifest import Manifest
from routing.wire.experts import ExpertsRequest

Manifests = Callable[[bytes], Manifest | None]
"""By model id: of models whose calls are computed here, or asked for."""


@dataclass(frozen=True)
class Share:
    """Of a further call.

    Attributes:
        n_cells: experts of the layer's first call, and `n_experts` of this one.
        weight: of a pair of this call, and `of` that of a pair of the first.
    """

    n_cells: int
    n_experts: int
    weight: int
    of: int

    def cells(self, experts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint16]:
        """The cells by whose prices these experts are priced."""
        return (experts.astype(np.int64) * self.n_cells // self.n_experts).astype(np.uint16)

    def price(self, of_cells: int) -> int:
        """What these cells' price comes to, µcr, rounded down for a whole call."""
        return of_cells * self.weight // self.of


def shares(manifest: Manifest) -> Mapping[tuple[int, int], Share]:
    """By layer and call index, which is 1 or more."""
    first = {call.layer: call for call in manifest.calls if call.index == 0}
    return {
        (call.layer, call.index): Share(
            first[call.layer].n_experts, call.n_experts, weight_of(call), weight_of(first[call.layer])
        )
        for call in manifest.calls
        if call.index and call.layer in first
    }


@dataclass(frozen=True)
class FurtherBook:
    """A peer's prices, for pairs of a further call (market.accounts_payer.Book)."""

    book: PriceBook
    share: Share

    @property
    def number(self) -> int:
        return self.book.number

    def total(self, layer: int, experts: npt.NDArray[np.uint16]) -> int:
        return self.share.price(self.book.total(layer, self.share.cells(experts)))


class Further:
    """Shares of all models of this node, looked up when they are first needed."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._shares: dict[bytes, Mapping[tuple[int, int], Share]] = {}

    def share(self, request: ExpertsRequest) -> Share | None:
        """Of a request for a further call; None: the model has none there, or is not known."""
        known = self._shares.get(request.model_id)
        if known is None:
            manifest = self._manifests(request.model_id)
            if manifest is None:
                return None
            known = self._shares[request.model_id] = shares(manifest)
        return known.get((request.layer, request.call_index))
