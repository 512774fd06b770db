"""Who computes which experts of a call: pure, the same answer for the same question.

Rules
1. All rows of an expert in a call go to one server. Kernels may give other last bits for a batch than for
   its rows one by one (design/llama-hook.md), so a call's rows of an expert are never split.
2. What is held at home is computed at home.
3. The slowest answer is what a call waits for. So the fastest servers that together hold what is needed set
   a bar, and who is clearly slower than the slowest of these is left out.
4. The rest goes to as few servers as a greedy cover finds: each step takes the peer that holds the most
   of what is left; among equals the cheapest, then the one that holds more of the layer, then the one named
   first. Peers in reserve come after all others.

Costs come in with the holders as plain numbers: the same holders give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.dispatch.errors import NoHolder
from routing.errors import LocalError

HOME = "home"
"""The peer id of this node's own cells in a plan. No libp2p peer id is so short."""

BAR_SHARE = 0.25
BAR_SECONDS = 0.01
"""How much slower than the slowest of the fastest set a server may be and still take part: about what one
more server in the call costs in messages, and in the chance that one of them is late."""

IntArray = npt.NDArray[np.integer[Any]]
IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Holder:
    """One server's part of a layer.

    Attributes:
        peer_id: the peer, or `HOME`.
        held: its experts of the layer, expert e as bit e.
        cost: seconds in which it should answer a small call; 0 at home and where nothing is known.
    """

    peer_id: str
    held: int
    cost: float = 0.0

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
        holders: in order of preference, cheapest first; a peer id occurs once.
        formerly: experts as bits by the peers that used to hold them, with what is known of their
            absence (`"left 3 s ago"`): named if the experts are missed.
        reserve: asked only for experts that none of `holders` has: peers that failed a moment ago.
    """

    layer: int
    holders: tuple[Holder, ...]
    formerly: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    reserve: tuple[Holder, ...] = ()

    def without(self, peer_id: str, experts: int, reason: str) -> LayerHolders:
        """The same, but this peer is not asked for these experts (as bits) any more."""

        def left(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
            kept = (
                Holder(peer_id, holder.held & ~experts, holder.cost) if holder.peer_id == peer_id else holder
                for holder in holders
            )
            return tuple(holder for holder in kept if holder.held)

        lost = experts | self.formerly.get(peer_id, (0, ""))[0]
        formerly = {**self.formerly, peer_id: (lost, reason)}
        return LayerHolders(self.layer, left(self.holders), formerly, left(self.reserve))

    def only(self, may: Callable[[str], bool]) -> LayerHolders:
        """The same without the peers that may not be asked now, of whom nothing is said."""
        return LayerHolders(
            self.layer,
            tuple(holder for holder in self.holders if may(holder.peer_id)),
            self.formerly,
            tuple(holder for holder in self.reserve if may(holder.peer_id)),
        )

    def demoted(self, peers: Collection[str]) -> LayerHolders:
        """The same with these peers in reserve."""
        return LayerHolders(
            self.layer,
            tuple(holder for holder in self.holders if holder.peer_id not in peers),
            self.formerly,
            self.reserve + tuple(holder for holder in self.holders if holder.peer_id in peers),
        )


@dataclass(frozen=True, eq=False)
class ServerCall:
    """One server's part of a call.

    Attributes:
        peer_id: the peer, or `HOME`.
        rows: intp [rows], ascending: which rows of the call's x it needs.
        counts: u16 [rows]: how many pairs each of them has here, at least 1.
        experts: u16 [pairs], in (row, slot) order.
        pairs: intp [pairs], ascending: each pair as token * n_used + slot.
    """

    peer_id: str
    rows: IndexArray
    counts: npt.NDArray[np.uint16]
    experts: npt.NDArray[np.uint16]
    pairs: IndexArray


def plan(
    ids: IntArray,
    holders: LayerHolders,
    *,
    row_per_pair: bool = False,
    pairs: IndexArray | None = None,
) -> list[ServerCall]:
    """Split a call over servers.

    Args:
        ids: [n_tokens, n_used], the router's choice.
        holders: who holds what of this layer.
        row_per_pair: x has a row for each (token, slot) pair instead of one for each token.
        pairs: plan only these pairs (ascending, each token * n_used + slot): what failed elsewhere. All
            pairs of an expert must be among them.

    Returns:
        One call per server: home first, then in the order the servers were chosen.

    Raises:
        NoHolder: naming layer, experts, and the peers that used to hold them.
        LocalError: if an id is negative or beyond u16, or ids is no matrix.
    """
    if ids.ndim != 2 or ids.size == 0:
        raise LocalError(f"layer {holders.layer}: ids have shape {list(ids.shape)}, not [n_tokens, n_used]")
    chosen = ids.reshape(-1) if pairs is None else ids.reshape(-1)[pairs]
    needed = _distinct(chosen, holders.layer)
    assignment = assign(needed, holders)
    if pairs is None:
        pairs = np.arange(chosen.size, dtype=np.intp)
    n_used = ids.shape[1]
    if len(assignment) == 1:
        ((peer_id, _),) = assignment
        return [_server_call(peer_id, chosen, pairs, n_used, row_per_pair)]
    owner = np.zeros(max(needed) + 1, dtype=np.intp)
    for number, (_, experts) in enumerate(assignment):
        owner[experts] = number
    owner_of_pair = owner[chosen]
    calls = []
    for number, (peer_id, _) in enumerate(assignment):
        mine = np.flatnonzero(owner_of_pair == number)
        calls.append(_server_call(peer_id, chosen[mine], pairs[mine], n_used, row_per_pair))
    return calls


def assign(needed: Iterable[int], holders: LayerHolders) -> list[tuple[str, list[int]]]:
    """Give each needed expert to exactly one holder (rules 2 to 4).

    Returns:
        (peer id, its experts ascending), home first, then in the order they were chosen.

    Raises:
        NoHolder: if an expert has no holder.
    """
    left = 0
    for expert in needed:
        left |= 1 << expert
    chosen: list[tuple[str, list[int]]] = []
    candidates = _quick_enough(holders.holders, left)
    reserve = holders.reserve
    while left:
        best: Holder | None = None
        best_key = (False, 0, 0.0, 0)
        for holder in candidates:
            covered = (holder.held & left).bit_count()
            key = (holder.peer_id == HOME, covered, -holder.cost, holder.held.bit_count())
            if covered and (best is None or key > best_key):
                best, best_key = holder, key
        if best is None and reserve:
            candidates, reserve = _quick_enough(reserve, left), ()
            continue
        if best is None:
            raise _no_holder(_numbers(left), left, holders)
        chosen.append((best.peer_id, _numbers(best.held & left)))
        left &= ~best.held
        candidates.remove(best)
    return chosen


def _quick_enough(holders: Sequence[Holder], needed: int) -> list[Holder]:
    """The holders that may take part (rule 3); they are ordered by cost."""
    bar = 0.0
    left = needed
    for holder in holders:
        if holder.held & left:
            left &= ~holder.held
            bar = max(bar, holder.cost)
            if not left:
                break
    bar += max(bar * BAR_SHARE, BAR_SECONDS)
    return [holder for holder in holders if holder.cost <= bar]


def _distinct(chosen: IntArray, layer: int) -> list[int]:
    """The distinct expert numbers, ascending."""
    if chosen.size <= 64:
        distinct = sorted(set(chosen.tolist()))
    else:
        if int(chosen.min()) < 0:
            raise LocalError(f"layer {layer}: the router chose expert {int(chosen.min())}")
        distinct = np.flatnonzero(np.bincount(chosen)).tolist()
    if distinct[0] < 0 or distinct[-1] > 0xFFFF:
        raise LocalError(
            f"layer {layer}: the router chose expert {distinct[0]} to {distinct[-1]}, beyond u16"
        )
    return distinct


def _server_call(
    peer_id: str, experts: IntArray, pairs: IndexArray, n_used: int, row_per_pair: bool
) -> ServerCall:
    if row_per_pair:
        rows = pairs
        counts = np.ones(pairs.size, dtype=np.uint16)
    else:
        tokens = pairs // n_used
        # Pairs ascend, so a token's pairs stand together: a row begins where the token changes.
        begins = np.empty(tokens.size, dtype=np.bool_)
        begins[0] = True
        np.not_equal(tokens[1:], tokens[:-1], out=begins[1:])
        first = np.flatnonzero(begins)
        rows = tokens[first]
        counts = np.empty(first.size, dtype=np.uint16)
        counts[:-1] = first[1:] - first[:-1]
        counts[-1] = tokens.size - first[-1]
    return ServerCall(peer_id, rows, counts, experts.astype(np.uint16), pairs)


def _no_holder(experts: list[int], bits: int, holders: LayerHolders) -> NoHolder:
    reasons = {peer: reason for peer, (lost, reason) in holders.formerly.items() if lost & bits}
    return NoHolder(holders.layer, experts, reasons)


def _numbers(bits: int) -> list[int]:
    """The set bits' positions, ascending."""
    numbers = []
    while bits:
        lowest = bits & -bits
        numbers.append(lowest.bit_length() - 1)
        bits ^= lowest
    return numbers
