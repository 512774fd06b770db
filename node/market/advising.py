"""`panal market advise`: hear the swarm's adverts for a while, ask who is there, and say what this device
should hold of a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from market.answering import Answers
from market.ground import Floats
from node.config import MarketConfig
from node.device.cell_sources import servable_layers
from node.device.serving_choice import Servable
from node.home.home_set import HomeSet, shapes_of
from node.market.advice_report import AdviceReport
from node.market.advisor import heat_shares
from node.market.bonds import read_bonds
from node.market.deciding import Grounds, decide
from node.market.probing import Probing
from node.market.units import Units
from node.model.store import Store, StoredModel
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from routing.advert_rows import Row
from routing.errors import LocalError

LISTEN_SECONDS = 6.0
"""Peers of this network are heard within two seconds, those named in the config within three, the directory's
in five; what they know comes with their first answer."""

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Heard:
    """What was heard of the swarm.

    Attributes:
        rows: adverts of others that serve anything of the model.
        answers: which of them have answered meanwhile.
    """

    rows: list[Row]
    answers: Answers


@dataclass(frozen=True)
class Asked:
    """What to advise on.

    Attributes:
        market: the config's, or with another uplink.
        memory: bytes. serving: held now. served: pairs a day that receipts cover, by layer and expert.
    """

    market: MarketConfig
    stored: StoredModel
    memory: int
    serving: HomeSet
    served: Mapping[int, Floats]


async def hear(place: Place, model_id: str, report: Callable[[str], None]) -> Heard:
    """Be in the swarm for some seconds, as one that only listens."""
    node = SwarmNode(place, Role(serves=False))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            probing = Probing(node, lambda: {model_id})
            nursery.start_soon(probing.hurry)
            end = trio.current_time() + LISTEN_SECONDS
            while (left := end - trio.current_time()) > 0:
                count = len(node.table.holders_of(model_id))
                report(f"listening to the swarm: {count} servers of the model, {left:.0f} s more")
                await trio.sleep(min(left, LOOK_SECONDS))
            heard = Heard(node.table.holders_of(model_id), probing.answers())
            nursery.cancel_scope.cancel()
    finally:
        node.close()
    return heard


def advise_on(asked: Asked, heard: Heard, peer_id: str, store: Store) -> AdviceReport:
    """What the device should hold.

    Raises:
        LocalError: not even one expert has room.
    """
    stored = asked.stored
    manifest, model_id = stored.manifest, stored.model_id
    shapes = shapes_of(manifest)
    servable = Servable(servable_layers(manifest, HomeSet.whole(shapes, shapes), asked.memory), peer_id)
    if servable.smallest > asked.memory:
        raise LocalError(
            f"{asked.memory:,} bytes have no room for one expert of model {model_id[:12]}, the smallest of "
            f"which takes {servable.smallest:,}: give more memory"
        )
    bonds = read_bonds(stored.trunk, shapes)
    units = Units.of(servable, bonds)
    assert units is not None  # a model has experts
    held = units.held(asked.serving)
    shares = heat_shares(store, model_id, shapes)
    decision = decide(
        asked.market,
        manifest,
        model_id,
        units,
        bonds.n_used,
        asked.memory,
        held,
        Grounds(heard.rows, heard.answers, asked.served, shares),
        peer_id,
        time.time(),
    )
    return AdviceReport.of(
        units,
        decision.view,
        decision.advice,
        held,
        model_id=model_id,
        memory=asked.memory,
        uplink=asked.market.uplink,
        servers=len(heard.rows),
        answered=heard.answers.counts(row.advert.peer_id for row in heard.rows)[0],
        tokens_a_day=decision.tokens_a_day,
        is_measured=decision.is_measured,
    )
