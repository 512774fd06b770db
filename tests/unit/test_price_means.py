"""What a pair of a layer costs on average, by a quote that prices many layers together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from market.price_book import PriceBook
from routing.wire.quote import Quote, quote_fault

QUOTE = Quote(
    "ab" * 32, 7, 2_000_000_000, [100, 200, 900], [(0, 3, [1, 2 + 4, 0, 3]), (5, 5, [3 + 4]), (6, 7, [0])]
)
"""Layers 0 to 3: one expert for 100, two for 200, one that is not named, one for 900. Layer 5: two for 900.
Of layers 6 and 7 none is named."""


@pytest.mark.parametrize(
    ("layer", "mean"), [(0, 350), (1, 350), (3, 350), (4, 200), (5, 900), (6, 200), (7, 150)]
)
def test_means_are_of_the_cells_that_are_named_and_bounded_by_layer(layer: int, mean: int) -> None:
    assert quote_fault(QUOTE) == ""
    book = PriceBook.of(QUOTE, {2: 166, 7: 150})
    assert book.mean(layer) == mean
    assert book.mean(2) == (100 + 3 * 166) / 4


def test_layers_that_are_named_together_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kilobyte of a peer, new each second, takes 17 ms of the event loop each time."""
    asked: list[int] = []
    runs = Quote.runs

    def noted(self: Quote, layer: int) -> Iterator[tuple[int, int, int]]:
        asked.append(layer)
        return runs(self, layer)

    monkeypatch.setattr(Quote, "runs", noted)
    book = PriceBook.of(QUOTE, {2: 150})
    for _ in range(2):
        for layer in range(6):
            book.mean(layer)
    assert len(asked) == 4, "layers 0, 1 and 3; layer 2, with its bound; what is not named; layer 5"
