"""The expert server: answers `/panal/experts/1` and `/panal/slices/1` for the cells a node holds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import msgspec
import numpy as np
import trio

from node.engine.kernels import Kernels
from node.serve.accounts import Accounts, Charge
from node.serve.cells import Cells, HeldCall
from node.serve.compute_thread import ComputeThread
from node.software import software
from node.swarm.holdings_told import tell_holdings
from routing.dispatch.combine import sum_pairs, sum_runs
from routing.errors import LocalError
from routing.peer_calls import PeerCalls
from routing.quic.admission import origin_of
from routing.quic.connection import Connection
from routing.quic.errors import StreamClosed
from routing.quic.limits import SENDING_PER_CONNECTION
from routing.quic.stream import Stream
from routing.wire import holdings, messages
from routing.wire.codecs import CODEC_NAMES, Float32Array
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    Refusal,
    RefusalCode,
    max_reply_bytes,
    refusal_to,
)
from routing.wire.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, MAX_ROWS, SERVER_LIMITS

MAX_WAITING = 64
"""Calls in the queue before new ones are refused, but for the first one of a caller that has none there: 64
decode calls are a second of a slow device."""

MAX_WAITING_BYTES = 512 << 20
"""Of the calls in the queue, however few they are: as much as may be arriving (routing.quic.limits)."""

MAX_UNDER_WAY = 48
"""Calls of one caller, from arrival until all but a megabyte of the answer has been sent, before more are
refused: to compute what nobody reads takes time from others, and memory. A backbone has eight."""

MAX_UNREAD_BYTES = SENDING_PER_CONNECTION
"""The same for what waits to be read on all connections of a caller, however many answers it is."""

AT_ONCE_SECONDS = 0.0005
"""A call that should take no longer is computed on the event loop, if no other waits: to hand it to a thread
and back takes 0.2 ms on an idle machine and 1.5 ms where nodes share the cores, and to read what the socket
brings at one wake-up may take longer (routing.quic.udp)."""

PAIR_SMOOTHING = 0.2
"""Weight of the newest call in the running mean of seconds a pair of each layer's calls, by which that is
foreseen. What had to come from the disk takes a dozen calls to be forgotten."""

UNPAID_AGAIN_MS = 1_000
"""What a caller that owes too much is told to wait for: to ask again costs both one message."""

COME_AGAIN_MS = 5_000
"""What callers are told to wait for while the node is paused; by then they know that it serves nothing."""

LOAD_SMOOTHING = 0.1
"""Weight of the newest call in the running mean of compute seconds, from which the load hint is made."""


@dataclass
class ServerCounts:
    """What an expert server has done since it started."""

    calls: int = 0
    pairs: int = 0
    refused: int = 0
    compute_seconds: float = 0.0


class ExpertServer:
    """Serves cells. A call is computed as if it were alone, so its bits never depend on company.

    Args:
        name: what this node is called, told to peers.
        accounts: what callers owe; None: everything is free.

    Attributes:
        holdings: what it tells peers that it serves.
        calls: how many it has answered, by peer.
    """

    def __init__(
        self, cells: Cells, kernels: Kernels, *, name: str, accounts: Accounts | None = None
    ) -> None:
        self.accounts = accounts
        self._cells = cells
        self._kernels = kernels
        self._thread = ComputeThread("panal-experts")
        self._mean_seconds = 0.0
        self._pace: WeakKeyDictionary[HeldCall, float] = WeakKeyDictionary()
        self._waiting_bytes = 0
        self._connections: dict[str, WeakSet[Connection]] = {}
        self._under_way: Counter[str] = Counter()
        self.counts = ServerCounts()
        self.calls = PeerCalls()
        self.holdings = holdings.Holdings(
            versions=[messages.VERSION],
            name=name,
            slices=list(cells.slices()),
            codecs=list(CODEC_NAMES),
            combines=[combine.name.lower() for combine in Combine],
            max_rows=MAX_ROWS,
            software=software(),
            build=kernels.build,
        )
        self._told = holdings.encode_holdings(self.holdings)
        self._paused = ""

    def pause(self, text: str) -> None:
        """Refuse calls from now on, and tell of no slices; those that wait already are computed."""
        self._paused = text
        self._tell([])

    def resume(self) -> None:
        """Take calls again."""
        self._paused = ""
        self._tell(self._cells.slices())

    def swap(self, cells: Cells) -> None:
        """Serve these cells from now on. The files of the former stay open as long as calls may use them.

        Raises:
            LocalError: they cannot be announced; those before stay.
        """
        if not self._paused:
            self._tell(cells.slices())
        self._cells = cells

    def _tell(self, slices: Sequence[holdings.Slice]) -> None:
        told = msgspec.structs.replace(self.holdings, slices=list(slices))
        self._told = holdings.encode_holdings(told)
        self.holdings = told

    @property
    def cells(self) -> Cells:
        return self._cells

    @property
    def kernels(self) -> Kernels:
        return self._kernels

    def close(self) -> None:
        self._thread.close()

    async def serve_slices(self, stream: Stream) -> None:
        """Handler of `/panal/slices/1`."""
        await tell_holdings(stream, lambda: self._told)

    async def serve_experts(self, stream: Stream) -> None:
        """Handler of `/panal/experts/1`: one request after the other; more at once take more streams."""
        while True:
            try:
                message = await stream.receive_message(MAX_REQUEST_BYTES)
            except StreamClosed:
                return
            caller = self._caller_of(stream.connection)
            self._under_way[caller] += 1
            try:
                await stream.send_message(messages.encode_message(await self._reply(message, stream)))
                await trio.lowlevel.checkpoint()  # a call that was computed at once has let nobody else go on
            finally:
                self._under_way[caller] -= 1
                if not self._under_way[caller]:
                    del self._under_way[caller]

    async def _reply(self, message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
        charge = Charge(self.accounts, stream.peer_id)
        try:
            reply = await self._answer(message, stream, charge)
            charge.end(is_answered=isinstance(reply, ExpertsAnswer))
            return reply
        finally:
            charge.end(is_answered=False)

    async def _answer(self, message: bytes, stream: Stream, charge: Charge) -> ExpertsAnswer | Refusal:
        arrived = time.perf_counter()
        try:
            request = messages.decode_message(message, SERVER_LIMITS, peer=stream.peer_id)
        except ProtocolError as error:
            self.counts.refused += 1
            return Refusal(error.call_id, 0, 0, RefusalCode.MALFORMED, str(error))
        if not isinstance(request, ExpertsRequest):
            self.counts.refused += 1
            return Refusal(0, 0, 0, RefusalCode.MALFORMED, "a request is expected here")
        caller = self._caller_of(stream.connection)
        held = self._admit(request, caller)
        if isinstance(held, Refusal):
            self.counts.refused += 1
            return held
        if unpaid := charge.refusal(request):
            self.counts.refused += 1
            return refusal_to(request, RefusalCode.UNPAID, unpaid, load=UNPAID_AGAIN_MS)
        deadline = arrived + request.deadline_ms / 1000
        self._waiting_bytes += len(message)
        try:
            if self._takes_no_time(held, request):
                result = self._compute(held, request, deadline, stream.connection)
            else:
                result = await self._thread.run(
                    self._compute, held, request, deadline, stream.connection, caller=caller
                )
        finally:
            self._waiting_bytes -= len(message)
        if isinstance(result, Refusal):
            self.counts.refused += 1
            return result
        y, seconds = result
        self.counts.calls += 1
        self.calls.served(stream.peer_id)
        self.counts.pairs += request.pairs
        self.counts.compute_seconds += seconds
        self._mean_seconds += LOAD_SMOOTHING * (seconds - self._mean_seconds)
        self._note_pace(held, seconds / request.pairs)
        return ExpertsAnswer(
            call_id=request.call_id,
            layer=request.layer,
            call_index=request.call_index,
            y=y,
            codec=request.codec_back,
            combine=request.combine,
            compute_us=min(round(seconds * 1e6), 0xFFFFFFFF),
            load=self.load(),
        )

    def _takes_no_time(self, held: HeldCall, request: ExpertsRequest) -> bool:
        """Whether a call may be computed without leaving the event loop."""
        pace = self._pace.get(held, math.inf)
        return pace * request.pairs <= AT_ONCE_SECONDS and self._thread.is_idle

    def _note_pace(self, held: HeldCall, seconds: float) -> None:
        """What a pair of a call has taken."""
        pace = self._pace.get(held)
        self._pace[held] = seconds if pace is None else pace + PAIR_SMOOTHING * (seconds - pace)

    def _admit(self, request: ExpertsRequest, caller: str) -> HeldCall | Refusal:
        """The experts to ask, or why not."""
        load = self.load()

        def refuse(code: RefusalCode, text: str, missing: tuple[int, ...] = ()) -> Refusal:
            return refusal_to(request, code, text, missing=missing, load=load)

        if self._paused:
            return refusal_to(request, RefusalCode.OVERLOADED, self._paused, load=COME_AGAIN_MS)
        if not self._cells.knows(request.model_id):
            return refuse(
                RefusalCode.UNKNOWN_MODEL, f"model {request.model_id.hex()[:12]} is not served here"
            )
        held = self._cells.find(request.model_id, request.layer, request.call_index)
        if held is None:
            return refuse(RefusalCode.UNKNOWN_CALL, f"nothing of layer {request.layer} is served here")
        missing = held.missing(request.experts)
        if missing:
            return refuse(
                RefusalCode.NOT_HELD, f"layer {request.layer}: not all experts are served here", missing
            )
        call = held.call
        if request.x.shape[1] != call.n_in or request.n_out != call.n_out:
            return refuse(
                RefusalCode.MALFORMED,
                f"layer {request.layer} takes rows of {call.n_in} and gives {call.n_out}, "
                f"asked were {request.x.shape[1]} and {request.n_out}",
            )
        if (request.weights is not None) != (call.recipe.weights == "after"):
            return refuse(
                RefusalCode.MALFORMED, f"layer {request.layer} weighs {call.recipe.weights} the experts"
            )
        if request.combine is Combine.STABLE and request.run_length != call.run_length:
            return refuse(
                RefusalCode.MALFORMED,
                f"layer {request.layer} has runs of {call.run_length} experts, not of {request.run_length}",
            )
        if int(request.counts.max()) > call.n_experts:
            return refuse(
                RefusalCode.MALFORMED, f"a row asks more experts than the {call.n_experts} there are"
            )
        if max_reply_bytes(request) > MAX_MESSAGE_BYTES:
            return refuse(
                RefusalCode.OVERLOADED, f"the answer would pass {MAX_MESSAGE_BYTES} bytes: ask for fewer rows"
            )
        if self._thread.waiting >= MAX_WAITING and self._thread.has_waiting(caller):
            return refuse(RefusalCode.OVERLOADED, f"{MAX_WAITING} calls are waiting")
        if self._under_way[caller] > MAX_UNDER_WAY:
            return refuse(RefusalCode.OVERLOADED, f"{MAX_UNDER_WAY} calls of this caller are under way")
        unread = sum(each.unread_answers for each in self._connections[caller])
        if unread > MAX_UNREAD_BYTES:
            return refuse(RefusalCode.OVERLOADED, f"{unread} bytes of answers wait to be read")
        if self._waiting_bytes + request.x.nbytes > MAX_WAITING_BYTES:
            return refuse(RefusalCode.OVERLOADED, f"{MAX_WAITING_BYTES} bytes of calls are waiting")
        return held

    def _compute(
        self, held: HeldCall, request: ExpertsRequest, deadline: float, caller: Connection
    ) -> tuple[Float32Array, float] | Refusal:
        """On the compute thread; `deadline` on the clock of `time.perf_counter`."""
        if not caller.is_open:
            return refusal_to(request, RefusalCode.DEADLINE, "its caller has gone")
        if time.perf_counter() > deadline:
            return refusal_to(request, RefusalCode.DEADLINE, "it waited in the queue past its deadline")
        begun = time.perf_counter()
        try:
            y = held.compute(self._kernels, request.x, request.counts, request.experts, request.weights)
        except LocalError as error:
            return refusal_to(request, RefusalCode.INTERNAL, str(error))
        if request.combine is Combine.SUM:
            y = sum_pairs(y, request.counts)
        elif request.combine is Combine.STABLE:
            y = sum_runs(y, request.counts, request.experts, request.run_length)
        if not np.isfinite(y).all():
            return refusal_to(
                request, RefusalCode.INTERNAL, f"layer {request.layer}: the experts gave NaN or infinity"
            )
        return y, time.perf_counter() - begun

    def load(self) -> int:
        """Milliseconds that a call arriving now would wait."""
        return min(math.ceil(self._thread.waiting * self._mean_seconds * 1000), 0xFFFF)

    def _caller_of(self, connection: Connection) -> str:
        """Who takes turns with others: an address, since of identities anybody has as many as he likes."""
        caller = connection.peer_id if connection.is_carried else origin_of(connection.first_address[0])
        known = self._connections.get(caller)
        if known is None:
            self._connections = {each: those for each, those in self._connections.items() if those}
            known = self._connections[caller] = WeakSet()
        known.add(connection)
        return caller
