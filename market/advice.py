"""Which cells a device should hold, for the swarm's need and its own income. Pure, over whole arrays.

Every node decides for itself, from adverts and what it knows of its own; nobody tells it what others are
about to do.

Rules
1. Need comes first: a unit that fewer than the replica floor of others hold, the rarest first. Nothing that
   is needed here is given up but for what is needed more.
2. Then income for each byte: believed price times the share of demand that would come here. A device that can
   send little earns little by what is asked for most: that share counts only as far as its uplink goes.
3. A layer that is whole here earns WHOLE times what its cells do; else the cells of a group (market.affinity)
   earn GROUP times as much together, and more where much of their layer is held: fewer servers a token. So
   between units that are needed alike, too.
4. What is held counts STEADY more than what is not: nobody reshuffles for a trifle.
5. What is to be taken is drawn, by own draws, in proportion to what the swarm lacks of it and to how many
   could take it: a gap of one replica is not filled by a hundred nodes at once. Only room that is free takes
   what was not drawn; there, own draws make the order differ from node to node. Giving up goes by turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from market.ground import Bools, Floats, Ground
from market.own_order import Draws
from market.scarcity import REPLICA_FLOOR
from market.view import View
from market.worth import Means, Worth

__all__ = ["REPLICA_FLOOR", "Advice", "Means", "Reason", "advise"]

POORER = 3
"""Layers more, each for less than parts would bring in the same room, after which no more are tried."""


class Reason(IntEnum):
    """What a unit is held for."""

    NONE = 0
    NEED = 1
    LAYER = 2
    GROUP = 3
    INCOME = 4


@dataclass(frozen=True, eq=False)
class Advice:
    """What to hold.

    Attributes:
        cells: [n]; what is held now if nothing is worth the change.
        reason: [n], `Reason`.
        income: [n], µcr a day that each unit would earn here.
        needed: [n], fewer others than the floor hold it.
        changes: whether it is another set than now.
        hurry: something that is needed is taken, or nothing is given up.
    """

    cells: Bools
    reason: npt.NDArray[np.int8]
    income: Floats
    needed: Bools
    changes: bool
    hurry: bool


def advise(
    ground: Ground, view: View, means: Means, held: Bools, draws: Draws, *, floor: int = REPLICA_FLOOR
) -> Advice:
    """What a device should hold, given what others do.

    Args:
        held: [n], what it holds now; where that is more than its memory, something goes.
        draws: `own_draws` of this time.
        floor: replicas that every unit is to have.
    """
    worth = Worth.of(ground, view, means, held, draws, floor)
    if ground.size.sum() <= means.memory:
        cells = np.ones(len(ground), np.bool_)
        layers = np.ones(ground.n_layers, np.bool_)
    else:
        cells, layers = _choose(ground, worth, means.memory)
        if _worse(ground, worth, cells, held, means.memory):
            cells, layers = held.copy(), _whole(ground, held)
    taken, given = cells & ~held, held & ~cells
    needed = view.replicas < floor
    return Advice(
        cells=cells,
        reason=_reasons(ground, worth, cells, layers, needed),
        income=worth.income,
        needed=needed,
        changes=bool(taken.any() or given.any()),
        hurry=bool((taken & needed).any() or not given.any() or not held.any()),
    )


def _choose(ground: Ground, worth: Worth, memory: int) -> tuple[Bools, Bools]:
    """Whole layers, as many as are worth more than parts in the same room, and parts.

    Returns:
        units; which layers were taken whole.
    """
    order = np.argsort(-worth.key, kind="stable")
    layer, size, key = ground.layer[order], ground.size[order], worth.key[order]
    best_first = np.argsort(-worth.whole / ground.layer_size, kind="stable")
    taken = np.zeros(ground.n_layers, np.bool_)
    best = taken.copy()
    most, room, value, poorer = -1.0, float(memory), 0.0, 0
    for each in (-1, *best_first):
        if each >= 0:
            if ground.layer_size[each] > room:
                continue
            taken[each] = True
            room -= ground.layer_size[each]
            value += worth.whole[each]
        left = ~taken[layer]
        sizes = size[left]
        fits = int(np.searchsorted(np.cumsum(sizes), room, "right"))
        total = value + float((key[left][:fits] * sizes[:fits]).sum())
        if total > most:
            most, best, poorer = total, taken.copy(), 0
        else:
            poorer += 1
            if poorer == POORER:
                break
    cells = best[ground.layer]
    room = memory - ground.layer_size[best].sum()
    rest = order[~best[layer]]
    return _fill(ground, cells, rest, room), best


def _fill(ground: Ground, cells: Bools, order: npt.NDArray[np.intp], room: float) -> Bools:
    """As many units as fit, in this order; what is too large is left out, not waited for."""
    while len(order):
        sizes = ground.size[order]
        fits = int(np.searchsorted(np.cumsum(sizes), room, "right"))
        cells[order[:fits]] = True
        room -= float(sizes[:fits].sum())
        order = order[fits + 1 :]
        order = order[ground.size[order] <= room]
    return cells


def _worse(ground: Ground, worth: Worth, cells: Bools, held: Bools, memory: int) -> bool:
    """Whether what is held is as good; it may be, as the choice is made greedily."""
    if float(ground.size[held].sum()) > memory:
        return False
    return _value(ground, worth, cells) <= _value(ground, worth, held) * (1 + 1e-9)


def _value(ground: Ground, worth: Worth, cells: Bools) -> float:
    whole = _whole(ground, cells)
    parts = cells & ~whole[ground.layer]
    return float(worth.whole[whole].sum() + (worth.key * ground.size)[parts].sum())


def _whole(ground: Ground, cells: Bools) -> Bools:
    """[n_layers]"""
    whole: Bools = np.logical_and.reduceat(cells, ground.first)
    return whole


def _reasons(
    ground: Ground, worth: Worth, cells: Bools, layers: Bools, needed: Bools
) -> npt.NDArray[np.int8]:
    groups = np.logical_and.reduceat(cells[ground.by_group], ground.group_first)
    several = np.bincount(ground.group, minlength=ground.n_groups) > 1
    reason = np.full(len(ground), Reason.INCOME, np.int8)
    reason[(groups & several)[ground.group]] = Reason.GROUP
    reason[layers[ground.layer]] = Reason.LAYER
    reason[needed] = Reason.NEED
    reason[~cells] = Reason.NONE
    return reason
