"""What a node with prices serves of its [[serve]] with memory: `market.advice`, fed from adverts and books.

It decides in a thread, from what was copied on the event loop before; a decision takes some ten milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from market.advice import Advice
from market.answering import Answers
from market.ground import Bools, Floats
from market.own_order import Patience
from node.config import MarketConfig
from node.device.serving_choice import Servable, Why
from node.home.choosing import heat_now
from node.home.home_set import HomeSet, Shapes, shapes_of
from node.home.plan_file import read_heat, read_plan
from node.market.bonds import Bonds, read_bonds
from node.market.deciding import Grounds, decide
from node.market.units import Units
from node.model.manifest import Manifest
from node.model.store import Store, StoreError
from routing.advert_rows import Row
from routing.errors import LocalError

FEW_TOKENS = 1_000.0
"""Tokens of own use and plan below which their heat says nothing."""


@dataclass
class _Model:
    """What is known of a model over time."""

    patience: Patience
    servable: Servable | None = None
    units: Units | None = None
    bonds: Bonds | None = None


class Advisor:
    """Decides for one node.

    Args:
        store: where models' trunks and heat are.
        served: pairs a day of a model that receipts cover, by layer and expert.
        capacity: pairs a second that this node could compute; 0 if it does not know.
        answers: which peers have answered this node, and which do not.
    """

    def __init__(
        self,
        market: MarketConfig,
        peer_id: str,
        store: Store,
        served: Callable[[str], Mapping[int, Floats]],
        capacity: Callable[[], float],
        answers: Callable[[], Answers],
    ) -> None:
        self._market = market
        self._peer_id = peer_id
        self._store = store
        self._served = served
        self._capacity = capacity
        self._answers = answers
        self._models: dict[str, _Model] = {}

    async def look(
        self,
        model_id: str,
        manifest: Manifest,
        servable: Servable,
        budget: int,
        serving: HomeSet,
        holders: Sequence[Row],
    ) -> tuple[HomeSet, Why] | None:
        """What is to be served from now on instead, and why; None: what is served now.

        Args:
            serving: what is served, or chosen to be.
            holders: adverts of others that serve anything of the model.
        """
        known = self._models.get(model_id)
        if known is None:
            known = self._models[model_id] = _Model(Patience(self._peer_id))
        found = await trio.to_thread.run_sync(
            self._decide,
            known,
            model_id,
            manifest,
            servable,
            budget,
            serving,
            holders,
            self._answers(),
            self._served(model_id),
        )
        if found is None:
            return None
        units, held, advice = found
        if held.any() and not known.patience.ripe(
            trio.current_time(), advice.hurry if advice.changes else None
        ):
            return None
        chosen = units.cells(advice.cells)
        if chosen == serving:
            return None
        return chosen, _why(advice, held)

    def _decide(
        self,
        known: _Model,
        model_id: str,
        manifest: Manifest,
        servable: Servable,
        budget: int,
        serving: HomeSet,
        holders: Sequence[Row],
        answers: Answers,
        served: Mapping[int, Floats],
    ) -> tuple[Units, Bools, Advice] | None:
        shapes = shapes_of(manifest)
        if known.bonds is None:
            known.bonds = self._bonds(model_id, shapes)
        if known.servable != servable or known.units is None:
            known.servable, known.units = servable, Units.of(servable, known.bonds)
        units = known.units
        if units is None:
            return None
        held = units.held(serving)
        shares = heat_shares(self._store, model_id, shapes)
        grounds = Grounds(holders, answers, served, shares, self._capacity())
        n_used, own_id = known.bonds.n_used, self._peer_id
        decision = decide(
            self._market, manifest, model_id, units, n_used, budget, held, grounds, own_id, time.time()
        )
        return units, held, decision.advice

    def _bonds(self, model_id: str, shapes: Shapes) -> Bonds:
        try:
            return read_bonds(self._store.get(model_id).trunk, shapes)
        except StoreError:
            return Bonds()


def heat_shares(store: Store, model_id: str, shapes: Shapes) -> dict[int, Floats] | None:
    """Each expert's share of its layer's choices, by this device's use and plan; None if there is too
    little of either."""
    try:
        stored = store.get(model_id)
        in_use = read_heat(stored, shapes)
        plan = read_plan(stored)
    except LocalError:
        return None
    tokens = in_use.tokens + (0 if plan is None else plan.text_tokens)
    if tokens < FEW_TOKENS:
        return None
    heat = heat_now(shapes, plan, in_use)
    return {layer: heat.shares(layer) for layer in shapes}


def _why(advice: Advice, held: Bools) -> Why:
    taken = advice.cells & ~held
    if not held.any():
        return Why.FIRST
    if (taken & advice.needed).any():
        return Why.NEED
    return Why.INCOME if (held & ~advice.cells).any() else Why.ROOM
