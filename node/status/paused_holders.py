"""Who has cells of a model and is paused: what it served before, by its own adverts. Pure.

A process that served something, and whose advert names nothing any more while it lives on, is paused: what it
serves is chosen when it starts, and only another choice of something takes its place. Who was paused before
this node heard of it is not known to hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from node.status.facts import Runs
from routing.wire.advert import Advert
from routing.wire.holdings import Slice

MAX_LOOKED_AT = 256
"""Paused peers that are looked through: adverts are free, and this is done each time somebody looks."""


@dataclass(frozen=True, slots=True)
class _Last:
    """What a process has served last."""

    instance: int
    slices: Sequence[Slice]


class PausedHolders:
    """Remembers of each peer whose advert lives what it has served last."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._paused: set[str] = set()

    def observe(self, adverts: Iterable[Advert]) -> None:
        """All adverts that live, by and by."""
        last: dict[str, _Last] = {}
        paused: set[str] = set()
        for advert in adverts:
            if advert.slices:
                last[advert.peer_id] = _Last(advert.instance, advert.slices)
                continue
            before = self._last.get(advert.peer_id)
            if before is not None and before.instance == advert.instance:
                last[advert.peer_id] = before
                paused.add(advert.peer_id)
        self._last, self._paused = last, paused

    def holders(self, model_id: str, missing: Runs) -> dict[str, int]:
        """Paused peers that have some of these cells, and how many, those with most first."""
        wanted = _bits(missing)
        found: dict[str, int] = {}
        for peer_id in sorted(self._paused)[:MAX_LOOKED_AT]:
            held = dict.fromkeys(wanted, 0)
            for each in self._last[peer_id].slices:
                if each.model_id == model_id:
                    for layer, bits in _bits(each.experts, wanted).items():
                        held[layer] |= bits
            if count := sum((bits & wanted[layer]).bit_count() for layer, bits in held.items()):
                found[peer_id] = count
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _bits(runs: Runs, layers: Collection[int] | None = None) -> dict[int, int]:
    """Experts as bits, by layer.

    Args:
        layers: the only ones that matter; a peer may tell of any.
    """
    bits: dict[int, int] = {}
    for first, last, experts in runs:
        mask = 0
        for start, end in experts:
            mask |= (1 << end + 1) - (1 << start)
        inside = (
            range(first, last + 1) if layers is None else (each for each in layers if first <= each <= last)
        )
        for layer in inside:
            bits[layer] = bits.get(layer, 0) | mask
    return bits
