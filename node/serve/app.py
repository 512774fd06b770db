"""A serving node: its cells, its expert server and its place in the swarm in one nursery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from node.config import NodeConfig
from node.engine import library as llama
from node.engine.kernels import Kernels
from node.importing import Progress
from node.model.store import Store
from node.serve.cell_server import CellServer
from node.serve.opening import open_cells
from node.serve.server import ExpertServer
from node.swarm.announcing import Offered
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import NOBODY, Watching
from routing.quic.endpoint import Handler
from routing.wire import cells, holdings, messages
from routing.wire.holdings import Slice


@dataclass(frozen=True)
class Serving:
    """What a node does once it is up.

    Attributes:
        address: where others on the network reach it, with its peer id: what they put into their peers.
        relay: where it takes connections as a relay, as multiaddrs; empty if it is none.
    """

    server: ExpertServer
    node: SwarmNode
    address: str
    cells: int
    slices: Sequence[Slice]
    relay: Sequence[str]


async def serve(
    config: NodeConfig,
    *,
    on_ready: Callable[[Serving], Awaitable[None]],
    progress: Progress | None = None,
    watching: Watching = NOBODY,
) -> None:
    """Serve the config's slices until `on_ready` returns, or forever if it does not, or until cancelled."""
    entries = config.serve if config.relay.table.serve else config.require_serve()
    place = Place.of(config)
    library = llama.load(config.engine.library)
    kernels = Kernels(library, threads=config.engine.threads)
    ready: list[ExpertServer] = []
    sharing: list[CellServer] = []

    def offered() -> Offered:
        told = ready[0].holdings
        return Offered(
            name=told.name,
            slices=told.slices,
            codecs=told.codecs,
            combines=told.combines,
            max_rows=told.max_rows,
            load=ready[0].load(),
            versions=told.versions,
        )

    handlers: dict[str, Handler] = {
        messages.PROTOCOL_ID: lambda stream: ready[0].serve_experts(stream),
        holdings.PROTOCOL_ID: lambda stream: ready[0].serve_slices(stream),
    }
    if config.swarm.share_cells:
        handlers[cells.PROTOCOL_ID] = lambda stream: sharing[0].serve(stream)
    role = Role(serves=True, offered=offered, handlers=handlers)
    # Bound before the models are opened: a port in use is told at once, not after minutes.
    node = SwarmNode(place, role, watching=watching)
    try:
        with await trio.to_thread.run_sync(
            open_cells, library, Store(config.store), entries, progress
        ) as opened:
            server = ExpertServer(opened.cells, kernels, name=config.name or "")
            ready.append(server)
            sharing.append(CellServer(opened.cells, rate=config.swarm.share_rate))
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(node.run)
                    await on_ready(
                        Serving(
                            server,
                            node,
                            node.address,
                            opened.cells.count(),
                            opened.cells.slices(),
                            node.relay_addresses,
                        )
                    )
                    nursery.cancel_scope.cancel()
            finally:
                server.close()
    finally:
        node.close()
        kernels.close()
