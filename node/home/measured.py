"""What a home set cost when it was tried on text, and the arithmetic of trying it. Pure.

A try is greedy decoding, replayed: `chosen` says which experts each token of the text needed, `right` how
many guesses in a row would have been right from a place on. Trips are counted as in a swarm: a pass waits
once for each call that has an expert, of any of its rows, elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from node.home.home_set import HomeSet, Shapes


@dataclass(frozen=True, slots=True)
class Measured:
    """A home set's figures.

    Attributes:
        tokens: that came out, of so many passes.
        drafted, accepted: guesses that passes verified; those that were right.
        trips, calls: waits, and the calls (layers) of a pass.
        plain_trips: waits for the same tokens without guesses.
    """

    tokens: int
    passes: int
    drafted: int
    accepted: int
    trips: int
    calls: int
    plain_trips: int

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 1.0

    @property
    def trips_per_layer_token(self) -> float:
        """1 is a trip for each layer of each token."""
        return self.trips / (self.calls * self.tokens) if self.tokens else 0.0

    @property
    def plain(self) -> float:
        """The same without guesses."""
        return self.plain_trips / (self.calls * self.tokens) if self.tokens else 0.0


@dataclass(frozen=True)
class Chosen:
    """The experts that the tokens of several texts chose.

    Attributes:
        layers: by layer, [n_texts, n_tokens, n_used]; chunk experts are left out, as they follow from the
            others: their calls wait when the layer's first call does.
        lengths: tokens of each text; those beyond count nothing.
    """

    layers: Mapping[int, npt.NDArray[np.int32]]
    lengths: Sequence[int]

    @property
    def n_used(self) -> int:
        """The most that a token uses in a layer."""
        return max(int(ids.shape[-1]) for ids in self.layers.values())

    def elsewhere(self, home: HomeSet, shapes: Shapes) -> dict[int, npt.NDArray[np.bool_]]:
        """By layer that is not whole: [n_texts, n_tokens], does a token need an expert that is not at
        home."""
        found: dict[int, npt.NDArray[np.bool_]] = {}
        for layer, ids in self.layers.items():
            mask = home.mask(shapes[layer])
            if not mask.all():
                found[layer] = np.logical_not(mask[ids].all(axis=-1))
        return found

    def waits(self, layer: int, home: HomeSet, shapes: Shapes, rows: int) -> float:
        """Share of passes of so many rows that wait for a layer, over all places where one could start."""
        away = self.elsewhere(home, shapes).get(layer)
        if away is None:
            return 0.0
        waits = places = 0
        for text, length in enumerate(self.lengths):
            if length < rows:
                continue
            before = np.concatenate(([0], np.cumsum(away[text, :length])))
            waits += int((before[rows:] > before[:-rows]).sum())
            places += length - rows + 1
        return waits / places if places else 1.0

    def counts(self, layer: int, n_experts: int) -> npt.NDArray[np.int64]:
        """[n_experts], how often each was chosen."""
        ids = self.layers[layer]
        used = [ids[text, :length].ravel() for text, length in enumerate(self.lengths)]
        return np.bincount(np.concatenate(used), minlength=n_experts)


class Replay:
    """Counts the passes of one home set over the texts."""

    def __init__(self, chosen: Chosen, home: HomeSet, shapes: Shapes) -> None:
        self._away = chosen.elsewhere(home, shapes)
        self._shapes = shapes
        self._calls = sum(shape.n_calls for shape in shapes.values())
        self._tokens = self._passes = self._drafted = self._accepted = self._trips = self._plain = 0

    def add(self, text: int, place: int, drafts: int, right: int) -> None:
        """A pass over the token at a place and so many guesses after it, of which the first ones were right.

        Rows of wrong guesses are taken to choose as the right tokens there would.
        """
        self._passes += 1
        self._tokens += right + 1
        self._drafted += drafts
        self._accepted += right
        for layer, away in self._away.items():
            rows = away[text, place : place + drafts + 1]
            calls = self._shapes[layer].n_calls
            self._trips += calls * bool(rows.any())
            self._plain += calls * int(rows[: right + 1].sum())

    def measured(self) -> Measured:
        return Measured(
            self._tokens, self._passes, self._drafted, self._accepted, self._trips, self._calls, self._plain
        )
