"""A model's cells on this node with their prices: flat arrays, kept over changes of what is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from market.price import BasePrices, PriceArray
from market.quote_runs import CellPrices
from market.scarcity import Levels
from routing.wire.holdings import Slice
from routing.wire.quote import Quote


@dataclass(frozen=True, eq=False)
class PricedCells:
    """Cells in order of (layer, expert): arrays of one length.

    Attributes:
        layers, experts: which cells.
        base: their base prices.
        levels: where their prices are.
    """

    layers: npt.NDArray[np.int64]
    experts: npt.NDArray[np.int64]
    base: PriceArray
    levels: Levels

    @classmethod
    def of(cls, slices: Sequence[Slice], model_id: str, base: BasePrices) -> PricedCells:
        """The cells of a model that slices name, at base prices. A layer without a base price is left out."""
        held = {
            (layer, expert)
            for each in slices
            if each.model_id == model_id and each.kind == "experts"
            for layer in each.layer_numbers()
            if layer in base
            for first, last in each.expert_runs(layer)
            for expert in range(first, last + 1)
        }
        cells = np.array(sorted(held), np.int64).reshape(-1, 2)
        layers, experts = cells[:, 0], cells[:, 1]
        bases = np.array([base[int(layer)] for layer in layers], np.int64)
        return cls(layers, experts, bases, Levels.at_base(len(cells)))

    def following(self, before: PricedCells | None, others: Callable[[], Sequence[Quote]]) -> PricedCells:
        """The same cells: at the levels they had before, or those new here at the mean of others' prices.

        Args:
            others: what others ask; looked up only if there are new cells.
        """
        start, is_new = Levels.at_base(len(self.base)), np.ones(len(self.base), np.bool_)
        level, shown = start.level, start.shown
        if before is not None:
            _, mine, theirs = np.intersect1d(self._keys(), before._keys(), return_indices=True)
            level[mine], shown[mine] = before.levels.level[theirs], before.levels.shown[theirs]
            is_new[mine] = False
        if is_new.any():
            found = Levels.of(self.base[is_new], self._asked(others())[is_new])
            level[is_new], shown[is_new] = found.level, found.shown
        return PricedCells(self.layers, self.experts, self.base, Levels(level, shown))

    def at(self, levels: Levels) -> PricedCells:
        """The same cells at other levels."""
        return PricedCells(self.layers, self.experts, self.base, levels)

    def by_layer(self) -> Iterable[tuple[int, slice]]:
        """Each layer and where its cells are."""
        numbers, starts = np.unique(self.layers, return_index=True)
        ends = [*starts[1:].tolist(), len(self.layers)]
        for layer, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            yield layer, slice(start, end)

    def prices(self, prices: PriceArray) -> CellPrices:
        """Prices of all cells, by layer."""
        return {layer: (self.experts[where], prices[where]) for layer, where in self.by_layer()}

    def gather(self, by_layer: Mapping[int, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """Numbers by layer and expert as one for each cell; 0 where there is none."""
        gathered = np.zeros(len(self.layers), np.int64)
        for layer, where in self.by_layer():
            numbers = by_layer.get(layer)
            if numbers is not None:
                padded = np.append(numbers, 0)
                gathered[where] = padded[np.minimum(self.experts[where], len(numbers))]
        return gathered

    def _asked(self, quotes: Sequence[Quote]) -> PriceArray:
        """What is asked for each cell by the quotes that name it, on average; its base price if none does."""
        numbers, experts = np.unique(self.layers), int(self.experts.max()) + 1
        shape = (len(numbers) + 1, experts + 1)
        sums, counts = np.zeros(shape, np.int64).ravel(), np.zeros(shape, np.int64).ravel()
        for quote in quotes:  # what changes at the corners of runs
            first, last, start, end, price = _rectangles(quote)
            above, below = (np.searchsorted(numbers, layer) * shape[1] for layer in (first, last + 1))
            start, end = np.minimum(start, experts), np.minimum(end, experts)
            places = np.concatenate([above + start, below + end, above + end, below + start])
            np.add.at(sums, places, np.concatenate([price, price, -price, -price]))
            np.add.at(counts, places, np.repeat([1, -1], 2 * len(price)))
        where = np.searchsorted(numbers, self.layers) * shape[1] + self.experts
        total, named = (each.reshape(shape).cumsum(0).cumsum(1).ravel()[where] for each in (sums, counts))
        return np.where(named > 0, total // np.maximum(named, 1), self.base)

    def _keys(self) -> npt.NDArray[np.int64]:
        return self.layers << 16 | self.experts


def _rectangles(quote: Quote) -> npt.NDArray[np.int64]:
    """All runs of cells that a quote names, [5, runs]: first layer, last layer, first expert, the one beyond
    the last, price. At once: a large quote has five thousand."""
    prices = np.array([0, *quote.prices])
    lengths = [len(numbers) for _, _, numbers in quote.layers]
    flat = np.fromiter(chain.from_iterable(numbers for _, _, numbers in quote.layers), np.int64)
    more, which = np.divmod(flat, len(prices))
    ends = np.cumsum(more + 1)
    before = np.append(0, ends[np.cumsum(lengths)[:-1] - 1])  # of each run of layers
    first, last = np.repeat(np.array([layers[:2] for layers in quote.layers]).T, lengths, axis=1)
    ends -= np.repeat(before, lengths)
    return np.stack([first, last, ends - more - 1, ends, prices[which]])[:, which > 0]
