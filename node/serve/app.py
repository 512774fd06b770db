"""A serving node: its cells, its expert server and its QUIC endpoint in one nursery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from node.config import NodeConfig
from node.config.own_address import dialable
from node.engine import library as llama
from node.engine.kernels import Kernels
from node.importing import Progress
from node.model.store import Store
from node.serve.opening import open_cells
from node.serve.server import ExpertServer
from routing.identity import Identity
from routing.multiaddr import ListenAddress
from routing.quic.endpoint import Endpoint
from routing.wire import holdings, messages
from routing.wire.holdings import Slice


@dataclass(frozen=True)
class Serving:
    """What a node does once it is up.

    Attributes:
        address: where others on the network reach it, with its peer id: what they put into their peers.
    """

    server: ExpertServer
    endpoint: Endpoint
    address: str
    cells: int
    slices: Sequence[Slice]


async def serve(
    config: NodeConfig, *, on_ready: Callable[[Serving], Awaitable[None]], progress: Progress | None = None
) -> None:
    """Serve the config's slices until `on_ready` returns, or forever if it does not, or until cancelled."""
    entries = config.require_serve()
    identity = Identity.load_or_create(config.identity_path)
    listen = (config.swarm.listen.host, config.swarm.listen.port)
    library = llama.load(config.engine.library)
    # Bound before the models are opened: a port in use is told at once, not after minutes.
    kernels = Kernels(library, threads=config.engine.threads)
    ready: list[ExpertServer] = []
    handlers = {
        messages.PROTOCOL_ID: lambda stream: ready[0].serve_experts(stream),
        holdings.PROTOCOL_ID: lambda stream: ready[0].serve_slices(stream),
    }
    endpoint = Endpoint(identity, listen=listen, backend=config.swarm.backend, handlers=handlers)
    try:
        with await trio.to_thread.run_sync(
            open_cells, library, Store(config.store), entries, progress
        ) as opened:
            server = ExpertServer(opened.cells, kernels, name=config.name or "")
            ready.append(server)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(endpoint.run)
                    bound = dialable(ListenAddress(*endpoint.local_address))
                    address = f"{bound}/p2p/{identity.peer_id}"
                    await on_ready(
                        Serving(server, endpoint, address, opened.cells.count(), opened.cells.slices())
                    )
                    nursery.cancel_scope.cancel()
            finally:
                server.close()
    finally:
        endpoint.close()
        kernels.close()
