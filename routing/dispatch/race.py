"""One server's share of a call, until it is answered: by the server, or by others that were asked as well.

1. An answer is looked at when it is late by what was measured of the server on this path (`routing.latency`).
   If this node's own loop was late to look, the answer may be lying in the socket: it gets a moment more.
2. Where the server's late answers are known to come before others could answer, it gets that long.
3. Then the server is marked as late, and the same pairs are asked of others too (a *hedge*), if others that
   are free hold all of them and the budget allows. Else it is looked at again after twice the patience, and
   so on.
4. The first complete answer to these pairs is taken, the rest is cancelled, which resets its streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import trio

from routing.dispatch.call import CallStats
from routing.dispatch.combine import Part
from routing.dispatch.plan import ServerCall
from routing.dispatch.watch import Watch
from routing.errors import PanalError
from routing.estimates import Estimates

STALL = 0.005
MOST_STALL = 0.05
"""Seconds by which this node's own loop may wake too late before it blames itself; it then waits as long
again, at most the second."""

OVERRUN_SHARE = 2.0
"""How many times the usual overrun of a server's late answers is waited for: most have come by then."""


class Dispatching(Protocol):
    """The call that a race is part of."""

    estimates: Estimates
    stats: CallStats
    watch: Watch
    late: set[str]
    """Peers whose answers are waited for beyond their time."""

    def replicas(self, race: Race, now: float) -> tuple[list[ServerCall], float]:
        """Who could answer a share as well, and in how many seconds; nobody, if not all of it."""

    async def gather(self, calls: list[ServerCall], wave: int, without: frozenset[str]) -> list[Part]:
        """The answers to all of these."""


@dataclass(eq=False)
class Race:
    """Begins with `sent`, and is forgotten by the watch when it has ended.

    Attributes:
        dispatch: the call that it is part of.
        call: what the server was asked; who hedges answers the same pairs.
        wave: its wave; hedges are of the next.
        without: peers whose own answers are waited for by whoever waits for this one.
        path, rtt, nbytes, sent_at, allowed: how the server was asked and how many seconds it should need at
            most; no path while it is not connected.
        due: when to look at it; infinite when there is nothing to do at any time.
        parts: the winner's, once there is one.
        bug: what went wrong with a hedge that is nobody's fault but ours.
        scope, hedge: what to cancel when the other has won.
    """

    dispatch: Dispatching
    call: ServerCall
    wave: int
    without: frozenset[str]
    path: str = ""
    rtt: float = 0.0
    nbytes: int = 0
    sent_at: float = 0.0
    allowed: float = math.inf
    due: float = math.inf
    late: bool = False
    parts: list[Part] | None = None
    bug: Exception | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    hedge: trio.CancelScope | None = None
    hedges: int = 0
    hedge_done: trio.Event = field(default_factory=trio.Event)
    _patience: float = math.inf  # doubled each time nobody else could be asked
    _forgave_ourselves: bool = False
    _spared: bool = False

    def sent(self, path: str, rtt: float, nbytes: int, patience: float) -> None:
        """The server is being asked."""
        self.path, self.rtt, self.nbytes, self.sent_at = path, rtt, nbytes, trio.current_time()
        self.allowed = self._patience = patience
        self.dispatch.watch.look_at(self, self.sent_at + patience)

    def overrun(self, now: float) -> float:
        """Seconds by which the server is late."""
        return max(0.0, now - self.sent_at - self.allowed)

    def overdue(self, now: float) -> None:
        """The answer is not there in time: ask others too, if that may help."""
        if now - self.due > STALL and not self._forgave_ourselves:
            self._forgave_ourselves = True
            self.due = now + min(now - self.due, MOST_STALL)
            return
        estimates, peer_id = self.dispatch.estimates, self.call.peer_id
        calls, seconds = self.dispatch.replicas(self, now)
        usual = estimates.overrun(peer_id, self.path)
        if usual < seconds and not self._spared:
            self._spared = True
            self.due = now + usual * OVERRUN_SHARE
            return
        looked_again = self.late
        if not self.late:
            self.late = True
            self.dispatch.late.add(peer_id)
            self.dispatch.stats.late.append(peer_id)
            estimates.late(peer_id, self.path, now)
        if calls and estimates.hedges.spend(len(calls), urgent=looked_again):
            self.due = math.inf
            self.hedges = len(calls)
            self.hedge, self.hedge_done = trio.CancelScope(), trio.Event()
            self.dispatch.stats.hedges += len(calls)
            self.dispatch.watch.start_soon(self._ask_others, self.hedge, calls)
        else:
            self._look_again(now)

    def _look_again(self, now: float) -> None:
        self._patience *= 2
        self.due = now + self._patience

    async def _ask_others(self, scope: trio.CancelScope, calls: list[ServerCall]) -> None:
        """Have others answer a late server's pairs; whoever is first ends the other."""
        with scope:
            try:
                parts = await self.dispatch.gather(calls, self.wave + 1, self.without | {self.call.peer_id})
            except PanalError:
                # The late one's answer may still come; if not, its failure is the one that is told.
                self.hedge = None
                if self.dispatch.watch.knows(self):
                    self.dispatch.watch.look_at(self, trio.current_time() + self._patience)
            except Exception as bug:  # noqa: BLE001 - of ours: it ends the call that it belongs to
                self.bug = bug
                self.scope.cancel()
            else:
                if self.parts is None:
                    self.parts = parts
                    self._beaten(len(calls))
        self.hedge_done.set()

    def _beaten(self, hedges: int) -> None:
        now = trio.current_time()
        self.dispatch.stats.hedges_won += hedges
        if self.dispatch.watch.knows(self):  # it has not failed meanwhile
            self.dispatch.estimates.beaten(
                self.call.peer_id, self.path, now,
                wait=now - self.sent_at, rtt=self.rtt, nbytes=self.nbytes, pairs=self.call.pairs.size,
                overrun=self.overrun(now),
            )  # fmt: skip
        self.scope.cancel()
