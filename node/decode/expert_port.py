"""Between the decoding thread and the swarm: a call leaves the graph here and its result comes back.

The decoding thread is llama.cpp's; the star lives on the event loop. What is held at home is computed on
the decoding thread while the requests travel. A call of which everything is at home never leaves the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Collection

import trio

from market.budget import Purse
from node.decode.at_home import at_home
from node.decode.convictions import Convictions
from node.decode.ledger import TripsLedger
from node.engine.expert_holes import ExpertInputs
from node.engine.kernels import Kernels
from node.home.heat import HeatLog
from node.model.manifest import ExpertCall
from node.serve.cells import Cells, HeldCall
from routing.dispatch.call import CallStats, MoeCall, WireSettings, combine_for
from routing.dispatch.plan import HOME, LayerHolders, ServerCall, plan
from routing.dispatch.star import OnAnswer, OnGivenUp, PeerLookup, Star
from routing.dispatch.unpaid import Unpaid
from routing.errors import LocalError, PanalError
from routing.estimates import Estimates
from routing.peer_calls import PeerCalls
from routing.table import HolderTable
from routing.tariff import Tariff
from routing.weighing import WEIGH_SECONDS, Weighing
from routing.wire.codecs import Float32Array
from routing.wire.experts import Combine, ExpertsAnswer, ExpertsRequest, RefusalCode, Refused


def combine_of(call: ExpertCall, wanted: Combine) -> Combine:
    """How a call of a model is combined where this is wanted."""
    return combine_for(wanted, row_per_pair=call.recipe.weights == "before")


Settle = Callable[[Collection[str]], Awaitable[None]]
"""Waits until answers of these peers that are being checked have been, for a while at most."""


class Interrupted(LocalError):
    """The event loop ended while a pass was waiting for experts."""


class _Ticket:
    """A call under way. `done` belongs to the decoding thread, `home_ready` to the event loop."""

    def __init__(self, call: MoeCall, ledger: TripsLedger) -> None:
        self.call = call
        self.ledger = ledger
        self.done = threading.Event()
        self.result: Float32Array | None = None
        self.stats = CallStats()
        self.error: PanalError | None = None
        self.given_up = False
        self.home_ready = trio.Event()
        self.home_rows: Float32Array | None = None


class SwarmPort:
    """An `ExpertPort` over a star.

    Args:
        cells, kernels: what is computed here.
        table: who holds what; what is at home is written into it here.
        settings: codec, combine, deadline of remote calls.

    Attributes:
        purse: pays for what peers answer; whoever makes passes looks whether it may go on.
        convictions: of peers whose answers were false; whoever keeps what they computed looks at them.
        settle: what waits for answers that are being checked (node.market.auditor).

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
        self._kernels = kernels
        self._table = table
        self._home_lock = threading.Lock()
        self.settings = settings
        self.estimates = Estimates()
        self._star = Star(peers, self._from_home, self.estimates)
        self._weighing = Weighing(table, self.estimates, peers)
        self._waiting: dict[int, _Ticket] = {}  # by id of the call, for `_from_home`
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stopped = False
        self._left_out: list[float] = []
        self.ledger = TripsLedger()
        self.purse = Purse()
        self.convictions = Convictions()
        self.settle: Settle = nothing_to_settle
        self.calls = PeerCalls()
        self.unpaid = Unpaid()
        self.heat = HeatLog()
        self.set_home(cells)

    def set_home(self, cells: Cells) -> None:
        """From now on this is at home. From any thread; a call under way keeps what it began with."""
        with self._home_lock:
            self._cells = cells
            self._table.set_home(cells.experts(self._model_id))

    def price_by(self, tariff: Tariff | None) -> None:
        """Weigh what servers ask; None: no longer."""
        self._weighing.tariff = tariff

    def prices_changed(self) -> None:
        """Somebody asks something else now."""
        self._weighing.prices_changed()

    def watch_answers(self, on_answer: OnAnswer | None, on_given_up: OnGivenUp | None = None) -> None:
        """Have each answer that arrives priced, or looked at, and what is waited for no longer counted; None:
        no longer. What is owed is spent at once: of two that were asked both may answer, the second when the
        call has ended."""

        def spent(
            call: MoeCall, part: ServerCall, request: ExpertsRequest, answer: ExpertsAnswer, path: str
        ) -> int:
            assert on_answer is not None
            price = on_answer(call, part, request, answer, path)
            self.purse.pay(price, time.time())
            return price

        self._star.on_answer = None if on_answer is None else spent
        self._star.on_given_up = on_given_up

    def next_call_id(self) -> int:
        """For a call that somebody else makes; on the event loop."""
        return self._star.next_call_id()

    @property
    def home(self) -> Cells:
        """What is computed here; another object when that changes."""
        return self._cells

    @property
    def has_home(self) -> bool:
        """Whether anything is computed here."""
        return bool(self._cells.experts(self._model_id))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry calls until cancelled; a call under way then ends with `Interrupted`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            task_status.started()
            try:
                while True:
                    self._weighing.look(trio.current_time())
                    await trio.sleep(WEIGH_SECONDS)
            finally:
                self._nursery = None
                self._stopped = True

    # --- on the decoding thread ---

    def leave(self, inputs: ExpertInputs, ledger: TripsLedger | None = None) -> _Ticket | Float32Array:
        """As `ExpertPort.leave`; from several threads at once if each has its own ledger."""
        ledger = ledger or self.ledger
        if self._stopped:  # also where everything is at home and nobody would be waited for
            raise Interrupted("the node is shutting down")
        call = inputs.call
        with self._home_lock:  # what is computed here is what the plan gives to home
            held = self._cells.find(self._model_id, call.layer, call.index)
            holders = self._table.holders(call.layer, call.index)
        if inputs.at_home_only:
            return self._guess(inputs, held)
        self.heat.note(call.layer, call.index, inputs.ids)
        if held is None or not holders.holders or holders.holders[0].peer_id != HOME:
            return self._send(self._moe_call(inputs), holders, ledger)
        needed = 0
        if not held.is_whole:
            for expert in set(inputs.ids.ravel().tolist()):
                needed |= 1 << expert
        if needed & ~holders.holders[0].held == 0:
            begun = time.perf_counter()
            by_runs = combine_of(call, self.settings.combine) is Combine.STABLE
            result = held.routed(self._kernels, inputs.x, inputs.ids, inputs.weights, by_runs=by_runs)
            ledger.count_home(time.perf_counter() - begun, whole=True)
            return result
        ticket = self._send(self._moe_call(inputs), holders, ledger)
        if needed & holders.holders[0].held:
            self._compute_share(ticket, held, holders)
        return ticket

    def enter(self, ticket: _Ticket | Float32Array) -> Float32Array:
        if not isinstance(ticket, _Ticket):
            return ticket
        begun = time.perf_counter()
        ticket.done.wait()
        if ticket.given_up:
            raise Interrupted("the call was given up")
        ticket.ledger.count_faults(ticket.stats, time.perf_counter())
        if ticket.result is not None:
            ticket.ledger.count_call(ticket.stats, len(ticket.call.ids), time.perf_counter() - begun)
        else:
            raise ticket.error or Interrupted("the node is shutting down")
        return ticket.result

    def give_up(self, ticket: _Ticket | Float32Array) -> None:
        """End the wait for a call, from any thread: `enter` raises Interrupted."""
        if isinstance(ticket, _Ticket):
            ticket.given_up = True
            ticket.done.set()

    def left_out(self) -> list[float]:
        """Shares of the router's weight that guesses have left out since this was asked last, one a call."""
        told, self._left_out = self._left_out, []
        return told

    def _guess(self, inputs: ExpertInputs, held: HeldCall | None) -> Float32Array:
        result, missing = at_home(inputs, held, self._kernels)
        self._left_out.append(missing)
        return result

    def _moe_call(self, inputs: ExpertInputs) -> MoeCall:
        call, x = inputs.call, inputs.x
        if call.recipe.weights == "before":
            x = x.reshape(*inputs.ids.shape, -1)
        return MoeCall(
            self._model_id,
            call.layer,
            call.index,
            x,
            inputs.ids,
            inputs.weights,
            call.n_out,
            call.run_length,
        )

    def _compute_share(self, ticket: _Ticket, held: HeldCall, holders: LayerHolders) -> None:
        """Compute what is held here of a call whose other experts are on their way."""
        call = ticket.call
        begun = time.perf_counter()
        try:
            parts = plan(call.ids, holders, row_per_pair=call.row_per_pair)
            mine = next(part for part in parts if part.peer_id == HOME)
            x, weights = call.part(mine)
            ticket.home_rows = held.compute(self._kernels, x, mine.counts, mine.experts, weights)
        except PanalError:
            pass  # the star plans the same and reports the same
        finally:
            ticket.ledger.count_home(time.perf_counter() - begun, whole=False)
            self._on_loop(ticket.home_ready.set)

    def _send(self, call: MoeCall, holders: LayerHolders, ledger: TripsLedger) -> _Ticket:
        ticket = _Ticket(call, ledger)
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
            ticket.result, _ = await self._star.dispatch(ticket.call, holders, self.settings, ticket.stats)
        except PanalError as error:
            ticket.error = error
        finally:
            self.calls.dispatched(ticket.stats)
            self._note_unpaid(ticket.stats)
            del self._waiting[id(ticket.call)]
            # Before the next layer is planned: what hangs is waited for once.
            self._weighing.look(trio.current_time())
            ticket.done.set()

    def _note_unpaid(self, stats: CallStats) -> None:
        for server in stats.servers:
            self.unpaid.served(server.peer_id)
        for failure in stats.failures:
            if isinstance(failure.error, Refused) and failure.error.refusal.code is RefusalCode.UNPAID:
                self.unpaid.refused(failure.peer_id, failure.error.refusal.text)

    async def _from_home(self, call: MoeCall, _part: ServerCall) -> Float32Array:
        ticket = self._waiting[id(call)]
        await ticket.home_ready.wait()
        if ticket.home_rows is None:
            raise LocalError(f"layer {call.layer}: the experts held here could not be computed")
        return ticket.home_rows


async def nothing_to_settle(_: Collection[str]) -> None:
    """Nobody checks anything."""
