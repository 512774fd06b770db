"""What a node serves, looked at again and again: when a better choice (`serving_choice`) is made. Pure.

A better choice must be one for a while before it is made, a while that differs from node to node and from
time to time. So the first who moves is seen by the others before they do, and a node that is started again
within it finds its cells still its own.
"""

from __future__ import annotations

from node.device.serving_choice import Choice, Counts, Servable, Why, draw, reconsider
from node.home.home_set import HomeSet, Shapes

GAP_PATIENCE = 10.0
"""Seconds at least, SPREAD times as many at most: a peer that is started again is back by then."""

BALANCE_PATIENCE = 900.0
"""The same where only replicas are better spread: no hurry, for what is in memory is given up for it."""

SPREAD = 4.0

NOTHING = HomeSet()


class Chooser:
    """What one node serves of one model, looked at again and again.

    Args:
        serving: what it served before, of an earlier run.

    Attributes:
        serving: what it is to serve.
        why: what it was chosen for.
        moves: how often it has changed its mind.
    """

    def __init__(self, budget: int, serving: HomeSet = NOTHING) -> None:
        self._budget = budget
        self._pending: tuple[Why, float, float] | None = None  # since when, until when
        self.serving = serving
        self.why = Why.FIRST
        self.moves = 0

    def look(self, now: float, servable: Servable, counts: Counts) -> bool:
        """Whether something else is to be served from now on.

        Args:
            now: seconds on a clock that does not go back.
            servable: what could be served; what of `serving` is not in it is not served any more.
        """
        before = self.serving
        kept = servable.of(before)
        while servable.n_bytes(kept) > self._budget:  # another budget than in the run before
            kept = _without_last(servable, kept)
        self.serving = kept
        if not kept:
            choice = Choice(servable, self._budget, counts, kept)
            choice.cover(may_drop=False)
            choice.fill()
            if choice.cells:
                self._change(choice.cells, Why.FIRST)
            return self.serving != before
        found = reconsider(servable, self._budget, counts, kept)
        if found is None:
            self._pending = None
            return kept != before
        cells, why = found
        if self._pending is None or (self._pending[0] is Why.BALANCE) is not (why is Why.BALANCE):
            self._pending = why, now, now + self._patience(servable.own_id, why)
        if now >= self._pending[2]:
            self._change(cells, why)
        return self.serving != before

    def adopt(self, cells: HomeSet, why: Why) -> None:
        """Serve what somebody else has chosen (node.market.advisor)."""
        self._change(cells, why)

    def _change(self, cells: HomeSet, why: Why) -> None:
        self._pending = None
        self.moves += 1
        self.serving, self.why = cells, why

    def _patience(self, own_id: str, why: Why) -> float:
        least = BALANCE_PATIENCE if why is Why.BALANCE else GAP_PATIENCE
        share = draw(own_id, "patience", self.moves) / (1 << 64)
        return least * (1 + (SPREAD - 1) * share)


def meanwhile(chosen: HomeSet, there: HomeSet, served: HomeSet, budget: int, shapes: Shapes) -> HomeSet:
    """What to serve while some of what is chosen has to be fetched: what of it is there, and parts of layers
    that were served before, as far as they have room beside it.

    Args:
        there: cells in files here. served: now. budget: bytes.
    """
    serving = chosen & there
    if serving == chosen:
        return serving
    room = budget - serving.n_bytes(shapes)
    for layer, bits in (served - chosen).bits:
        part = HomeSet.of_bits({layer: bits})
        if part.n_bytes(shapes) <= room:
            serving |= part
            room -= part.n_bytes(shapes)
    return serving


def _without_last(servable: Servable, cells: HomeSet) -> HomeSet:
    """Cells but for one grain: the last one of the layer that comes last in the peer's own order."""
    held = dict(cells.bits)
    layer = max(held, key=servable.place)
    last = next(grain for grain in reversed(servable.layers[layer].grains) if grain & held[layer])
    held[layer] &= ~last
    return HomeSet.of_bits(held)
