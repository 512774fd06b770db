"""What a node sees of the swarm for one model, from adverts and its own books, as the market's advice wants
it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from market.answering import Answers
from market.ground import Bools, Floats
from market.own_order import giving_order, holder_key
from market.price import BasePrices
from market.quote_rows import quote_rows
from market.view import STRANGER, View, believed_demand, believed_prices, counted_replicas
from node.market.units import Units
from routing.advert_rows import Row
from routing.wire.advert import Advert
from routing.wire.quote import MAX_RUNS

EXPERT_BITS = 16
"""Of an expert's number within its layer, as on the wire."""

MOST_QUOTES = 256
"""Quotes that are read, those of the weightiest peers: a median of so many is as good as one of thousands."""


@dataclass(frozen=True)
class Known:
    """What a node knows by itself.

    Attributes:
        answers: which peers have answered this node, and which do not.
        bases: base prices by layer.
        floor, cap: per cent of the base price.
        served: pairs a day that receipts cover, by layer and expert.
        shares: of each layer's choices, by own use or plan; None without either.
    """

    answers: Answers
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
    weighed = [(known.answers.weight(row.advert.peer_id), row.advert) for row in holders]
    weighed.sort(key=lambda each: (-each[0], each[1].peer_id))
    replicas = units.least(_replicas(units, model_id, weighed, known.answers.answered))
    base = units.total(units.table({layer: _full(known.bases[layer], units) for layer in units.layers}))
    base /= np.diff(np.append(units.first_cell, len(units.cell_place)))  # of its cells, the mean
    unit, price, weight = _asked(units, model_id, weighed[:MOST_QUOTES])
    prices = believed_prices(unit, price, weight, base, floor=known.floor, cap=known.cap)
    shares = None if known.shares is None else units.total(units.table(known.shares))
    served = units.total(units.table(known.served))
    demand = believed_demand(served, held, replicas, shares=shares, claimed=prices / base)
    before = _before(units, model_id, weighed, held, own_id, clock)
    return View(replicas, prices, demand, float(sum(each for each, _ in weighed)), before)


def _replicas(
    units: Units, model_id: str, weighed: Sequence[tuple[float, Advert]], answered: Mapping[str, str]
) -> Floats:
    """[n_layers, width], replicas of each cell. Of who has answered in one network, one of each cell: the
    others count as strangers, for one machine can have many names and answer by each."""
    networks: dict[str, list[tuple[float, Advert]]] = {}
    heard: list[tuple[float, Advert]] = []
    for weight, advert in weighed:
        network = answered.get(advert.peer_id)
        if network is None:
            heard.append((weight, advert))
        else:
            networks.setdefault(network, []).append((1.0, advert))
    there = _holders(units, model_id, [each[0] for each in networks.values() if len(each) == 1])
    claimed = _holders(units, model_id, heard)
    for together in networks.values():
        if len(together) > 1:
            holders = _holders(units, model_id, together)
            once = np.minimum(holders, 1.0)
            there += once
            claimed += STRANGER * (holders - once)
    return counted_replicas(there, claimed)


def _holders(units: Units, model_id: str, weighed: Sequence[tuple[float, Advert]]) -> Floats:
    """[n_layers, width], holders of each cell, by weight."""
    edges = np.zeros((len(units.layers), units.width + 1))
    layers = np.array(units.layers)
    for weight, advert in weighed:
        for told in advert.slices:
            if told.model_id != model_id:
                continue
            for first_layer, last_layer, runs in told.experts:
                first, last = np.searchsorted(layers, (first_layer, last_layer + 1))
                for start, end in runs:
                    edges[first:last, min(start, units.width)] += weight
                    edges[first:last, min(end + 1, units.width)] -= weight
    counted: Floats = np.maximum(edges.cumsum(axis=1)[:, :-1].round(9), 0.0)
    return counted


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
        there = units.least(_holders(units, model_id, [(1.0, advert)])) > 0
        entries.append(mine[there[mine]])
        keys.append(holder_key(advert.peer_id))
        weights.append(weight)
    lengths = [len(each) for each in entries]
    unit = np.concatenate(entries)
    layers = np.array(units.layers, np.int64)
    # By their first cell: nodes number their units each in its own way, and must find one order.
    first = units.first_cell[unit]
    cell = (layers[units.cell_place[first]] << EXPERT_BITS) | units.cell_expert[first]
    place = giving_order(cell, np.repeat(np.array(keys, np.uint64), lengths), clock)
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
    layers, n = np.array(units.layers, np.int64), max(1, len(units.grains))
    found: list[npt.NDArray[np.int64]] = []
    prices: list[npt.NDArray[np.int64]] = []
    weights: list[Floats] = []
    for weight, advert in weighed:
        quote = advert.quote(model_id)
        if quote is None:
            continue
        for places, asked, run in quote_rows(quote, layers, units.width):
            of = unit_of[places, : len(asked)]
            named = (of >= 0) & (asked > 0)
            # A peer has one word about a unit in each run. Ordered by layer, run and unit.
            order = (np.arange(len(of))[:, None] * MAX_RUNS + run) * n + of
            entries, at = np.unique(order[named], return_index=True)
            found.append(entries % n)
            prices.append(np.broadcast_to(asked, of.shape)[named][at])
            weights.append(np.full(len(entries), weight))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    return np.concatenate(found), np.concatenate(prices).astype(np.float64), np.concatenate(weights)


def _full(value: int, units: Units) -> Floats:
    return np.full(units.width, float(value))
