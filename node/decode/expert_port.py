"""Between the decoding thread and the swarm: a call leaves the graph here and its result comes back.

The decoding thread is llama.cpp's; the star lives on the event loop. What is held at home is computed on
the decoding thread while the requests travel. A call of which everything is at home never leaves the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import trio

from node.decode.ledger import TripsLedger
from node.engine.expert_holes import ExpertInputs
from node.engine.kernels import Kernels
from node.serve.cells import Cells
from routing.dispatch.call import CallStats, MoeCall, WireSettings
from routing.dispatch.combine import add_slots
from routing.dispatch.plan import HOME, LayerHolders, ServerCall, plan
from routing.dispatch.star import PeerLookup, Star
from routing.errors import LocalError, PanalError
from routing.table import HolderTable
from routing.wire.codecs import Float32Array


class Interrupted(LocalError):
    """The event loop ended while a pass was waiting for experts."""


class _Ticket:
    """A call under way. `done` belongs to the decoding thread, `home_ready` to the event loop."""

    def __init__(self, call: MoeCall) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Float32Array | None = None
        self.stats: CallStats | None = None
        self.error: PanalError | None = None
        self.home_ready = trio.Event()
        self.home_rows: Float32Array | None = None


class SwarmPort:
    """An `ExpertPort` over a star.

    Args:
        cells, kernels: what is computed here.
        table: who holds what, home included.
        settings: codec, combine, deadline of remote calls.

    `run` must be running on the event loop while passes are made on other threads.
    """

    def __init__(
        self,
        model_id: str,
        *,
        cells: Cells,
        kernels: Kernels,
        table: HolderTable,
        peers: PeerLookup,
        settings: WireSettings,
    ) -> None:
        self._model_id = bytes.fromhex(model_id)
        self._cells = cells
        self._kernels = kernels
        self._table = table
        self._settings = settings
        self._star = Star(peers, self._from_home)
        self._waiting: dict[int, _Ticket] = {}  # by id of the call, for `_from_home`
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self.ledger = TripsLedger()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry calls until cancelled; a call under way then ends with `Interrupted`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # --- on the decoding thread ---

    def leave(self, inputs: ExpertInputs) -> _Ticket | Float32Array:
        x = inputs.x
        if inputs.call.recipe.weights == "before":
            x = x.reshape(*inputs.ids.shape, -1)
        layer, index, n_out = inputs.call.layer, inputs.call.index, inputs.call.n_out
        call = MoeCall(self._model_id, layer, index, x, inputs.ids, inputs.weights, n_out)
        holders = self._table.holders(layer, index)
        home = holders.holders[0] if holders.holders and holders.holders[0].peer_id == HOME else None
        if home is None:
            return self._send(call, holders)
        needed = 0
        for expert in set(call.ids.ravel().tolist()):
            needed |= 1 << expert
        if needed & ~home.held == 0:
            return self._all_at_home(call)
        ticket = self._send(call, holders)
        if needed & home.held:
            self._compute_share(ticket, holders)
        return ticket

    def enter(self, ticket: _Ticket | Float32Array) -> Float32Array:
        if not isinstance(ticket, _Ticket):
            return ticket
        begun = time.perf_counter()
        ticket.done.wait()
        if ticket.stats is not None:
            self.ledger.count_call(ticket.stats, len(ticket.call.ids), time.perf_counter() - begun)
        if ticket.result is None:
            raise ticket.error or Interrupted("the node is shutting down")
        return ticket.result

    def _all_at_home(self, call: MoeCall) -> Float32Array:
        begun = time.perf_counter()
        n_tokens, n_used = call.ids.shape
        x = call.x.reshape(-1, call.x.shape[-1])
        counts = np.full(len(x), call.ids.size // len(x), np.uint16)
        weights = None if call.weights is None else call.weights.reshape(-1)
        rows = self._compute(call, x, counts, call.ids.ravel().astype(np.uint16), weights)
        result = add_slots(rows.reshape(n_tokens, n_used, call.n_out))
        self.ledger.count_home(time.perf_counter() - begun, whole=True)
        return result

    def _compute_share(self, ticket: _Ticket, holders: LayerHolders) -> None:
        """Compute what is held here of a call whose other experts are on their way."""
        call = ticket.call
        begun = time.perf_counter()
        try:
            parts = plan(call.ids, holders, row_per_pair=call.row_per_pair)
            mine = next(part for part in parts if part.peer_id == HOME)
            x, weights = call.part(mine)
            ticket.home_rows = self._compute(call, x, mine.counts, mine.experts, weights)
        except PanalError:
            pass  # the star plans the same and reports the same
        finally:
            self.ledger.count_home(time.perf_counter() - begun, whole=False)
            self._on_loop(ticket.home_ready.set)

    def _compute(
        self,
        call: MoeCall,
        x: Float32Array,
        counts: npt.NDArray[np.uint16],
        experts: npt.NDArray[np.uint16],
        weights: Float32Array | None,
    ) -> Float32Array:
        held = self._cells.find(self._model_id, call.layer, call.call_index)
        assert held is not None  # the table's home entry is made from these cells
        return held.compute(self._kernels, x, counts, experts, weights)

    def _send(self, call: MoeCall, holders: LayerHolders) -> _Ticket:
        ticket = _Ticket(call)
        self._on_loop(self._start, ticket, holders)
        return ticket

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            if self._token is None:
                raise trio.RunFinishedError
            self._token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            raise Interrupted("the node is shutting down") from None

    # --- on the event loop ---

    def _start(self, ticket: _Ticket, holders: LayerHolders) -> None:
        if self._nursery is None:
            ticket.done.set()
        else:
            self._nursery.start_soon(self._carry, ticket, holders)

    async def _carry(self, ticket: _Ticket, holders: LayerHolders) -> None:
        self._waiting[id(ticket.call)] = ticket
        try:
            ticket.result, ticket.stats = await self._star.dispatch(ticket.call, holders, self._settings)
        except PanalError as error:
            ticket.error = error
        finally:
            del self._waiting[id(ticket.call)]
            ticket.done.set()

    async def _from_home(self, call: MoeCall, _part: ServerCall) -> Float32Array:
        ticket = self._waiting[id(call)]
        await ticket.home_ready.wait()
        if ticket.home_rows is None:
            raise LocalError(f"layer {call.layer}: the experts held here could not be computed")
        return ticket.home_rows
