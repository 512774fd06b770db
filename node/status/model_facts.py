"""The models of the swarm: on how many live nodes each cell is, and what is missing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from node.model.manifest import Manifest
from node.serve.cells import Cells
from node.status.coverage import Coverage, Matrix, runs_of
from node.status.facts import WANTED_REPLICAS, Model, Served
from node.status.market_facts import scarcity
from node.status.models_here import ModelHere, model_here, name_of, served
from node.status.peer_facts import SELF
from node.status.sources import Chosen, Sources
from node.swarm.node import SwarmNode
from routing.wire.holdings import Slice
from routing.wire.text import sanitise

SHORT_MODEL_CHARS = 12
"""As the store shows ids (node.model.store.SHORT_ID)."""

WHY_BYTES = 300
"""Of why the node serves what it has chosen."""

Here = Literal["serves", "backbone"]
Heights = npt.NDArray[np.float64]
_Places = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Told:
    """A model as it was told last, and what of."""

    matrix: Matrix
    home: Cells | None
    here: tuple[Here, ...]
    known: ModelHere | None
    heights: Heights | None
    model: Model


class ModelFacts:
    """Reads them off. One for a node: what has not changed is not worked out again."""

    def __init__(self, node: SwarmNode, sources: Sources, coverage: Coverage) -> None:
        self._node = node
        self._sources = sources
        self._coverage = coverage
        self._known: dict[str, ModelHere] = {}
        self._served: tuple[object, list[Served]] = (None, [])
        self._told: dict[str, _Told] = {}

    def served(self) -> list[Served]:
        """What this node has on offer, paused or not."""
        server = self._sources.server
        if server is None:
            return []
        cells = server.cells
        key, known = self._served
        if key is not cells:
            known = [self._serving(held, cells) for held in cells.slices()]
            self._served = (cells, known)
        chosen = {each.model_id: each for each in self._sources.chosen()}
        return [_with_choice(each, chosen.get(each.model)) for each in known]

    def read(self, clock: float) -> list[Model]:
        """All of them, this node's own first. The peers have been noted in the coverage."""
        serves = self.served()
        live = self._sources.live
        own: dict[str, list[Here]] = {each.model: ["serves"] for each in serves}
        if live is not None:
            model_id = live.backbone.stored.model_id
            self._here(live.backbone.stored.manifest, model_id)
            own.setdefault(model_id, []).append("backbone")
        for model_id in own:
            self._coverage.know(model_id, self._known[model_id].shape)
        self._coverage.note(SELF, self._offered(serves))
        found: list[Model] = []
        told: dict[str, _Told] = {}
        for model_id, coverage in self._coverage.models().items():
            here = tuple(own.get(model_id, ()))
            entry = told[model_id] = self._tell(model_id, coverage.matrix(), here, clock)
            found.append(entry.model)
        self._told = told
        return found

    def _offered(self, serves: list[Served]) -> list[Slice]:
        """What peers are told now: nothing while it is paused."""
        server = self._sources.server
        return [] if server is None or not serves else list(server.holdings.slices)

    def _serving(self, held: Slice, cells: Cells) -> Served:
        return served(held, cells, self._here(cells.manifest(bytes.fromhex(held.model_id)), held.model_id))

    def _here(self, manifest: Manifest, model_id: str) -> ModelHere:
        known = self._known.get(model_id)
        if known is None:
            known = self._known[model_id] = model_here(manifest, model_id, self._sources.store)
        return known

    def _tell(self, model_id: str, matrix: Matrix, here: tuple[Here, ...], clock: float) -> _Told:
        known = self._known.get(model_id) if here else None
        home_cells = self._home_cells(model_id)
        heights = self._heights(model_id, matrix, known, clock)
        before = self._told.get(model_id)
        if (
            before is not None
            and before.matrix is matrix
            and before.home is home_cells
            and before.here == here
            and before.known is known
            and before.heights is heights
        ):
            return before
        home = self._home(model_id, matrix, home_cells)
        missing = matrix.exists() & (matrix.counts == 0) & ~home
        model = Model(
            id=model_id,
            short_id=model_id[:SHORT_MODEL_CHARS],
            name=known.name if known is not None else name_of(model_id, self._sources.store),
            architecture=self._architecture(model_id, known),
            here=list(here),
            layers=list(matrix.layers),
            experts=matrix.counts.shape[1],
            expert_bytes=None if known is None else known.expert_bytes,
            nodes=matrix.nodes,
            replicas=matrix.encoded(),
            wanted_replicas=WANTED_REPLICAS,
            scarcity=_encoded(matrix, heights),
            home=runs_of(home, matrix.layers),
            missing=runs_of(missing, matrix.layers),
            missing_cells=int(missing.sum()),
        )
        return _Told(matrix, home_cells, here, known, heights, model)

    def _heights(
        self, model_id: str, matrix: Matrix, known: ModelHere | None, clock: float
    ) -> Heights | None:
        """Where the swarm's prices lie; None where all is free, or this node does not know the model."""
        market = self._sources.market
        if market is None or known is None:
            return None
        return market.heights(model_id, matrix.layers, matrix.counts.shape[1], known.manifest, clock)

    def _architecture(self, model_id: str, known: ModelHere | None) -> str:
        """As this node knows, or as some node that serves it says."""
        if known is not None:
            return known.architecture
        for row in self._node.table.holders_of(model_id):
            for held in row.advert.slices:
                if held.model_id == model_id:
                    return sanitise(held.architecture, 32)
        return ""

    def _home_cells(self, model_id: str) -> Cells | None:
        live = self._sources.live
        if live is None or live.backbone.stored.model_id != model_id:
            return None
        return live.port.home

    def _home(self, model_id: str, matrix: Matrix, held: Cells | None) -> _Places:
        home = np.zeros(matrix.counts.shape, np.bool_)
        row_of = {layer: row for row, layer in enumerate(matrix.layers)}
        at_home = {} if held is None else held.experts(bytes.fromhex(model_id))
        for (layer, index), experts in at_home.items():
            if index == 0 and layer in row_of:
                home[row_of[layer], experts] = True
        return home


def _encoded(matrix: Matrix, heights: Heights | None) -> str | None:
    if heights is None:
        return None
    return base64.b64encode(scarcity(matrix.counts, WANTED_REPLICAS, heights).tobytes()).decode()


def _with_choice(each: Served, chosen: Chosen | None) -> Served:
    if chosen is None:
        return each
    why = sanitise(chosen.why, WHY_BYTES)
    return msgspec.structs.replace(
        each, budget_bytes=chosen.budget, lacking_bytes=chosen.lacking_bytes, why=why
    )
