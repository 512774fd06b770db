"""Which cells a device should hold, for the swarm's need and its own income. Pure, over whole arrays.

Every node decides for itself, from adverts and what it knows of its own; nobody tells it what others are
about to do.

Rules
1. Need comes first: a unit that fewer than the replica floor of others hold, the rarest first. Nothing that
   is needed here is given up but for something rarer.
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
from market.view import View

REPLICA_FLOOR = 3
"""Live replicas that a cell is to have, whatever the demand: one may vanish, and one be slow."""

NEED_STEP = 4.0
"""How much more each replica less is worth: far more than STEADY."""

WHOLE = 2.0
"""Worth of a layer held whole against its cells one by one: the same memory saved two to three times as many
trips (design/round-trips.md), for one message, one vector back and no straggler."""

GROUP = 1.3
"""The same of a group: it saved a sixth of the messages; cells asked for more than this beyond their group's
mean get replicas of their own."""

NEARBY = 0.5
"""What a unit is worth more as all of its layer but it is held here, and in proportion: parts of one layer
are one message, as many parts of many layers are many."""

STEADY = 0.2
"""How much more income a change must bring, in each unit that is changed: twice the step of prices (9 %),
which noise moves by one."""

EAGER = 2.0
"""Nodes that are to take what one is missing of, on average: one in seven times nobody does, and the next
round of draws comes."""

CAUTION = 0.5
"""Share of the holders that are too many who may give a unit up in one round of draws."""

OWN_TASTE = 0.25
"""How much less a node expects to earn by what its own draws do not favour."""

BETWEEN_EQUALS = 0.08
"""What own draws and nearness count among units that are needed alike. Less than STEADY, so that nothing is
given up for it."""

POORER = 3
"""Layers more, each for less than parts would bring in the same room, after which no more are tried."""

LEFTOVER = 1e-6
"""What was not drawn for counts that much: it fills free room, and displaces nothing."""


class Reason(IntEnum):
    """What a unit is held for."""

    NONE = 0
    NEED = 1
    LAYER = 2
    GROUP = 3
    INCOME = 4


@dataclass(frozen=True)
class Means:
    """What a device can do.

    Attributes:
        memory: bytes that it may hold.
        uplink: pairs a day that it can answer; `math.inf` if that is not known.
    """

    memory: int
    uplink: float


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
    worth = _Worth.of(ground, view, means, held, draws, floor)
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


@dataclass(frozen=True, eq=False)
class _Worth:
    """What units are worth for each byte, together and alone. Need and income are kept apart until the end.

    Attributes:
        income: [n], µcr a day.
        key: [n], of a unit with what its group and layer add.
        whole: [n_layers], all of a layer, as a whole.
    """

    income: Floats
    key: Floats
    whole: Floats

    @classmethod
    def of(cls, ground: Ground, view: View, means: Means, held: Bools, draws: Draws, floor: int) -> _Worth:
        size = ground.size
        share = view.demand / (view.replicas + 1)
        fair = means.uplink * (size / means.memory)  # what the uplink can do for a unit if it does all alike
        over = np.maximum(share / fair, 1.0)
        income = view.price * share / over
        earned = income / over / size  # who is asked for more than it can send is late, and is asked less
        if not earned.any():
            earned = 1 / (view.replicas + 1) / size  # nothing is known: where fewest are
        kept = held & ~_may_give(view, draws, floor)
        need = np.maximum(NEED_STEP ** (floor - np.where(kept, 0.0, view.replicas)) - 1, 0.0)
        # More than all that income can be with every bonus, of a whole layer: need decides first.
        first = earned.max() * 4 * WHOLE * float(np.bincount(ground.layer).max())

        drawn = _drawn(ground, view, means, draws, over, floor)
        favour = 1 - 0.8 * draws.layers[ground.layer] - 0.2 * draws.groups[ground.group]  # above 0, at most 1
        near = (ground.by_layer(held * size) / ground.layer_size)[ground.layer]  # of its layer, held here
        liked = 1 - OWN_TASTE * (1 - favour)
        earned = earned * np.where(held, 1 + STEADY, liked) * (1 + NEARBY * near)
        need = need * first * np.where(held, 1 + STEADY, 1 + BETWEEN_EQUALS * (favour + near) / 2)

        unit, group, layer = (np.where(held | each, 1.0, LEFTOVER) for each in drawn)
        alone = unit * (earned + need)
        mates = ground.by_groups(group * earned * size) / ground.group_size * GROUP
        key = np.maximum(alone, group * (mates[ground.group] + need))
        whole = ground.by_layer(layer * (earned * WHOLE + need) * size)
        # Less than one unit that is needed: it only decides between equals.
        whole += BETWEEN_EQUALS * ground.least_by_layer(layer * need * size)
        return cls(income, key, whole)


def _drawn(
    ground: Ground, view: View, means: Means, draws: Draws, over: Floats, floor: int
) -> tuple[Bools, Bools, Bools]:
    """[n] each: drawn for as a unit, with its group, with its layer.

    Args:
        over: [n], how many times what this node's uplink can do for a unit would be asked of it, at least 1.
    """
    asked = view.price * view.demand
    supply = float((view.replicas * ground.size).sum()) + means.memory
    total = float(asked.sum())
    # As many replicas as make income for each byte alike, at the swarm's memory.
    fair = asked / ground.size * (supply / total) if total > 0 else np.zeros(len(ground))
    missing = np.maximum(np.maximum((fair - view.replicas) / over**2, floor - view.replicas), 0.0)
    rate = EAGER / (view.servers + 1)
    amount = missing * ground.size
    groups = ground.by_groups(amount) / ground.group_size
    layers = ground.by_layer(amount) / ground.layer_size
    return (
        draws.units < rate * missing,
        (draws.groups < rate * groups)[ground.group],
        (draws.layers < rate * layers)[ground.layer],
    )


def _may_give(view: View, draws: Draws, floor: int) -> Bools:
    """[n], what may be given up now, so that never, or hardly ever, too many holders do at once."""
    holders = view.replicas + 1
    spare = np.maximum(holders - floor, 0.0)
    may: Bools
    if view.before is not None:
        may = view.before < np.maximum(spare * CAUTION, 1.0)
    else:
        may = draws.units < CAUTION / holders * np.where(spare > 0, spare, 1 / holders)
    return may


def _choose(ground: Ground, worth: _Worth, memory: int) -> tuple[Bools, Bools]:
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


def _worse(ground: Ground, worth: _Worth, cells: Bools, held: Bools, memory: int) -> bool:
    """Whether what is held is as good; it may be, as the choice is made greedily."""
    if float(ground.size[held].sum()) > memory:
        return False
    return _value(ground, worth, cells) <= _value(ground, worth, held) * (1 + 1e-9)


def _value(ground: Ground, worth: _Worth, cells: Bools) -> float:
    whole = _whole(ground, cells)
    parts = cells & ~whole[ground.layer]
    return float(worth.whole[whole].sum() + (worth.key * ground.size)[parts].sum())


def _whole(ground: Ground, cells: Bools) -> Bools:
    """[n_layers]"""
    whole: Bools = np.logical_and.reduceat(cells, ground.first)
    return whole


def _reasons(
    ground: Ground, worth: _Worth, cells: Bools, layers: Bools, needed: Bools
) -> npt.NDArray[np.int8]:
    groups = np.logical_and.reduceat(cells[ground.by_group], ground.group_first)
    several = np.bincount(ground.group, minlength=ground.n_groups) > 1
    reason = np.full(len(ground), Reason.INCOME, np.int8)
    reason[(groups & several)[ground.group]] = Reason.GROUP
    reason[layers[ground.layer]] = Reason.LAYER
    reason[needed] = Reason.NEED
    reason[~cells] = Reason.NONE
    return reason
