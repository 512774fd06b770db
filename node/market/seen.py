"""What a node sees of the swarm for one model, from adverts and its own books, as the market's advice wants
it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from market.ground import Bools, Floats
from market.own_order import giving_order, holder_key
from market.price import BasePrices
from market.view import View, believed_demand, believed_prices, counted_replicas
from node.market.units import Units
from routing.advert_rows import Row
from routing.wire.advert import Advert

MOST_QUOTES = 256
"""Quotes that are read, those of the weightiest peers: a median of so many is as good as one of thousands."""

ANSWERED = 1.0
"""Weight of a peer that has answered this node."""


@dataclass(frozen=True)
class Known:
    """What a node knows by itself.

    Attributes:
        weight: how far a peer counts, 0 to 1, by its id.
        bases: base prices by layer.
        floor, cap: per cent of the base price.
        served: pairs a day that receipts cover, by layer and expert.
        shares: of each layer's choices, by own use or plan; None without either.
    """

    weight: Callable[[str], float]
    bases: BasePrices
    floor: int
    cap: int
    served: Mapping[int, Floats]
    shares: Mapping[int, Floats] | None


def view_of(
    units: Units, model_id: str, holders: Sequence[Row], held: Bools, known: Known, own_id: str, clock: float
) -> View:
    """The swarm, this node left out.

    Args:
        holders: adverts of others that serve anything of the model.
        held: [n], what this node serves.
        clock: unix time.
    """
    weighed = [(known.weight(row.advert.peer_id), row.advert) for row in holders]
    weighed.sort(key=lambda each: (-each[0], each[1].peer_id))
    replicas = units.least(_replicas(units, model_id, weighed))
    base = units.total(units.table({layer: _full(known.bases[layer], units) for layer in units.layers}))
    base /= np.diff(np.append(units.first_cell, len(units.cell_place)))  # of its cells, the mean
    unit, price, weight = _asked(units, model_id, weighed[:MOST_QUOTES])
    prices = believed_prices(unit, price, weight, base, floor=known.floor, cap=known.cap)
    shares = None if known.shares is None else units.total(units.table(known.shares))
    served = units.total(units.table(known.served))
    demand = believed_demand(served, held, replicas, shares=shares, claimed=prices / base)
    before = _before(units, model_id, weighed, held, own_id, clock)
    return View(replicas, prices, demand, float(sum(each for each, _ in weighed)), before)


def _replicas(units: Units, model_id: str, weighed: Sequence[tuple[float, Advert]]) -> Floats:
    """[n_layers, width], replicas of each cell."""
    edges = np.zeros((2, len(units.layers), units.width + 1))  # of who has answered, and of who has not
    layers = np.array(units.layers)
    for weight, advert in weighed:
        kind = edges[int(weight < ANSWERED)]
        for told in advert.slices:
            if told.model_id != model_id:
                continue
            for first_layer, last_layer, runs in told.experts:
                first, last = np.searchsorted(layers, (first_layer, last_layer + 1))
                for start, end in runs:
                    kind[first:last, min(start, units.width)] += weight
                    kind[first:last, min(end + 1, units.width)] -= weight
    answered, heard = np.maximum(edges.cumsum(axis=2)[:, :, :-1].round(9), 0.0)
    return counted_replicas(answered, heard)


def _before(
    units: Units,
    model_id: str,
    weighed: Sequence[tuple[float, Advert]],
    held: Bools,
    own_id: str,
    clock: float,
) -> Floats:
    """[n], holders by weight that come before this node in giving up what it holds; 0 for the rest."""
    mine = np.flatnonzero(held)
    entries, keys, weights = [mine], [holder_key(own_id)], [0.0]
    for weight, advert in weighed:
        # Of a unit of several cells, who holds one of them counts as little as who holds none.
        theirs = mine[
            _replicas(units, model_id, [(1.0, advert)])[units.cell_place, units.cell_expert][
                units.first_cell[mine]
            ]
            > 0
        ]
        entries.append(theirs)
        keys.append(holder_key(advert.peer_id))
        weights.append(weight)
    lengths = [len(each) for each in entries]
    unit = np.concatenate(entries)
    place = giving_order(unit, np.repeat(np.array(keys, np.uint64), lengths), clock)
    own_place = np.zeros(len(held), np.intp)
    own_place[mine] = place[: len(mine)]
    is_before = place < own_place[unit]
    found = np.bincount(unit[is_before], np.repeat(weights, lengths)[is_before], len(held))
    return found.astype(np.float64)


def _asked(
    units: Units, model_id: str, weighed: Sequence[tuple[float, Advert]]
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Entries of unit, price and weight: for each of a unit's cells that a quote names."""
    unit_of = np.full((len(units.layers), units.width), -1, np.int64)
    counts = np.diff(np.append(units.first_cell, len(units.cell_place)))
    unit_of[units.cell_place, units.cell_expert] = np.repeat(np.arange(len(units.grains)), counts)
    found: list[npt.NDArray[np.int64]] = []
    prices: list[int] = []
    weights: list[float] = []
    for weight, advert in weighed:
        quote = advert.quote(model_id)
        if quote is None:
            continue
        for place, layer in enumerate(units.layers):
            for first, last, price in quote.runs(layer):
                named = np.unique(unit_of[place, first : last + 1])  # a peer has one word about a unit
                found.append(named[named >= 0])
                prices.append(price)
                weights.append(weight)
    lengths = [len(each) for each in found]
    flat = np.concatenate(found) if found else np.zeros(0, np.int64)
    return flat, np.repeat(np.array(prices, np.float64), lengths), np.repeat(np.array(weights), lengths)


def _full(value: int, units: Units) -> Floats:
    return np.full(units.width, float(value))
