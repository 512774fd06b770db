"""The star: one message to each server of a call, all in flight at once, home computed meanwhile.

A peer that fails (error, refusal, late, or an answer that is not one) loses its experts for this call;
they move, each with all its rows, to the peers that are left. Nothing is added before every pair has
exactly one answer, so nothing can be added twice.

Works through two ports: `ExpertPeer` (the QUIC adapter) and `HomeExperts` (the engine). Home is an async
callable and not a function that the star runs in a thread: the engine knows which thread owns its graphs,
and the star stays deterministic under a test's clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol

import numpy as np
import trio

from routing.dispatch.call import CallStats, Failure, MoeCall, ServerStats, WireSettings, check_shapes
from routing.dispatch.combine import Part, combine_rows, combine_sum, sum_pairs
from routing.dispatch.errors import ExpertsUnavailable
from routing.dispatch.plan import HOME, IndexArray, LayerHolders, ServerCall, plan
from routing.errors import LocalError, PanalError, PeerError
from routing.wire.codecs import Float32Array, finite
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    RefusalCode,
    Refused,
    check_answer,
    framed_nbytes,
    max_reply_bytes,
)
from routing.wire.limits import FRAME_PREFIX_BYTES, MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES

CALL_IDS = 2**32
"""Call ids are u32 and start again at 0; only those in flight must differ."""


OVERFLOW = "the answers overflow when added, one of them is false"


class ExpertPeer(Protocol):
    """A connected expert server."""

    @property
    def peer_id(self) -> str:
        """Its libp2p peer id as text."""

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        """Ask once.

        Raises:
            Refused: if it refused.
            PeerError: if it is gone or sent something that is no reply.
        """


HomeExperts = Callable[[MoeCall, ServerCall], Awaitable[Float32Array]]
"""Computes this node's own part: each pair's output row, weighted, f32 [pairs, n_out], in pair order."""

PeerLookup = Callable[[str], ExpertPeer | None]
"""A peer by id; None if it is not connected now."""


class Star:
    """Dispatches MoE calls. One for a node; calls may overlap."""

    def __init__(self, peer: PeerLookup, home: HomeExperts | None = None) -> None:
        self._peer = peer
        self._home = home
        self._call_ids = count()

    async def dispatch(
        self, call: MoeCall, holders: LayerHolders, settings: WireSettings
    ) -> tuple[Float32Array, CallStats]:
        """Compute a call's routed output: f32 [n_tokens, n_out].

        Raises:
            ExpertsUnavailable: if experts have no holder left; names layer, experts, peers and reasons.
            LocalError: if the call's shapes do not fit, or home failed.
        """
        check_shapes(call)
        if call.row_per_pair and settings.combine is Combine.SUM:
            settings = WireSettings(settings.codec, settings.codec_back, Combine.ROWS, settings.timeout)
        running = _Dispatch(self._peer, self._home, self._call_ids, call, holders, settings)
        parts = await running.run()
        n_tokens, n_used = call.ids.shape
        if settings.combine is Combine.ROWS:
            result = combine_rows(parts, n_tokens, n_used, call.n_out)
        else:
            result = combine_sum(parts, n_tokens, call.n_out)
        if not finite(result):
            # Each answer was finite: somebody's values are so large that they overflow when added.
            peers = sorted({part.call.peer_id for part in parts} - {HOME})
            raise ExpertsUnavailable(
                call.layer, sorted(set(call.ids.ravel().tolist())), dict.fromkeys(peers, OVERFLOW)
            )
        return result, running.stats


class _Dispatch:
    """One call on its way: what is asked, what came, who failed."""

    def __init__(
        self,
        peer: PeerLookup,
        home: HomeExperts | None,
        call_ids: count[int],
        call: MoeCall,
        holders: LayerHolders,
        settings: WireSettings,
    ) -> None:
        self.peer = peer
        self.home = home
        self.call_ids = call_ids
        self.call = call
        self.holders = holders
        self.settings = settings
        self.stats = CallStats()
        self.parts: list[Part] = []
        self.error: PanalError | None = None
        self.refused_some: set[str] = set()

    async def run(self) -> list[Part]:
        first = self.plan(None)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            self.start(first, wave=0)
        if self.error is not None:
            raise self.error
        return self.parts

    def plan(self, pairs: IndexArray | None) -> list[ServerCall]:
        return plan(self.call.ids, self.holders, row_per_pair=self.call.row_per_pair, pairs=pairs)

    def start(self, calls: list[ServerCall], wave: int) -> None:
        # Peers first: their requests leave before home's work is even started.
        for server_call in sorted(calls, key=lambda each: each.peer_id == HOME):
            if server_call.peer_id == HOME:
                self.nursery.start_soon(self.compute_home, server_call, wave)
            else:
                self.nursery.start_soon(self.ask, server_call, wave)

    async def compute_home(self, server_call: ServerCall, wave: int) -> None:
        try:
            if self.home is None:
                raise LocalError(
                    f"layer {self.call.layer}: experts are planned at home, where none are served"
                )
            y = await self.home(self.call, server_call)
            if y.shape != (server_call.pairs.size, self.call.n_out) or y.dtype != np.float32:
                raise LocalError(f"layer {self.call.layer}: home gave {y.dtype} {list(y.shape)}")
        except PanalError as error:
            self.give_up(error)
            return
        if self.settings.combine is Combine.SUM:
            y = sum_pairs(y, server_call.counts)
        self.stats.home_pairs += server_call.pairs.size
        self.parts.append(Part(server_call, y, wave))

    async def ask(self, server_call: ServerCall, wave: int) -> None:
        try:
            y = await self.answer(server_call, wave)
        except PeerError as error:
            self.move(server_call, wave, error)
        except LocalError as error:
            self.give_up(error)
        else:
            self.parts.append(Part(server_call, y, wave))

    async def answer(self, server_call: ServerCall, wave: int) -> Float32Array:
        """Ask one server; its checked y."""
        peer_id = server_call.peer_id
        peer = self.peer(peer_id)
        if peer is None:
            raise PeerError(f"{peer_id} is not connected", peer=peer_id)
        request = self.request(server_call)
        size = self.checked_size(request)
        self.stats.waves = max(self.stats.waves, wave + 1)
        self.stats.bytes_out += size
        sent_at = trio.current_time()
        answer: ExpertsAnswer | None = None
        try:
            with trio.move_on_after(self.settings.timeout):
                answer = await peer.call(request)
        except Refused as refused:
            self.stats.bytes_back += framed_nbytes(refused.refusal)
            raise
        if answer is None:
            raise PeerError(f"{peer_id} gave no answer in {self.settings.timeout:g} s", peer=peer_id)
        self.stats.bytes_back += framed_nbytes(answer)
        check_answer(request, answer, peer_id)
        wait = trio.current_time() - sent_at
        self.stats.servers.append(
            ServerStats(peer_id, wait, answer.compute_us / 1e6, answer.load, server_call.pairs.size)
        )
        return answer.y

    def request(self, server_call: ServerCall) -> ExpertsRequest:
        x, weights = self.call.part(server_call)
        if not finite(x) or (weights is not None and not finite(weights)):
            # Every server would have to refuse it: say whose fault it is.
            raise LocalError(
                f"layer {self.call.layer}: the trunk gave NaN or infinity: is the model file intact?"
            )
        return ExpertsRequest(
            model_id=self.call.model_id,
            layer=self.call.layer,
            call_index=self.call.call_index,
            call_id=next(self.call_ids) % CALL_IDS,
            x=x,
            counts=server_call.counts,
            experts=server_call.experts,
            weights=weights,
            n_out=self.call.n_out,
            codec=self.settings.codec,
            codec_back=self.settings.codec_back,
            combine=self.settings.combine,
            deadline_ms=max(1, round(self.settings.timeout * 1000)),
        )

    def checked_size(self, request: ExpertsRequest) -> int:
        """Bytes of the request on its stream, if it and its answer are not too large to be taken."""
        size = framed_nbytes(request)
        for what, nbytes, limit in (
            ("request", size - FRAME_PREFIX_BYTES, MAX_REQUEST_BYTES),
            ("answer", max_reply_bytes(request), MAX_MESSAGE_BYTES),
        ):
            if nbytes > limit:
                raise LocalError(
                    f"layer {self.call.layer}: the {what} would have {nbytes} bytes, the limit is {limit}: "
                    "use a smaller ubatch, or combine = sum"
                )
        return size

    def move(self, server_call: ServerCall, wave: int, error: PeerError) -> None:
        """Give a failed part's experts to who is left, or give up."""
        peer_id = server_call.peer_id
        self.stats.failures.append(Failure(peer_id, str(error), error))
        self.holders = self.holders.without(peer_id, self.lost(server_call, error), str(error))
        try:
            calls = self.plan(server_call.pairs)
        except ExpertsUnavailable as unavailable:
            self.give_up(unavailable)
        else:
            self.start(calls, wave + 1)

    def lost(self, server_call: ServerCall, error: PeerError) -> int:
        """The experts, as bits, that this peer is not asked for again in this call.

        All of them, unless it says which of those asked for it does not hold: then it may be asked once
        more for the rest.
        """
        peer_id = server_call.peer_id
        asked = set(server_call.experts.tolist())
        if isinstance(error, Refused) and error.refusal.code is RefusalCode.NOT_HELD:
            missing = asked.intersection(error.refusal.missing)
            if missing and peer_id not in self.refused_some:
                self.refused_some.add(peer_id)
                return sum(1 << expert for expert in missing)
        lost = 0
        for expert in asked:
            lost |= 1 << expert
        for holder in self.holders.holders + self.holders.reserve:
            if holder.peer_id == peer_id:
                lost |= holder.held
        return lost

    def give_up(self, error: PanalError) -> None:
        """The first error that ends the call is the one told; the rest is cancelled."""
        if self.error is None:
            self.error = error
        self.nursery.cancel_scope.cancel()
