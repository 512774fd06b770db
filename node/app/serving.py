"""The part of a node that works for others: computes experts for them, and gives models away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from node.config import NodeConfig
from node.device.chosen_opening import open_chosen
from node.device.chosen_serving import ChosenServing
from node.device.folder import NodeFolder
from node.engine import library as llama
from node.engine.kernels import Kernels
from node.importing import Progress
from node.model.store import Store
from node.serve.cell_server import CellServer
from node.serve.cells import Cells
from node.serve.opening import open_cells
from node.serve.server import ExpertServer
from node.share.model_server import ModelServer
from node.share.sharing import Sharing
from node.swarm.announcing import Offered
from node.swarm.node import SwarmNode
from routing.quic.endpoint import Handler
from routing.wire import holdings, messages

if TYPE_CHECKING:
    from node.market.part import MarketPart


class ServingPart:
    """What a node does for others. Its handlers stand before there is anything behind them: the node's port
    is bound, and a port in use told of, before models are opened.

    Attributes:
        server: None until it is open, and where nothing is served.
        cells: what is served.
        sharing: what is given away of models; there from the beginning.
        chosen: what of it the node chooses itself.
    """

    def __init__(self, config: NodeConfig, market: MarketPart | None = None) -> None:
        self._config = config
        self._market = market
        self.server: ExpertServer | None = None
        self.sharing = Sharing(Store(config.store), rate=config.swarm.share_rate)
        self.chosen: ChosenServing | None = None
        self.cells = Cells()
        self._ends = ExitStack()

    @property
    def is_wanted(self) -> bool:
        """Whether the config serves anything."""
        return bool(self._config.serve)

    @property
    def givers(self) -> Sequence[CellServer | ModelServer]:
        """Who sends weights."""
        return self.sharing.givers

    def handlers(self) -> dict[str, Handler]:
        """By protocol id; none are called before the node runs."""
        handlers: dict[str, Handler] = {}
        if self.is_wanted:
            handlers[messages.PROTOCOL_ID] = lambda stream: self._experts().serve_experts(stream)
            handlers[holdings.PROTOCOL_ID] = lambda stream: self._experts().serve_slices(stream)
        if self._config.swarm.share_cells:
            handlers |= self.sharing.handlers
        return handlers

    def offered(self) -> Offered:
        """What the advert says."""
        if self.server is None:
            return Offered(name=self._config.name or "")
        told = self.server.holdings
        return Offered(
            name=told.name,
            slices=told.slices,
            codecs=told.codecs,
            combines=told.combines,
            max_rows=told.max_rows,
            load=self.server.load(),
            versions=told.versions,
            quotes=[] if self._market is None else self._market.offered(),
        )

    def open(self, progress: Progress | None) -> None:
        """Map what the config serves and start its servers. Blocks, perhaps for minutes.

        Raises:
            LocalError: a model cannot be served.
        """
        if not self.is_wanted:
            return
        config, library = self._config, llama.load(self._config.engine.library)
        with ExitStack() as ends:
            kernels = Kernels(library, threads=config.engine.threads)
            ends.callback(kernels.close)
            store = Store(config.store)
            held = ends.enter_context(open_cells(library, store, config.serve, progress))
            note = NodeFolder.of(config).serving
            self.chosen = open_chosen(library, store, config.serve, held.cells, note, ends, progress)
            self.cells = self.chosen.cells
            self.sharing.serve_cells(self.cells)
            accounts = None if self._market is None else self._market.accounts
            self.server = ExpertServer(self.cells, kernels, name=config.name or "", accounts=accounts)
            ends.callback(self.server.close)
            self._ends = ends.pop_all()

    async def choose(self, node: SwarmNode, on_change: Callable[[Cells], None]) -> None:
        """Keep choosing what to serve, as far as the config leaves that to the node; until cancelled."""

        def swap(cells: Cells) -> None:
            self._experts().swap(cells)
            self.sharing.serve_cells(cells)
            self.cells = cells
            node.offer_changed()
            on_change(cells)

        if self.chosen is not None:
            await self.chosen.run(node, swap)

    def close(self) -> None:
        """End the servers, then what they need."""
        self._ends.close()
        self.sharing.close()

    def _experts(self) -> ExpertServer:
        assert self.server is not None
        return self.server
