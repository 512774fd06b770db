"""The star: one message to each server of a call, all in flight at once, home computed meanwhile.

1. A peer that fails (error, refusal, no answer by the hard deadline, or an answer that is not one) loses its
   experts for this call; they move, each with all its rows, to the peers that are left.
2. A peer whose answer is late, by what was measured of it (`routing.estimates`), stays in the race: the same
   pairs are asked of others too (a *hedge*), if others that are free hold all of them and the budget allows.
   The first complete answer to these pairs is taken, the rest is cancelled, which resets its streams.
3. Nothing is added before every pair has exactly one answer, and a race has one winner: nothing can be added
   twice, and no expert's rows come half from one answer and half from another.

Works through two ports: `ExpertPeer` (the QUIC adapter) and `HomeExperts` (the engine). Home is an async
callable and not a function that the star runs in a thread: the engine knows which thread owns its graphs,
and the star stays deterministic under a test's clock.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import trio

from routing.dispatch.asking import CALL_IDS, checked_size, make_request
from routing.dispatch.call import CallStats, Failure, MoeCall, ServerStats, WireSettings, check_shapes
from routing.dispatch.combine import Part, combine_rows, combine_sum, sum_pairs
from routing.dispatch.errors import ExpertsUnavailable
from routing.dispatch.plan import HOME, IndexArray, LayerHolders, ServerCall, plan
from routing.dispatch.watch import Watch
from routing.errors import LocalError, PanalError, PeerError
from routing.estimates import Estimates, Fault
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

STALL = 0.05
"""Seconds by which this node's own loop may wake too late before it blames itself: an answer may be lying in
the socket already."""

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


class Star:
    """Dispatches MoE calls. One for a node; calls may overlap.

    Args:
        estimates: what is known of the peers; kept up to date here.
    """

    def __init__(
        self, peer: PeerLookup, home: HomeExperts | None = None, estimates: Estimates | None = None
    ) -> None:
        self._peer = peer
        self._home = home
        self._call_ids = count()
        self._watch = Watch()
        self.estimates = estimates or Estimates()

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
            LocalError: if the call's shapes do not fit, or home failed.
        """
        check_shapes(call)
        if call.row_per_pair and settings.combine is Combine.SUM:
            settings = WireSettings(settings.codec, settings.codec_back, Combine.ROWS, settings.timeout)
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
        )
        return await running.run(), running.stats


@dataclass(eq=False)
class _Race:
    """One server's share of a call, until somebody has answered it.

    Attributes:
        dispatch: the call that it is part of.
        call: what the server was asked; who hedges answers the same pairs.
        wave: its wave; hedges are of the next.
        without: peers whose own answers are waited for by whoever waits for this one.
        patience: seconds until the answer is late; doubled each time nobody else could be asked.
        due: when that is; infinite when there is nothing to do at any time.
        parts: the winner's, once there is one.
        bug: what went wrong with a hedge that is nobody's fault but ours.
        scope, hedge: what to cancel when the other has won.
    """

    dispatch: _Dispatch
    call: ServerCall
    wave: int
    without: frozenset[str]
    patience: float = math.inf
    due: float = math.inf
    path: str = ""  # none while it is not connected
    late: bool = False
    forgave_ourselves: bool = False
    parts: list[Part] | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    hedge: trio.CancelScope | None = None
    hedges: int = 0
    hedge_done: trio.Event = field(default_factory=trio.Event)
    bug: Exception | None = None

    def overdue(self, now: float) -> None:
        self.dispatch.overdue(self, now)


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
            else:
                result = combine_sum(parts, n_tokens, self.call.n_out)
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
        race = _Race(self, server_call, wave, without)
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
        self.stats.home_pairs += server_call.pairs.size
        return Part(server_call, y, wave)

    # --- asking ---

    async def answer(self, race: _Race) -> Float32Array:
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
        sent_at = trio.current_time()
        race.path, rtt = peer.path, peer.rtt
        nbytes = size + max_reply_bytes(request)
        patience = self.estimates.patience(
            peer_id, race.path, rtt=rtt, nbytes=nbytes, pairs=server_call.pairs.size
        )
        race.patience = min(patience, self.settings.timeout * LONGEST_PATIENCE)
        self.watch.look_at(race, sent_at + race.patience)
        answer: ExpertsAnswer | None = None
        try:
            with trio.move_on_after(self.settings.timeout):
                answer = await peer.call(request)
        except Refused as refused:
            self.stats.bytes_back += framed_nbytes(refused.refusal)
            raise
        if answer is None:
            raise _NoAnswer(f"{peer_id} gave no answer in {self.settings.timeout:g} s", peer=peer_id)
        self.stats.bytes_back += framed_nbytes(answer)
        check_answer(request, answer, peer_id)
        now = trio.current_time()
        stats = ServerStats(
            peer_id, now - sent_at, answer.compute_us / 1e6, answer.load, server_call.pairs.size
        )
        self.stats.servers.append(stats)
        self.late.discard(peer_id)
        self.estimates.answered(
            peer_id,
            race.path,
            now,
            wait=stats.wait,
            compute=stats.compute,
            rtt=rtt,
            nbytes=nbytes,
            pairs=stats.pairs,
            load=answer.load / 1000,
        )
        return answer.y

    # --- hedging ---

    def overdue(self, race: _Race, now: float) -> None:
        """An answer is not there in time: ask others too, if there are any."""
        if now - race.due > STALL and not race.forgave_ourselves:
            race.forgave_ourselves = True
            race.due = now + STALL
            return
        if not race.late:
            race.late = True
            self.late.add(race.call.peer_id)
            self.stats.late.append(race.call.peer_id)
            self.estimates.late(race.call.peer_id, race.path, now)
        calls = self.hedges(race, now)
        if calls and self.estimates.hedges.spend(len(calls)):
            race.due = math.inf
            race.hedges = len(calls)
            race.hedge, race.hedge_done = trio.CancelScope(), trio.Event()
            self.stats.hedges += len(calls)
            self.watch.start_soon(self.hedge, race, race.hedge, calls)
        else:
            race.patience *= 2
            race.due = now + race.patience

    def hedges(self, race: _Race, now: float) -> list[ServerCall]:
        """Who could answer a late server's pairs as well; nobody, if not all of them."""
        barred = race.without | {race.call.peer_id, HOME}

        def may(peer_id: str) -> bool:
            peer = None if peer_id in barred else self.peer(peer_id)
            return (
                peer is not None and self.estimates.free(peer_id, peer.path, now) and peer_id not in self.late
            )

        try:
            return self.plan(self.holders.only(may), race.call.pairs)
        except ExpertsUnavailable:
            return []

    async def hedge(self, race: _Race, scope: trio.CancelScope, calls: list[ServerCall]) -> None:
        """Have others answer a late server's pairs; whoever is first ends the other."""
        with scope:
            try:
                parts = await self.gather(calls, race.wave + 1, race.without | {race.call.peer_id})
            except PanalError:
                # The late one's answer may still come; if not, its failure is the one that is told.
                race.hedge = None
                if self.watch.knows(race):
                    self.watch.look_at(race, trio.current_time() + race.patience)
            except Exception as bug:  # noqa: BLE001 - of ours: it ends the call that it belongs to
                race.bug = bug
                race.scope.cancel()
            else:
                if race.parts is None:
                    race.parts = parts
                    self.stats.hedges_won += len(calls)
                    race.scope.cancel()
        race.hedge_done.set()

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


_BUSY = (RefusalCode.OVERLOADED, RefusalCode.DEADLINE)
"""Refusals that say nothing against a server."""


def _fault(error: PeerError) -> Fault:
    if isinstance(error, ProtocolError):
        return Fault.WRONG
    if isinstance(error, Refused):
        return Fault.REFUSED
    return Fault.LATE if isinstance(error, _NoAnswer) else Fault.GONE
