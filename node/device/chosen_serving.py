"""A node that chooses what it serves within the memory it was given, and chooses anew as its peers change.

1. What it served last time it serves at once; else it listens for some seconds first, a time of its own, so
   that of several new nodes each hears what the others have chosen.
2. Then it looks at the adverts now and then (`chooser`). What it is to serve anew is opened first, then told.
3. Cells that are in no file here are fetched from those who serve them (node.home.fetch), and served as they
   come. Of such a model nothing can be chosen that nobody has.
4. While the node is paused nothing is chosen and nothing fetched.
5. What is chosen no longer is served on while there is room for it beside what has been fetched of the new.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import trio

from node.decode.live_backbone import call_shapes
from node.device.cell_sources import CellSource, PeerCells, servable_layers
from node.device.chooser import NOTHING, Chooser, meanwhile
from node.device.serving_choice import Counts, Servable, Why, draw
from node.device.serving_note import Note, write_note
from node.home.call_bits import cells_of
from node.home.fetch import FetchResult, fetch_cells, unrelayed
from node.home.home_set import HomeSet, Shapes
from node.model.manifest import Manifest
from node.serve.cells import Cells
from node.sizes import size_text
from node.swarm.node import SwarmNode
from node.swarm.watching import Watching
from routing.advert_rows import Row
from routing.errors import LocalError
from routing.identity import PeerId
from routing.table import HolderTable

log = logging.getLogger("panal.device")

LISTEN_SECONDS, LISTEN_SPREAD = 2.0, 4.0
"""Before a first choice, and a share of so many seconds that is the peer's own: peers of the same network are
heard within one or two."""

LOOK_SECONDS = 5.0
"""Between looks at the adverts."""

AGAIN_SECONDS = 60.0
"""Between tries to fetch what nobody gave."""

COMES_SECONDS = 10.0
"""Between serving what has been fetched meanwhile."""

SOURCES_WANTED = 8
"""Peers that are connected for fetching: as many as are asked at once (node.home.fetch.SOURCES)."""

CONNECT_SECONDS, CONNECT_POLL = 8.0, 0.2
"""For one of them to be connected before fetching is given up until the next try."""


@dataclass(frozen=True)
class ChosenFacts:
    """What is served of a model by choice, for people and programs.

    Attributes:
        budget, n_bytes: bytes that may be served, and that are.
        experts: layers -> experts, as people write both.
        lacking_bytes: chosen as well, and still to be fetched.
        why, changed_at: of the last choice; unix time.
    """

    model_id: str
    budget: int
    n_bytes: int
    cells: int
    experts: Mapping[str, str]
    lacking_bytes: int
    why: str
    changed_at: float


@dataclass
class Chosen:
    """One [[serve]] with memory.

    Attributes:
        budget: bytes.
        served: what of the choice is in files here, and served.
    """

    source: CellSource
    budget: int
    chooser: Chooser
    shapes: Shapes
    served: HomeSet = NOTHING
    changed_at: float = 0.0
    servable: Servable | None = None
    fetching: trio.CancelScope | None = None
    fetch_at: float = 0.0


class Advising(Protocol):
    """Who chooses instead of `chooser`, where cells have prices (node.market.advisor)."""

    async def look(
        self,
        model_id: str,
        manifest: Manifest,
        servable: Servable,
        budget: int,
        serving: HomeSet,
        holders: Sequence[Row],
    ) -> tuple[HomeSet, Why] | None:
        """What is to be served instead of `serving`, and why; None if that is good."""


class ChosenServing:
    """All that a node serves, some of it by choice; made by `chosen_opening.open_chosen`.

    Attributes:
        cells: what is served now.
        advisor: who chooses, if not each model's chooser.
    """

    def __init__(self, fixed: Cells, chosen: Sequence[Chosen], note: Path) -> None:
        self._fixed = fixed
        self._chosen = list(chosen)
        self._note = note
        self._paused = False
        self._turn = trio.Lock()
        self._swap: Callable[[Cells], None] = lambda cells: None
        self.cells = self._collect()
        self.advisor: Advising | None = None

    @property
    def chooses(self) -> bool:
        """Whether anything is served by choice."""
        return bool(self._chosen)

    def facts(self) -> list[ChosenFacts]:
        """What is served by choice."""
        return [
            ChosenFacts(
                each.source.model_id,
                each.budget,
                each.served.n_bytes(each.shapes),
                each.served.count(),
                each.served.as_ranges(),
                (each.chooser.serving - each.served).n_bytes(each.shapes),
                str(each.chooser.why),
                each.changed_at,
            )
            for each in self._chosen
        ]

    def pause(self, text: str) -> None:
        """Choose and fetch nothing; as for `node.device.effect`."""
        self._paused = True
        for each in self._chosen:
            if each.fetching is not None:
                each.fetching.cancel()

    def resume(self) -> None:
        """Go on."""
        self._paused = False

    async def run(self, node: SwarmNode, swap: Callable[[Cells], None]) -> None:
        """Look at the adverts until cancelled.

        Args:
            swap: takes what is served from now on, and tells peers of it.
        """
        self._swap = swap
        share = draw(node.identity.peer_id, "listen", 0) / (1 << 64)
        await trio.sleep(LISTEN_SECONDS + LISTEN_SPREAD * share)
        async with trio.open_nursery() as nursery:
            while self._chosen:
                if not self._paused:
                    for each in self._chosen:
                        await self._look(each, node, nursery)
                await trio.sleep(LOOK_SECONDS)

    # --- choosing ---

    async def _look(self, chosen: Chosen, node: SwarmNode, nursery: trio.Nursery) -> None:
        holders = node.table.holders_of(chosen.source.model_id)
        counts = counts_of(holders, chosen)
        servable = await trio.to_thread.run_sync(self._servable, chosen, counts, node.identity.peer_id)
        if await self._chooses_anew(chosen, servable, counts, holders):
            if chosen.fetching is not None:
                chosen.fetching.cancel()  # of what is not wanted any more
            chosen.changed_at = time.time()
            chosen.fetch_at = 0.0
            await self._serve(chosen)
            self._tell(chosen)
            await trio.to_thread.run_sync(write_note, self._note, self._note_now())
        source = chosen.source
        if (
            isinstance(source, PeerCells)
            and chosen.fetching is None
            and trio.current_time() >= chosen.fetch_at
            and source.lacks(chosen.chooser.serving)
        ):
            chosen.fetching = trio.CancelScope()
            nursery.start_soon(self._fetch, chosen, source, node, chosen.fetching)

    async def _chooses_anew(
        self, chosen: Chosen, servable: Servable, counts: Counts, holders: Sequence[Row]
    ) -> bool:
        chooser, source = chosen.chooser, chosen.source
        if self.advisor is None:
            return chooser.look(trio.current_time(), servable, counts)
        found = await self.advisor.look(
            source.model_id, source.manifest, servable, chosen.budget, chooser.serving, holders
        )
        if found is not None:
            chooser.adopt(*found)
        return found is not None

    def _servable(self, chosen: Chosen, counts: Counts, own_id: PeerId) -> Servable:
        """What may be chosen: what is here, and for want of a file what peers have."""
        if chosen.servable is not None:
            return chosen.servable
        available = chosen.source.there()
        if isinstance(chosen.source, PeerCells):
            available |= HomeSet.of(
                {layer: [e for e, n in enumerate(each) if n] for layer, each in counts.items()}
            )
        fixed = self._fixed.experts(bytes.fromhex(chosen.source.model_id))
        available -= HomeSet.of({layer: experts for (layer, index), experts in fixed.items() if not index})
        servable = Servable(servable_layers(chosen.source.manifest, available, chosen.budget), own_id)
        if not isinstance(chosen.source, PeerCells):
            chosen.servable = servable  # a file does not change
        return servable

    # --- serving ---

    async def _serve(self, chosen: Chosen) -> None:
        """Serve what is chosen and in files here."""
        async with self._turn:
            former = chosen.served
            chosen.served = self._to_serve(chosen)
            try:
                cells = await trio.to_thread.run_sync(self._collect)
                self._swap(cells)
            except LocalError as error:  # too many runs for an advert: what was served stays so
                chosen.served = former
                log.error("%s", error)
                return
            self.cells = cells

    def _to_serve(self, chosen: Chosen) -> HomeSet:
        serving, there = chosen.chooser.serving, chosen.source.there()
        return meanwhile(serving, there, chosen.served, chosen.budget, chosen.shapes)

    def _collect(self) -> Cells:
        cells = self._fixed.copy()
        for each in self._chosen:
            each.source.add_to(cells, each.served)
        return cells

    def _tell(self, chosen: Chosen) -> None:
        serving = chosen.chooser.serving
        layers = serving.whole_layers(chosen.shapes)
        parts = serving.count() - sum(chosen.shapes[layer].n_experts for layer in layers)
        what = [f"layers {HomeSet.layers_text(layers)}"] if layers else []
        what += [f"{parts} experts of others"] if parts else []
        log.info(
            "serving %s of model %s, %s of %s: %s",
            " and ".join(what) or "nothing",
            chosen.source.model_id[:12],
            size_text(serving.n_bytes(chosen.shapes)),
            size_text(chosen.budget),
            chosen.chooser.why,
        )

    def _note_now(self) -> Note:
        return {each.source.model_id: each.chooser.serving.as_ranges() for each in self._chosen}

    # --- fetching ---

    async def _fetch(
        self, chosen: Chosen, source: PeerCells, node: SwarmNode, scope: trio.CancelScope
    ) -> None:
        table = HolderTable(source.model_id, call_shapes(source.manifest))
        watching = Watching(connected=table.connected, lost=table.disconnected)
        node.watch(watching)
        for row in node.table.holders_of(source.model_id)[:SOURCES_WANTED]:
            node.links.want(row.advert.peer_id, surely=False)
        try:
            with scope:
                with trio.move_on_after(CONNECT_SECONDS):
                    while not table.peers():
                        await trio.sleep(CONNECT_POLL)
                fetched = await trio.to_thread.run_sync(lambda: source.open(writable=True))
                async with self._turn:
                    source.use(fetched)
                wanted = cells_of(source.manifest, source.lacks(chosen.chooser.serving).experts())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._serve_what_comes, chosen)
                    result = await fetch_cells(
                        fetched, wanted, holders=table.holders, connection_to=unrelayed(node.links)
                    )
                    nursery.cancel_scope.cancel()
                _say(result)
        except* LocalError as group:
            log.warning("%s", group.exceptions[0])
        finally:
            node.unwatch(watching)
            chosen.fetching = None
            chosen.fetch_at = trio.current_time() + (0.0 if scope.cancelled_caught else AGAIN_SECONDS)
        reopened = await trio.to_thread.run_sync(lambda: source.open(writable=False))
        async with self._turn:
            source.use(reopened)  # and others may fetch into these files now
        await self._serve(chosen)

    async def _serve_what_comes(self, chosen: Chosen) -> None:
        while True:
            await trio.sleep(COMES_SECONDS)
            if self._to_serve(chosen) != chosen.served:
                await self._serve(chosen)


def counts_of(holders: Sequence[Row], chosen: Chosen) -> dict[int, list[int]]:
    """How many others serve each cell, by their adverts."""
    most = max(shape.n_experts for shape in chosen.shapes.values())
    counts = np.zeros((max(chosen.shapes) + 1, most), np.int32)
    for row in holders:
        for told in row.advert.slices:
            if told.model_id == chosen.source.model_id:
                for first, last, runs in told.experts:
                    for start, end in runs:
                        counts[first : last + 1, start : end + 1] += 1
    return {layer: counts[layer, : shape.n_experts].tolist() for layer, shape in chosen.shapes.items()}


def _say(result: FetchResult) -> None:
    for peer, what in result.dropped.items():
        log.warning("%s gives no more experts: %s", peer, what)
    if result.cells:
        log.info("%d experts fetched (%s)", result.cells, size_text(sum(result.by_peer.values())))
