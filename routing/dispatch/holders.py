"""Who may be asked for the experts of a layer, and what an answer of each should take. Pure data."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

HOME = "home"
"""The peer id of this node's own cells in a plan. No libp2p peer id is so short."""


@dataclass(frozen=True)
class Slack:
    """How much slower than the quickest servers may be for the sake of their price.

    Attributes:
        share: of the quickest answer's seconds; seconds: in any case. The greater of both counts.
    """

    share: float = 0.0
    seconds: float = math.inf

    def limit(self, bar: float) -> float:
        """Seconds that an answer may take where the quickest takes `bar`."""
        return bar + max(bar * self.share, self.seconds)


@dataclass(frozen=True)
class Holder:
    """One server's part of a layer.

    Attributes:
        peer_id: the peer, or `HOME`.
        held: its experts of the layer, expert e as bit e.
        cost: seconds in which it should answer a small call, but for computing; 0 at home and where nothing
            is known.
        per_pair: seconds that it computes for each (token, slot) pair.
        price: what it asks for each pair, as the seconds of waiting that are worth as much (routing.tariff).
            Seconds of servers that answer together are not added, prices are.
    """

    peer_id: str
    held: int
    cost: float = 0.0
    per_pair: float = 0.0
    price: float = 0.0

    @property
    def least(self) -> float:
        """Seconds in which it should answer a call of one pair."""
        return self.cost + self.per_pair

    @classmethod
    def of(cls, peer_id: str, experts: Iterable[int]) -> Holder:
        """A holder of these expert numbers."""
        held = 0
        for expert in experts:
            held |= 1 << expert
        return cls(peer_id, held)

    @classmethod
    def of_runs(cls, peer_id: str, runs: Iterable[Sequence[int]]) -> Holder:
        """A holder of these runs of experts, [first, last], both included."""
        held = 0
        for first, last in runs:
            held |= (1 << (last + 1)) - (1 << first)
        return cls(peer_id, held)


@dataclass(frozen=True)
class LayerHolders:
    """Who may be asked for the experts of one layer (of one model).

    Built when the routing table changes, used for every call until then.

    Attributes:
        layer: block number, for errors.
        holders: in order of preference, the smallest `least` first; a peer id occurs once.
        formerly: experts as bits by the peers that used to hold them, with what is known of their
            absence (`"left 3 s ago"`): named if the experts are missed.
        reserve: asked only for experts that none of `holders` has: peers that failed a moment ago; in the
            same order.
        run_length: experts of a run, if a run must not be split; 0 if each expert may be anywhere.
        slack: how much slower servers may be for the sake of their price; nothing where none has one.
    """

    layer: int
    holders: tuple[Holder, ...]
    formerly: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    reserve: tuple[Holder, ...] = ()
    run_length: int = 0
    slack: Slack = Slack()

    @cached_property
    def is_priced(self) -> bool:
        """Whether anybody asks for anything."""
        return any(holder.price for holder in self.holders + self.reserve)

    def by_runs(self, run_length: int, n_experts: int) -> LayerHolders:
        """The same with just the runs that each holder has the whole of, for combine stable."""
        every = (1 << n_experts) - 1

        def whole(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
            kept = (
                replace(holder, held=holder.held & ~whole_runs(every & ~holder.held, run_length))
                for holder in holders
            )
            return tuple(holder for holder in kept if holder.held)

        return replace(self, holders=whole(self.holders), reserve=whole(self.reserve), run_length=run_length)

    def without(self, peer_id: str, experts: int, reason: str) -> LayerHolders:
        """The same, but this peer is not asked for these experts (as bits) and their runs any more."""
        experts = whole_runs(experts, self.run_length)

        def left(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
            kept = (
                replace(holder, held=holder.held & ~experts) if holder.peer_id == peer_id else holder
                for holder in holders
            )
            return tuple(holder for holder in kept if holder.held)

        lost = experts | self.formerly.get(peer_id, (0, ""))[0]
        formerly = {**self.formerly, peer_id: (lost, reason)}
        return replace(self, holders=left(self.holders), formerly=formerly, reserve=left(self.reserve))

    def only(self, may: Callable[[str], bool]) -> LayerHolders:
        """The same without the peers that may not be asked now, of whom nothing is said."""
        return replace(
            self,
            holders=tuple(holder for holder in self.holders if may(holder.peer_id)),
            reserve=tuple(holder for holder in self.reserve if may(holder.peer_id)),
        )

    def demoted(self, peers: Collection[str]) -> LayerHolders:
        """The same with these peers in reserve."""
        reserve = self.reserve + tuple(holder for holder in self.holders if holder.peer_id in peers)
        return replace(
            self,
            holders=tuple(holder for holder in self.holders if holder.peer_id not in peers),
            reserve=tuple(sorted(reserve, key=lambda holder: holder.least)),
        )


def runs_of(experts: int, run_length: int) -> list[int]:
    """Experts (as bits) cut where runs end; one by one if runs have one expert, or none (0)."""
    length = max(run_length, 1)
    run = (1 << length) - 1
    found = []
    while experts:
        start = ((experts & -experts).bit_length() - 1) // length * length
        found.append(experts & run << start)
        experts &= ~(run << start)
    return found


def whole_runs(experts: int, run_length: int) -> int:
    """Experts (as bits) and the others of their runs; the last run may reach beyond the model."""
    if run_length <= 1:
        return experts
    run = (1 << run_length) - 1
    found = 0
    for part in runs_of(experts, run_length):
        found |= run << ((part & -part).bit_length() - 1) // run_length * run_length
    return found
