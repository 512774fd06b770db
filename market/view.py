"""What a node believes of the swarm: replicas, prices, demand; how far others' word counts. Pure.

1. A holder that has answered this node counts as a replica. Those that never did count little, and only where
   fewer than the replica floor have answered: there is no other word. Beside enough that answered, claims are
   nothing (sybil capacity). Those that were asked and do not answer count nothing (`market.answering`).
2. A price is believed within floor and cap of the base price, and by the weighted median of those who ask it.
   The word of one holder alone moves it LONE_CLAIM of the way at most.
3. Demand is what this node was paid for by signed receipts. Of cells that it does not hold it goes by its own
   backbone's heat; without one by what others ask, which moves it CLAIM_BOUND-fold at most (fake scarcity).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from market.ground import Bools, Floats, Ints
from market.scarcity import REPLICA_FLOOR

STRANGER = 0.15
"""Weight of a holder that has not answered this node yet: ten such identities, and the one server that they
belong to, do not make up a replica floor. Else it could have a cell for itself."""

MOST_CLAIMED = 10 * STRANGER
"""What all claims about a unit come to at most, however many there are, and however many names a network has:
less than the replica floor beside one server. Whoever is asked, and answers from a network of its own, counts
wholly."""

LONE_CLAIM = 0.25
"""How far one holder's price moves what is believed, from the base price towards what it asks."""

SURE_HOLDERS = 3.0
"""Holders, by weight, whose median price is believed wholly: as many as the replica floor."""

CLAIM_BOUND = 4.0
"""Times that demand which is only claimed, by prices, may be above or below the demand of what this node
holds."""

SURE_PAIRS = 100.0
"""Pairs of a cell after which what this node was paid for counts as much as what it expected."""


@dataclass(frozen=True, eq=False)
class View:
    """The swarm as one node sees it, itself left out.

    Attributes:
        replicas: [n], others that hold each unit, as they count (`counted_replicas`).
        price: [n], µcr a pair.
        demand: [n], pairs a day, of the whole swarm.
        servers: others that hold anything of the model, by weight.
        before: [n], other holders, by weight, that may give each unit up before this node (`giving_order`);
            None: it is left to own draws.
    """

    replicas: Floats
    price: Floats
    demand: Floats
    servers: float
    before: Floats | None = None


def counted_replicas(answered: Floats, heard: Floats | float) -> Floats:
    """How many replicas there are, as far as can be known.

    Args:
        answered: holders that have answered this node. heard: those that have not, by weight.
    """
    claimed: Floats = np.minimum(answered + np.minimum(heard, MOST_CLAIMED), float(REPLICA_FLOOR))
    return np.maximum(answered, claimed)


def believed_prices(
    unit: Ints, price: Floats, weight: Floats, base: Floats, *, floor: float, cap: float
) -> Floats:
    """[n], what a pair of each unit is worth, by everybody's quotes.

    Args:
        unit: [entries], what each quote is for; price: µcr; weight: of the holder that asks it.
        base: [n], base prices; nothing else is known of a unit that nobody quotes.
        floor, cap: per cent of the base price.
    """
    n = len(base)
    entries = np.flatnonzero(weight > 0)
    unit, price, weight = unit[entries], price[entries], weight[entries]
    order = np.lexsort((price, unit))
    unit, price, weight = unit[order], price[order], weight[order]
    total = np.bincount(unit, weight, n)
    found = base.astype(np.float64)
    if len(unit):
        starts = np.flatnonzero(np.diff(unit, prepend=-1))
        counts = np.diff(np.append(starts, len(unit)))
        summed = np.cumsum(weight)
        before = np.repeat(summed[starts] - weight[starts], counts)
        # The first entry of each unit at which half of the weight is reached.
        reached = np.where(summed - before >= total[unit] / 2 - 1e-12, np.arange(len(unit)), len(unit))
        found[unit[starts]] = price[np.minimum.reduceat(reached, starts)]
    found = np.clip(found, base * (floor / 100), base * (cap / 100))
    share = (total - 1) * (1 - LONE_CLAIM) / (SURE_HOLDERS - 1) + LONE_CLAIM
    believed: Floats = base + (found - base) * np.clip(share, np.minimum(total, 1) * LONE_CLAIM, 1.0)
    return believed


def believed_demand(
    served: Floats,
    held: Bools,
    replicas: Floats,
    *,
    shares: Floats | None = None,
    claimed: Floats | None = None,
) -> Floats:
    """[n], pairs a day of the whole swarm.

    Args:
        served: [n], pairs a day that signed receipts cover.
        replicas: [n], others that hold each unit, by weight.
        shares: [n], of a layer's choices, by this node's own backbone or plan; each layer sums to 1.
        claimed: [n], believed price over base price, where there are no shares.

    Returns:
        Only proportions mean anything while nothing has been served.
    """
    own = served * (replicas + 1)
    if shares is not None:
        known = float(shares[held].sum())
        layer_total = float(own[held].sum()) / known if known > 0 else 0.0
        expected = shares * (layer_total if layer_total > 0 else len(shares))
    else:
        each = float(served[held].mean()) if held.any() else 0.0
        word = np.ones(len(held)) if claimed is None else np.clip(claimed, 1 / CLAIM_BOUND, CLAIM_BOUND)
        expected = (each if each > 0 else 1.0) * word * np.maximum(replicas, 1.0)
    if not served[held].any():
        return expected
    sure = np.where(held, served / (served + SURE_PAIRS), 0.0)
    # What is held and little asked for is known to be so: the more is served in all, the surer.
    lately = float(served[held].mean())
    sure = np.where(held, np.maximum(sure, lately / (lately + SURE_PAIRS)), 0.0)
    demand: Floats = sure * own + (1 - sure) * expected
    return demand
