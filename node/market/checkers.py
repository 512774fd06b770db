"""Who can run a call again, who has time for it now, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Protocol

import trio

from market.audit import Sample, Word
from routing.dispatch.plan import HOME, LayerHolders
from routing.dispatch.star import ExpertPeer
from routing.errors import LocalError, PeerError
from routing.estimates import Estimates, Fault
from routing.wire.codecs import Float32Array
from routing.wire.experts import Combine, ExpertsAnswer, ExpertsRequest, ProtocolError, check_answer

HOME_SHARE = 0.5
"""How often this node computes a call itself that a replica could: two servers of one owner agree with each
other."""

HOME_REST = 9.0
"""Times as long as the last one took, before this node computes another: a tenth of a core."""

Paid = Callable[[str, ExpertsRequest, ExpertsAnswer, str], None]
"""Told of each answer to a call that was sent from here, with its path: it is owed for like any other."""


class AuditHome(Protocol):
    """This node's own cells (node.market.home_audit)."""

    @property
    def build(self) -> str:
        """This node's build class."""

    def held(self, request: ExpertsRequest) -> int:
        """The experts of the call's layer that can be computed here, as bits."""

    async def compute(self, request: ExpertsRequest) -> Float32Array:
        """The answer, as it would come off the wire."""


class Swarm(Protocol):
    """The peers of one model."""

    @property
    def estimates(self) -> Estimates: ...

    def peer(self, peer_id: str) -> ExpertPeer | None: ...

    def holders(self, layer: int, index: int) -> LayerHolders: ...

    def build_of(self, peer_id: str) -> str: ...

    def next_call_id(self) -> int: ...

    def bar(self, reasons: dict[str, str]) -> None: ...


class Checkers:
    """One call at a time for each.

    Attributes:
        hurry: somebody waits for audits: this node does not rest between two of its own.
    """

    def __init__(self, swarm: Swarm, home: AuditHome | None, rng: Random, paid: Paid) -> None:
        self.hurry = 0
        self._swarm = swarm
        self._home = home
        self._rng = rng
        self._paid = paid
        self._busy: set[str] = set()
        self._home_ready = 0.0

    def of(self, sample: Sample, *, without: Collection[str] = (), later: bool = False) -> list[str]:
        """Who can run a call again now: all of it, or where nobody can, a part of it.

        Args:
            later: now or later.
        """
        barred = {sample.word.peer_id, *without}
        needed = sample.experts
        held = {
            peer_id: experts
            for peer_id, experts in self._held(sample.request)
            if peer_id not in barred and needed & experts and (later or self.has_time(peer_id))
        }
        whole = [peer_id for peer_id, experts in held.items() if not needed & ~experts]
        if whole or sample.request.combine is not Combine.ROWS:
            return whole
        return list(held)

    def held_by(self, checker: str, request: ExpertsRequest) -> int:
        """The experts of a call's layer that somebody holds, as bits."""
        return dict(self._held(request)).get(checker, 0)

    def choose(self, checkers: list[str]) -> str:
        """One of them at random."""
        others = [each for each in checkers if each != HOME]
        if HOME in checkers and (not others or self._rng.random() < HOME_SHARE):
            return HOME
        return others[self._rng.randrange(len(others))]

    def has_time(self, checker: str) -> bool:
        """Whether it may be asked now: it has no queue, did nothing wrong just now, and checks nothing
        else."""
        now = trio.current_time()
        if checker in self._busy:
            return False
        if checker == HOME:
            return self.hurry > 0 or now >= self._home_ready
        peer = self._swarm.peer(checker)
        return peer is not None and self._swarm.estimates.free(checker, peer.path, now)

    def reserve(self, checker: str) -> None:
        """It is asked for nothing else until it is released. Before the first await after `has_time`."""
        self._busy.add(checker)

    def release(self, checker: str) -> None:
        """It may be asked again."""
        self._busy.discard(checker)

    @contextmanager
    def reserved(self, checker: str) -> Iterator[None]:
        """Both."""
        self.reserve(checker)
        try:
            yield
        finally:
            self.release(checker)

    async def ask(self, checker: str, request: ExpertsRequest) -> Word | None:
        """What it answers; None if nothing."""
        if checker == HOME:
            assert self._home is not None
            begun = trio.current_time()
            try:
                y = await self._home.compute(request)
            except LocalError:
                return None  # they are not at home any more
            now = trio.current_time()
            self._home_ready = now + HOME_REST * (now - begun)
            return Word(HOME, self._home.build, y)
        peer = self._swarm.peer(checker)
        if peer is None:
            return None
        request = replace(request, call_id=self._swarm.next_call_id())
        answer: ExpertsAnswer | None = None
        try:
            with trio.move_on_after(request.deadline_ms / 1000):
                answer = await peer.call(request)
            if answer is None:
                return None
            check_answer(request, answer, checker)
        except ProtocolError:
            self._swarm.estimates.failed(checker, peer.path, Fault.WRONG, trio.current_time())
            return None
        except PeerError:
            return None
        self._paid(checker, request, answer, peer.path)
        return Word(checker, self._swarm.build_of(checker), answer.y)

    def _held(self, request: ExpertsRequest) -> Iterator[tuple[str, int]]:
        if self._home is not None:
            yield HOME, self._home.held(request)
        holders = self._swarm.holders(request.layer, request.call_index)
        for holder in (*holders.holders, *holders.reserve):
            if holder.peer_id != HOME:
                yield holder.peer_id, holder.held
