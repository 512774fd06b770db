"""A quote laid out over a model's cells, all runs of a layer at once: a large one has five thousand runs, and
there may be thousands of quotes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from routing.wire.quote import Quote

IntArray = npt.NDArray[np.int64]


def quote_rows(quote: Quote, layers: IntArray, width: int) -> Iterator[tuple[slice, IntArray, IntArray]]:
    """Layers with the same runs together.

    Args:
        quote: free of faults (`quote_fault`).
        layers: numbers of the model's, ascending.
        width: experts of the widest; what a quote says of more is left out.

    Returns:
        Which of `layers`; of each expert from 0 on what a pair costs, 0 where that is not named; its run's
        number.
    """
    prices = np.array([0, *quote.prices], np.int64)
    for first, last, numbers in quote.layers:
        begin, end = np.searchsorted(layers, (first, last + 1))
        if begin == end:
            continue
        more, which = np.divmod(np.array(numbers, np.int64), len(prices))
        lengths = np.diff(np.minimum(np.cumsum(more + 1), width), prepend=0)
        asked = np.repeat(prices[which], lengths)
        yield slice(int(begin), int(end)), asked, np.repeat(np.arange(len(lengths)), lengths)
