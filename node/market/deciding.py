"""What a device should hold of a model: the same where a node decides by itself and where its owner asks
(`panal market advise`). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from market.advice import Advice, Means, advise
from market.answering import Answers
from market.ground import Bools, Floats
from market.own_order import own_draws
from market.price import BasePrices, percent_of
from market.view import SURE_PAIRS, View
from node.config.settings import MarketConfig
from node.market.base_prices import base_prices
from node.market.seen import Known, view_of
from node.market.served_rate import DAY
from node.market.units import Units
from node.model.manifest import Manifest
from routing.advert_rows import Row

ASSUMED_TOKENS = 1_000_000
"""A day, in the whole swarm, where this node has served nothing yet by which it could tell: by these a slow
line leaves to others what is asked for most."""

BYTES_A_VALUE = 2
"""Of an answer's row: f16 is what most swarms use (docs/protocol.md, "Codecs")."""

WHOLE_PRICE = 100
"""Per cent. Where prices are fixed, nobody's quotes say what this node will ask."""


@dataclass(frozen=True)
class Grounds:
    """What is known to decide by.

    Attributes:
        holders: adverts of others that serve anything of the model.
        answers: which peers have answered this node, and which do not.
        served: pairs a day that receipts cover, by layer and expert.
        shares: of each layer's choices, by own use or plan; None without either.
        capacity: pairs a second that this device could compute; 0 if that is not known.
    """

    holders: Sequence[Row]
    answers: Answers
    served: Mapping[int, Floats]
    shares: Mapping[int, Floats] | None
    capacity: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What came of it.

    Attributes:
        view: the swarm, this node left out.
        is_measured: its demand is by what this node has served; else ASSUMED_TOKENS.
        tokens_a_day: of the swarm, as believed.
    """

    view: View
    advice: Advice
    is_measured: bool
    tokens_a_day: float


def decide(
    market: MarketConfig,
    manifest: Manifest,
    model_id: str,
    units: Units,
    n_used: int,
    memory: int,
    held: Bools,
    grounds: Grounds,
    own_id: str,
    clock: float,
) -> Decision:
    """What to hold.

    Args:
        n_used: experts that a token uses of a layer.
        memory: bytes that it may take.
        held: [n], what this node serves.
        clock: unix time.
    """
    bases, floor, cap = _believed(market, base_prices(manifest))
    known = Known(
        answers=grounds.answers,
        bases=bases,
        floor=floor,
        cap=cap,
        served=grounds.served,
        shares=grounds.shares,
    )
    view = view_of(units, model_id, grounds.holders, held, known, own_id, clock)
    a_token = max(1, n_used) * len(units.layers)
    is_measured = float(units.total(units.table(grounds.served))[held].sum()) >= SURE_PAIRS
    if not is_measured and view.demand.any():  # then only its proportions mean something
        view.demand[:] *= ASSUMED_TOKENS * a_token / view.demand.sum()
    uplink = min(_computes(grounds.capacity), _sends(market.uplink, manifest)) * DAY
    advice = advise(units.ground, view, Means(memory, uplink), held, own_draws(own_id, clock, units.ground))
    return Decision(view, advice, is_measured, float(view.demand.sum()) / a_token)


def _believed(market: MarketConfig, bases: BasePrices) -> tuple[BasePrices, int, int]:
    """Base prices, and per cent of them within which others' quotes are believed."""
    if market.mode != "fixed":
        return bases, market.floor, market.cap
    own = {layer: percent_of(base, market.price) for layer, base in bases.items()}
    return own, WHOLE_PRICE, WHOLE_PRICE


def _computes(capacity: float) -> float:
    """Pairs a second."""
    return capacity if capacity > 0 else math.inf


def _sends(uplink: float | None, manifest: Manifest) -> float:
    """Pairs a second whose answers a line of so many bits a second carries, each a row of its own."""
    if uplink is None:
        return math.inf
    return uplink / 8 / (max(call.n_out for call in manifest.calls) * BYTES_A_VALUE)
