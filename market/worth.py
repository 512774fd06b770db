"""What cells are worth to one device: need, income, and what goes together. Pure, over whole arrays.

Need and income are so far apart that need decides first. What was not drawn for (rule 5 of `market.advice`)
counts next to nothing; of what is held, what may not be given up now counts as if nobody else had it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from market.ground import Bools, Floats, Ground
from market.own_order import Draws
from market.view import View

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
"""Nodes that are to take one replica that is needed, on average: one in seven times nobody does, and the next
round of draws comes."""

CALM = 0.5
"""The same of replicas that only income asks for: half of what lacks comes in a round, so that no more come
than stay."""

CAUTION = 0.5
"""Share of the holders that are too many who may give a unit up in one round of draws."""

OWN_TASTE = 0.25
"""How much less a node expects to earn by what its own draws do not favour."""

BETWEEN_EQUALS = 0.08
"""What own draws and nearness count among units that are needed alike. Less than STEADY, so that nothing is
given up for it."""

LEFTOVER = 1e-6
"""What was not drawn for counts that much: it fills free room, and displaces nothing."""


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
class Worth:
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
    def of(cls, ground: Ground, view: View, means: Means, held: Bools, draws: Draws, floor: int) -> Worth:
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
    asked_for = np.maximum((fair - view.replicas) / over**2, 0.0)
    missing = np.maximum(asked_for * CALM, (floor - view.replicas) * EAGER)
    rate = 1 / (view.servers + 1)
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
