"""Peers of this process that share cells, and what a fetcher knows of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np

from node.decode.live_backbone import call_shapes
from node.home.call_bits import CallKey, cells_of
from node.home.fetch import FetchProgress, FetchResult, fetch_cells
from node.home.fetched import FetchedCells
from node.serve.cell_server import CellServer
from node.serve.cells import Cells
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.table import HolderTable
from routing.wire import cells as wire
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION
from tests.model_parts import ModelParts
from tests.served import connected, listening

FAST = 1e9  # bytes a second: as if there were no bound


@asynccontextmanager
async def sharing(handler: Handler) -> AsyncIterator[Endpoint]:
    async with listening({wire.PROTOCOL_ID: handler}) as endpoint:
        yield endpoint


def share(cells: Cells) -> Handler:
    return CellServer(cells, rate=FAST).serve


class Swarm:
    """Sources, and what a fetcher knows of them."""

    def __init__(self, model: ModelParts) -> None:
        self.model = model
        self.table = HolderTable(model.stored.model_id, call_shapes(model.manifest))
        self.connections: dict[str, Connection] = {}
        self.ids: list[str] = []

    async def add(self, stack: AsyncExitStack, cells: Cells, handler: Handler | None = None) -> Endpoint:
        """A source that says it holds these cells."""
        endpoint = await stack.enter_async_context(sharing(handler or share(cells)))
        connection = await stack.enter_async_context(connected(endpoint))
        told = Holdings([VERSION], "", list(cells.slices()), ["f32"], ["rows"], 512)
        self.table.connected(connection.peer_id, told)
        self.connections[connection.peer_id] = connection
        self.ids.append(connection.peer_id)
        return endpoint

    def find(self, peer_id: str) -> Connection | None:
        connection = self.connections.get(peer_id)
        return connection if connection is not None and connection.is_open else None

    async def fetch(
        self,
        into: FetchedCells,
        wanted: Mapping[int, Iterable[int]] | None = None,
        on_progress: Callable[[FetchProgress], None] = lambda progress: None,
        rate: float = FAST,
    ) -> FetchResult:
        return await fetch_cells(
            into,
            cells_of(self.model.manifest, wanted if wanted is not None else everything(self.model)),
            holders=self.table.holders,
            connection_to=self.find,
            rate=rate,
            on_progress=on_progress,
        )


def everything(model: ModelParts) -> dict[int, range]:
    return {call.layer: range(call.n_experts) for call in model.manifest.calls if call.index == 0}


def assert_right(model: ModelParts, into: FetchedCells, wanted: Mapping[CallKey, int]) -> None:
    """What was fetched is there, and computes the bytes that the whole file computes."""
    cells = Cells()
    into.add_to(cells)
    for (layer, index), bits in wanted.items():
        found = cells.find(bytes.fromhex(into.model_id), layer, index)
        assert found is not None
        experts = np.array([e for e in range(found.call.n_experts) if bits >> e & 1], np.uint16)
        assert set(experts) <= set(found.experts())
        rows = max(2, len(experts))
        x = np.random.default_rng(layer).standard_normal((rows, found.call.n_in)).astype(np.float32)
        ids = np.resize(experts, rows)
        weights = (
            np.linspace(0.1, 1, rows, dtype=np.float32) if found.call.recipe.weights == "after" else None
        )
        counts = np.ones(rows, np.uint16)
        mine = found.compute(model.kernels, x, counts, ids, weights)
        whole = model.kernels.run(model.held[layer, found.call.group], x, counts, ids, weights)
        assert mine.tobytes() == whole.tobytes()


def served_whole(model: ModelParts, experts: range) -> Cells:
    """Cells of a model with all calls, chunk experts as they go with the others."""
    cells = Cells()
    masks = {}
    for (layer, index), bits in cells_of(model.manifest, dict.fromkeys(everything(model), experts)).items():
        call = model.manifest.call(layer, index)
        assert call is not None
        masks[layer, call.group] = np.array([bool(bits >> e & 1) for e in range(call.n_experts)])
    cells.add(model.stored.model_id, model.manifest, model.held, masks)
    return cells
