"""What a home set would cost in trips, worked out from heat and worth without running anything. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.home.heat import Heat
from node.home.home_set import HomeSet, Shapes
from node.home.worth import Worth

TripShare = Callable[[int, HomeSet], float | None]
"""Share of the passes in which a layer that is only partly at home waits; None: not known."""


@dataclass(frozen=True)
class Estimator:
    """Everything that is known of a model's choices and guesses.

    Attributes:
        heat: which experts are chosen.
        worth: what layers are worth for guessing; None where nothing is guessed.
        n_used: experts that a token uses in a layer.
        trip_share: better knowledge of trips than `heat` gives.
    """

    shapes: Shapes
    heat: Heat
    worth: Worth | None
    n_used: int
    trip_share: TripShare = lambda layer, home: None

    def missing(self, home: HomeSet) -> dict[int, float]:
        """Share of each layer's choices that is not at home."""
        held = dict(home.bits)
        found = {}
        for layer, shape in self.shapes.items():
            bits = held.get(layer, 0)
            if not bits:
                found[layer] = 1.0
            elif bits.bit_count() == shape.n_experts:
                found[layer] = 0.0
            else:
                found[layer] = max(0.0, 1 - float(self.heat.shares(layer)[home.mask(shape)].sum()))
        return found

    def tokens_per_pass(self, home: HomeSet) -> float:
        """1 where nothing is guessed, which takes something at home."""
        return 1.0 if self.worth is None or not home else self.worth.tokens_per_pass(self.missing(home))

    def waits(self, home: HomeSet) -> float:
        """Share of a pass's calls that wait."""
        return self._waits(home, self.missing(home))

    def trips(self, home: HomeSet) -> float:
        """Trips per layer and token: 1 is a trip for each layer of each token."""
        missing = self.missing(home)
        tokens = 1.0 if self.worth is None or not home else self.worth.tokens_per_pass(missing)
        return self._waits(home, missing) / tokens

    def _waits(self, home: HomeSet, missing: Mapping[int, float]) -> float:
        rows = 1 if self.worth is None else 1 + self.worth.drafts
        held = dict(home.bits)
        waits = calls = 0.0
        for layer, shape in self.shapes.items():
            calls += shape.n_calls
            bits = held.get(layer, 0)
            if not bits:
                waits += shape.n_calls
            elif bits.bit_count() < shape.n_experts:
                known = self.trip_share(layer, home)
                if known is None:  # as if choices were independent, which makes it a little too dear
                    known = 1 - (1 - missing[layer]) ** (self.n_used * rows)
                waits += shape.n_calls * known
        return waits / calls
