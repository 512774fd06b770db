"""What `panal market advise` tells: what to hold, why, what it would earn, what the swarm lacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from market.advice import Advice, Reason
from market.ground import Bools
from market.view import View
from node.market.units import Units

REASONS = {
    Reason.NEED: "too few others hold it",
    Reason.LAYER: "the whole layer here saves messages",
    Reason.GROUP: "used together",
    Reason.INCOME: "it earns",
}


@dataclass(frozen=True)
class LayerAdvice:
    """What to hold of a layer.

    Attributes:
        cells, held: to hold, and held now. of: that the layer has.
        reasons: cells by what they are for.
        fewest: holders besides this node of the cell that fewest hold, by weight.
        income: µcr a day of what is to be held.
    """

    layer: int
    cells: int
    held: int
    of: int
    reasons: Mapping[str, int]
    fewest: float
    income: int


@dataclass(frozen=True)
class AdviceReport:
    """The whole.

    Attributes:
        memory, n_bytes: that may be held, and that would be. uplink: bits a second, None: not limited.
        servers: others that were heard to serve the model; answered, heard: how many of these have
            answered, and how many are known by their adverts alone.
        tokens_a_day: of the swarm, as believed; is_measured: by what this node has served.
        hold, take, give: layers -> experts, as people write both: in all, more than now, less than now.
        lacking, uncovered: cells that fewer others hold than the replica floor, and those that nobody
        else does. scarce: layers -> experts of those that fewest others hold, if that is less than
        the floor. income, income_now: µcr a day, of what is to be held and of what is held now.
        layers: of which anything is to be held, or is.
    """

    model_id: str
    memory: int
    n_bytes: int
    uplink: float | None
    servers: int
    answered: int
    heard: int
    tokens_a_day: float
    is_measured: bool
    hold: Mapping[str, str]
    take: Mapping[str, str]
    give: Mapping[str, str]
    lacking: int
    uncovered: int
    scarce: Mapping[str, str]
    income: int
    income_now: int
    layers: tuple[LayerAdvice, ...]

    @classmethod
    def of(
        cls,
        units: Units,
        view: View,
        advice: Advice,
        held: Bools,
        *,
        model_id: str,
        memory: int,
        uplink: float | None,
        servers: int,
        answered: int,
        tokens_a_day: float,
        is_measured: bool,
    ) -> AdviceReport:
        """From a decision."""
        counts = np.diff(np.append(units.first_cell, len(units.cell_place)))
        fewest = float(view.replicas.min())
        scarce = advice.needed & (view.replicas <= fewest + 1e-9)
        return cls(
            model_id=model_id,
            memory=memory,
            n_bytes=int(units.ground.size[advice.cells].sum()),
            uplink=uplink,
            servers=servers,
            answered=answered,
            heard=servers - answered,
            tokens_a_day=round(tokens_a_day, 1),
            is_measured=is_measured,
            hold=units.cells(advice.cells).as_ranges(),
            take=units.cells(advice.cells & ~held).as_ranges(),
            give=units.cells(held & ~advice.cells).as_ranges(),
            lacking=int(counts[advice.needed].sum()),
            uncovered=int(counts[view.replicas <= 0].sum()),
            scarce=units.cells(scarce).as_ranges(),
            income=round(float(advice.income[advice.cells].sum())),
            income_now=round(float(advice.income[held].sum())),
            layers=tuple(
                _layer(units, view, advice, held, counts, place) for place in range(len(units.layers))
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _layer(
    units: Units, view: View, advice: Advice, held: Bools, counts: npt.NDArray[np.intp], place: int
) -> LayerAdvice:
    here = units.ground.layer == place
    chosen = here & advice.cells
    return LayerAdvice(
        layer=units.layers[place],
        cells=int(counts[chosen].sum()),
        held=int(counts[here & held].sum()),
        of=int(counts[here].sum()),
        reasons={
            text: cells
            for reason, text in REASONS.items()
            if (cells := int(counts[chosen & (advice.reason == reason)].sum()))
        },
        fewest=round(float(view.replicas[here].min()), 2),
        income=round(float(advice.income[chosen].sum())),
    )
