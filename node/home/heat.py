"""How often each expert is chosen: noted by the decoding thread, added up when there is time, faded. Pure.

1. The decoding thread only appends (`HeatLog.note`): a tenth of a microsecond a layer. `Heat.add` does the
   rest.
2. Old choices fade: after HALF_LIFE tokens they count half. Texts change, and so does what is hot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from node.home.home_set import Shapes

HALF_LIFE = 20_000
"""Tokens after which a choice counts half: some dozens of answers."""

LOG_LENGTH = 16_384
"""Calls that wait to be added up at most: 300 tokens of 48 layers, and 4 MB. Nobody needs more than a
sample."""


class HeatNumbers(msgspec.Struct, frozen=True):
    """What is kept between runs.

    Attributes:
        tokens: that were counted, faded like the choices.
        layers: choices of each expert, by layer.
    """

    tokens: float
    layers: dict[int, tuple[float, ...]]


class HeatLog:
    """Choices on their way from the decoding thread. `note` and `drain` may run on different threads."""

    def __init__(self) -> None:
        self._noted: deque[tuple[int, npt.NDArray[np.int32]]] = deque(maxlen=LOG_LENGTH)

    def note(self, layer: int, index: int, ids: npt.NDArray[np.int32]) -> None:
        """A call's chosen experts, [n_tokens, n_used]. They must not change afterwards."""
        if index == 0:  # chunk experts follow from the others
            self._noted.append((layer, ids))

    def drain(self) -> list[tuple[int, npt.NDArray[np.int32]]]:
        """Everything noted since the last time."""
        noted = []
        while self._noted:
            noted.append(self._noted.popleft())
        return noted


class Heat:
    """Faded counts of a model's choices.

    Args:
        numbers: what `numbers` gave in an earlier run; what does not fit the model is left out.
    """

    def __init__(self, shapes: Shapes, numbers: HeatNumbers | None = None) -> None:
        self._shapes = shapes
        self.tokens = 0.0
        self._counts = {layer: np.zeros(shape.n_experts) for layer, shape in shapes.items()}
        if numbers is not None and _makes_sense(numbers):
            self.tokens = numbers.tokens
            for layer, counts in numbers.layers.items():
                if layer in shapes and len(counts) == shapes[layer].n_experts:
                    self._counts[layer][:] = counts

    def add(self, noted: list[tuple[int, npt.NDArray[Any]]]) -> None:
        """Add what was chosen; fades what came before by as much as the first layer saw tokens."""
        first = min(self._shapes)
        tokens = sum(len(ids) for layer, ids in noted if layer == first)
        if tokens:
            kept = 0.5 ** (tokens / HALF_LIFE)
            for counts in self._counts.values():
                counts *= kept
            self.tokens = self.tokens * kept + tokens
        for layer, ids in noted:
            self._counts[layer] += np.bincount(ids.ravel(), minlength=self._shapes[layer].n_experts)

    def copy(self) -> Heat:
        """As it is now, for another thread."""
        twin = Heat(self._shapes)
        twin.tokens = self.tokens
        twin._counts = {layer: counts.copy() for layer, counts in self._counts.items()}
        return twin

    def shares(self, layer: int) -> npt.NDArray[np.float64]:
        """[n_experts], each expert's share of a layer's choices; all alike where nothing was counted."""
        counts = self._counts[layer]
        total = float(counts.sum())
        if total <= 0:
            return np.full(len(counts), 1 / len(counts))
        shares: npt.NDArray[np.float64] = counts / total
        return shares

    def numbers(self) -> HeatNumbers:
        """To be kept."""
        return HeatNumbers(
            round(self.tokens, 1),
            {layer: tuple(np.round(counts, 2).tolist()) for layer, counts in self._counts.items()},
        )


def merged(shapes: Shapes, parts: Mapping[Heat, float]) -> Heat:
    """Shares of several counts together.

    Args:
        parts: counts, and how much each of them is to weigh against the others, in tokens.
    """
    total = Heat(shapes)
    for layer in shapes:
        total._counts[layer] = sum(
            (heat.shares(layer) * weight for heat, weight in parts.items() if weight > 0),
            np.zeros(shapes[layer].n_experts),
        )
    total.tokens = sum(parts.values())
    return total


def _makes_sense(numbers: HeatNumbers) -> bool:
    # Written so that a NaN fails each comparison.
    return numbers.tokens >= 0 and all(
        all(0 <= count < 1e15 for count in counts) for counts in numbers.layers.values()
    )
