"""The star: one message to each server of a call, all in flight at once, home computed meanwhile.

1. A peer that fails (error, refusal, no answer by the hard deadline, or an answer that is not one) loses its
   experts for this call; they move, each with all its rows, to the peers that are left.
2. A peer whose answer is late, by what was measured of it, stays in the race while others are asked as well
   (`routing.dispatch.race`).
3. Nothing is added before every pair has exactly one answer, and a race has one winner: nothing can be added
   twice, and no expert's rows come half from one answer and half from another.

Works through two ports: `ExpertPeer` (the QUIC adapter) and `HomeExperts` (the engine). Home is an async
callable and not a function that the star runs in a thread: the engine knows which thread owns its graphs,
and the star stays deterministic under a test's clock.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Protocol

import numpy as np
import trio

from routing.dispatch.asking import CALL_IDS, checked_size, make_request
from routing.dispatch.call import (
    CallStats,
    Failure,
    MoeCall,
    ServerStats,
    WireSettings,
    check_shapes,
    combine_for,
)
from routing.dispatch.combine import Part, combine_rows, combine_stable, combine_sum, sum_pairs, sum_runs
from routing.dispatch.errors import ExpertsUnavailable
from routing.dispatch.plan import HOME, IndexArray, LayerHolders, ServerCall, plan
from routing.dispatch.race import Race
from routing.dispatch.watch import Watch
from routing.errors import LocalError, PanalError, PeerError
from routing.estimates import Estimates, Fault
from routing.latency import Cost
from routing.wire.codecs import Float32Array, finite
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    RefusalCode,
    Refused,
    check_answer,
    framed_nbytes,
    max_reply_bytes,
)

OVERFLOW = "its answer is so large that the sum overflows"

LONGEST_PATIENCE = 0.5
"""Share of the hard deadline after which an answer is late in any case: who is asked then needs time too."""


class ExpertPeer(Protocol):
    """A connected expert server."""

    @property
    def peer_id(self) -> str:
        """Its libp2p peer id as text."""

    @property
    def path(self) -> str:
        """The route it is reached by, in few words (`direct`, `relayed via X`); times are kept for each."""

    @property
    def rtt(self) -> float:
        """Smoothed round trip of the connection in seconds, also while nothing is asked."""

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

OnAnswer = Callable[[MoeCall, ServerCall, ExpertsRequest, ExpertsAnswer, str], int]
"""Told of each answer that has arrived and fits, last the path it came by; gives the micro-credits that this
node owes for it. Runs between two answers of a call, so it must take microseconds and raise nothing."""

OnGivenUp = Callable[[str, ExpertsRequest], None]
"""Told whose answer to which request is waited for no longer, because another's came first or nobody wants
it: the peer may have computed it, and may not. As quick as `OnAnswer`."""


class Star:
    """Dispatches MoE calls. One for a node; calls may overlap.

    Args:
        estimates: what is known of the peers; kept up to date here.
        on_answer: where answers are priced or looked at; None: they are free.

    Attributes:
        on_given_up: where what was asked for in vain is counted; None: nowhere.
    """

    def __init__(
        self,
        peer: PeerLookup,
        home: HomeExperts | None = None,
        estimates: Estimates | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._peer = peer
        self._home = home
        self.on_answer = on_answer
        self.on_given_up: OnGivenUp | None = None
        self._call_ids = count()
        self._watch = Watch()
        self.estimates = estimates or Estimates()

    def next_call_id(self) -> int:
        """For a call that somebody else makes: its number must not tell it from the star's own."""
        return next(self._call_ids) % CALL_IDS

    async def dispatch(
        self,
        call: MoeCall,
        holders: LayerHolders,
        settings: WireSettings,
        stats: CallStats | None = None,
    ) -> tuple[Float32Array, CallStats]:
        """Compute a call's routed output: f32 [n_tokens, n_out].

        Args:
            stats: filled in, also when the call fails.

        Raises:
            ExpertsUnavailable: if experts have no holder left; names layer, experts, peers and reasons.
            LocalError: if the call's shapes do not fit, runs might be split that must not, or home failed.
        """
        check_shapes(call)
        settings = replace(settings, combine=combine_for(settings.combine, row_per_pair=call.row_per_pair))
        if settings.combine is Combine.STABLE and not 0 < call.run_length == holders.run_length:
            raise LocalError(
                f"layer {call.layer}: runs of {call.run_length} experts, holders of {holders.run_length}"
            )
        running = _Dispatch(
            self._peer,
            self._home,
            self._call_ids,
            self._watch,
            self.estimates,
            call,
            holders,
            settings,
            stats or CallStats(),
            self.on_answer,
            self.on_given_up,
        )
        return await running.run(), running.stats


class _Dispatch:
    """One call on its way: what is asked, what came, who failed, who is late."""

    def __init__(
        self,
        peer: PeerLookup,
        home: HomeExperts | None,
        call_ids: count[int],
        watch: Watch,
        estimates: Estimates,
        call: MoeCall,
        holders: LayerHolders,
        settings: WireSettings,
        stats: CallStats,
        on_answer: OnAnswer | None,
        on_given_up: OnGivenUp | None,
    ) -> None:
        self.peer = peer
        self.home = home
        self.call_ids = call_ids
        self.watch = watch
        self.estimates = estimates
        self.call = call
        self.holders = holders
        self.settings = settings
        self.stats = stats
        self.on_answer = on_answer
        self.on_given_up = on_given_up
        self.refused_some: set[str] = set()
        self.late: set[str] = set()

    async def run(self) -> Float32Array:
        """The call's result."""
        calls = self.plan(self.holders, None)
        return await self.combined(await self.gather(calls, 0, frozenset()))

    async def combined(self, parts: list[Part]) -> Float32Array:
        """The parts' sum, as soon as it is made of numbers."""
        n_tokens, n_used = self.call.ids.shape
        while True:
            if self.settings.combine is Combine.ROWS:
                result = combine_rows(parts, n_tokens, n_used, self.call.n_out)
            elif self.settings.combine is Combine.SUM:
                result = combine_sum(parts, n_tokens, self.call.n_out)
            else:
                result = combine_stable(parts, n_tokens, n_used, self.call.n_out, self.call.run_length)
            if finite(result):
                return result
            # Each answer was finite: somebody's values are so large that they overflow when added.
            false = max(parts, key=lambda part: float(np.abs(part.y).max()))
            if false.call.peer_id == HOME:
                raise LocalError(f"layer {self.call.layer}: the experts held here overflow when added")
            liar = false.call.peer_id
            peer = self.peer(liar)
            error = ProtocolError(f"{liar}: {OVERFLOW}", peer=liar)
            self.blame(false.call, error, "" if peer is None else peer.path)
            others = [part for part in parts if part is not false]
            parts = others + await self.move(false.call, false.wave, frozenset())

    async def gather(self, calls: list[ServerCall], wave: int, without: frozenset[str]) -> list[Part]:
        """The answers to all of these, in any order.

        Raises:
            PanalError: the first error that ends one of them; the others are cancelled.
        """
        if len(calls) == 1:
            return await self.settle(calls[0], wave, without)
        parts: list[Part] = []
        errors: list[PanalError] = []

        async def one(server_call: ServerCall) -> None:
            try:
                parts.extend(await self.settle(server_call, wave, without))
            except PanalError as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            # Peers first: their requests leave before home's work is even started.
            for server_call in sorted(calls, key=lambda each: each.peer_id == HOME):
                nursery.start_soon(one, server_call)
        if errors:
            raise errors[0]
        return parts

    async def settle(self, server_call: ServerCall, wave: int, without: frozenset[str]) -> list[Part]:
        """The parts that answer a server's share: its own, or those of who hedged or replaced it.

        Raises:
            PanalError: nobody is left who could, or the fault is ours.
        """
        if server_call.peer_id == HOME:
            return [await self.compute_home(server_call, wave)]
        race = Race(self, server_call, wave, without)
        failure: PeerError | None = None
        try:
            with race.scope:
                try:
                    y = await self.answer(race)
                    if race.parts is None:
                        race.parts = [Part(server_call, y, wave)]
                except PeerError as error:
                    failure = error
            self.watch.forget(race)
            if failure is not None:
                self.blame(server_call, failure, race.path)
                if race.hedge is not None and race.parts is None:
                    self.estimates.hedges.give_back(race.hedges)
                    await race.hedge_done.wait()
        finally:
            self.watch.forget(race)
            if race.hedge is not None:
                race.hedge.cancel()
        if race.bug is not None:
            raise race.bug
        if race.parts is None:
            return await self.move(server_call, wave, without)
        return race.parts

    async def compute_home(self, server_call: ServerCall, wave: int) -> Part:
        if self.home is None:
            raise LocalError(f"layer {self.call.layer}: experts are planned at home, where none are served")
        y = await self.home(self.call, server_call)
        if y.shape != (server_call.pairs.size, self.call.n_out) or y.dtype != np.float32:
            raise LocalError(f"layer {self.call.layer}: home gave {y.dtype} {list(y.shape)}")
        if self.settings.combine is Combine.SUM:
            y = sum_pairs(y, server_call.counts)
        elif self.settings.combine is Combine.STABLE:
            y = sum_runs(y, server_call.counts, server_call.experts, self.call.run_length)
        self.stats.home_pairs += server_call.pairs.size
        return Part(server_call, y, wave)

    # --- asking ---

    async def answer(self, race: Race) -> Float32Array:
        """Ask one server; its checked y."""
        server_call, peer_id = race.call, race.call.peer_id
        peer = self.peer(peer_id)
        if peer is None:
            raise PeerError(f"{peer_id} is not connected", peer=peer_id)
        request = make_request(self.call, server_call, self.settings, next(self.call_ids) % CALL_IDS)
        size = checked_size(request)
        self.stats.waves = max(self.stats.waves, race.wave + 1)
        self.stats.bytes_out += size
        self.estimates.hedges.earn()
        nbytes = size + max_reply_bytes(request)
        patience = self.estimates.patience(
            peer_id, peer.path, rtt=peer.rtt, nbytes=nbytes, pairs=server_call.pairs.size
        )
        race.sent(peer.path, peer.rtt, nbytes, min(patience, self.settings.timeout * LONGEST_PATIENCE))
        answer: ExpertsAnswer | None = None
        try:
            with trio.move_on_after(self.settings.timeout):
                answer = await peer.call(request)
        except Refused as refused:
            self.stats.bytes_back += framed_nbytes(refused.refusal)
            raise
        except trio.Cancelled:
            if self.on_given_up is not None:
                self.on_given_up(peer_id, request)
            raise
        if answer is None:
            raise _NoAnswer(f"{peer_id} gave no answer in {self.settings.timeout:g} s", peer=peer_id)
        self.stats.bytes_back += framed_nbytes(answer)
        check_answer(request, answer, peer_id)
        now = trio.current_time()
        price = 0
        if self.on_answer is not None:
            price = self.on_answer(self.call, server_call, request, answer, race.path)
        stats = ServerStats(
            peer_id, now - race.sent_at, answer.compute_us / 1e6, answer.load, server_call.pairs.size, price
        )
        self.stats.servers.append(stats)
        self.late.discard(peer_id)
        self.estimates.answered(
            peer_id,
            race.path,
            now,
            wait=stats.wait,
            compute=stats.compute,
            rtt=race.rtt,
            nbytes=nbytes,
            pairs=stats.pairs,
            load=answer.load / 1000,
            overrun=race.overrun(now),
        )
        return answer.y

    # --- hedging ---

    def replicas(self, race: Race, now: float) -> tuple[list[ServerCall], float]:
        """Who could answer a late server's pairs as well, and in how many seconds; nobody, if not all."""
        barred = race.without | {race.call.peer_id, HOME}
        costs: dict[str, Cost] = {}

        def may(peer_id: str) -> bool:
            peer = None if peer_id in barred or peer_id in self.late else self.peer(peer_id)
            if peer is None or not self.estimates.free(peer_id, peer.path, now):
                return False
            costs[peer_id] = self.estimates.cost(peer_id, peer.path, now, rtt=peer.rtt)
            return True

        try:
            calls = self.plan(self.holders.only(may), race.call.pairs)
        except ExpertsUnavailable:
            return [], math.inf
        return calls, max(costs[call.peer_id].of(call.pairs.size) for call in calls)

    # --- failures ---

    def blame(self, server_call: ServerCall, error: PeerError, path: str) -> None:
        """A server's part failed: it is not asked for it again in this call, and less readily in others."""
        peer_id = server_call.peer_id
        now = trio.current_time()
        self.stats.failures.append(Failure(peer_id, str(error), error))
        self.holders = self.holders.without(peer_id, self.lost(server_call, error), str(error))
        if not path:
            return  # it was not connected, so it did nothing
        if isinstance(error, Refused) and error.refusal.code in _BUSY:
            self.estimates.overloaded(peer_id, path, error.refusal.load / 1000, now)
        else:
            self.estimates.failed(peer_id, path, _fault(error), now)

    async def move(self, server_call: ServerCall, wave: int, without: frozenset[str]) -> list[Part]:
        """Have a failed part's experts computed by who is left; who is late comes last."""
        holders = self.holders.demoted(self.late) if self.late else self.holders
        if without:
            holders = holders.only(lambda peer_id: peer_id not in without)
        calls = self.plan(holders, server_call.pairs)
        self.stats.moved += 1
        return await self.gather(calls, wave + 1, without)

    def plan(self, holders: LayerHolders, pairs: IndexArray | None) -> list[ServerCall]:
        return plan(self.call.ids, holders, row_per_pair=self.call.row_per_pair, pairs=pairs)

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


class _NoAnswer(PeerError):
    """The hard deadline has passed."""


_BUSY = (RefusalCode.OVERLOADED, RefusalCode.DEADLINE, RefusalCode.UNPAID)
"""Refusals that say nothing against a server: others are asked first for as long as it says."""


def _fault(error: PeerError) -> Fault:
    if isinstance(error, ProtocolError):
        return Fault.WRONG
    if isinstance(error, Refused):
        return Fault.REFUSED
    return Fault.LATE if isinstance(error, _NoAnswer) else Fault.GONE
