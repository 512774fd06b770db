"""All that a node gives away of models: cells, trunks, and the list of what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from node.model.store import Store
from node.serve.cell_server import CellServer
from node.serve.cells import Cells
from node.share.given import Given
from node.share.model_server import ModelServer
from node.share.sending import Sender
from node.share.share_list import read_shares
from routing.quic.endpoint import Handler
from routing.quic.stream import Stream
from routing.wire import cells as cells_wire
from routing.wire import model_files, model_list
from routing.wire.model_list import Offer


class Sharing:
    """Made before any model is open; what is served may come later.

    Attributes:
        cells, models: who send; their `counts` say how much.
        handlers: of the protocols, by their ids.
    """

    def __init__(self, store: Store, *, rate: float) -> None:
        """
        Args:
            rate: bytes a second for all of it together.
        """
        self._store = store
        self._served = Cells()
        self._given = Given(store, lambda: self._served)
        sender = Sender(rate=rate)
        self.cells = CellServer(self._given, sender=sender)
        self.models = ModelServer(self._given, sender)
        self.handlers: Mapping[str, Handler] = {
            cells_wire.PROTOCOL_ID: self._serve_cells,
            model_files.PROTOCOL_ID: self.models.serve,
            model_list.PROTOCOL_ID: self.models.serve_list,
        }

    @property
    def givers(self) -> Sequence[CellServer | ModelServer]:
        """Who send."""
        return (self.cells, self.models)

    @property
    def has_offers(self) -> bool:
        """Whether the store's share list names anything.

        Raises:
            LocalError: the list is damaged.
        """
        return bool(read_shares(self._store))

    def pause(self, text: str) -> None:
        """Give nothing from now on; `text` says why."""
        self.cells.pause(text)

    def resume(self) -> None:
        """Give again."""
        self.cells.resume()

    def serve_cells(self, cells: Cells) -> None:
        """These are served, and so given too; in place of what was before."""
        self._served = cells

    def offers(self, now: float) -> list[Offer]:
        """What peers are told. May open files.

        Args:
            now: `trio.current_time()`, or any other clock's.
        """
        self._given.look(now)
        return self._given.offers()

    def close(self) -> None:
        """Give the files up."""
        self._given.close()

    async def _serve_cells(self, stream: Stream) -> None:
        await trio.to_thread.run_sync(self._given.look, trio.current_time())
        await self.cells.serve(stream)
