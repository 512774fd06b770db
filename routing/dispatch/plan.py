"""Who computes which experts of a call: pure, the same answer for the same question.

Rules
1. All rows of an expert in a call go to one server. Kernels may give other last bits for a batch than for
   its rows one by one (design/llama-hook.md), so a call's rows of an expert are never split.
2. What is held at home is computed at home.
3. The rest goes to the set of servers with the smallest expected slowest answer (routing.dispatch.choice);
   where answers have a price, to the set that is worth its price (routing.dispatch.priced).
4. Peers in reserve are asked only for what no other holds.
5. Where combine is stable, holders hold whole runs or nothing (`LayerHolders.by_runs`), and the experts of a
   run that are needed go to one of them together.

Costs come in with the holders as plain numbers: the same holders give the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.dispatch.choice import Choice, numbers
from routing.dispatch.errors import NoHolder
from routing.dispatch.holders import HOME as HOME
from routing.dispatch.holders import Holder as Holder
from routing.dispatch.holders import LayerHolders as LayerHolders
from routing.dispatch.priced import PricedChoice
from routing.errors import LocalError

COMPARED_PAIRS = 64
"""Pairs up to which computing is weighed: a token of each of eight sessions. In larger calls bytes decide:
each server needs a row of every token that it has an expert of."""

IntArray = npt.NDArray[np.integer[Any]]
IndexArray = npt.NDArray[np.intp]


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
    needed, counts, amounts = _distinct(chosen, holders)
    assignment = assign(needed, holders, counts, amounts)
    if pairs is None:
        pairs = np.arange(chosen.size, dtype=np.intp)
    owners = None
    if len(assignment) > 1:
        owner = np.zeros(max(needed) + 1, dtype=np.intp)
        for number, (_, experts) in enumerate(assignment):
            owner[experts] = number
        owners = owner[chosen]
    peers = [peer_id for peer_id, _ in assignment]
    return _server_calls(peers, owners, chosen, pairs, ids.shape[1], row_per_pair)


def assign(
    needed: Iterable[int],
    holders: LayerHolders,
    pairs: Mapping[int, int] | None = None,
    amounts: Mapping[int, int] | None = None,
) -> list[tuple[str, list[int]]]:
    """Give each needed expert to exactly one holder (rules 2 to 4).

    Args:
        pairs: of each needed expert; None if computing is not weighed.
        amounts: the same, to weigh prices; None if those are not weighed.

    Returns:
        (peer id, its experts ascending), home first, then in the order they were chosen.

    Raises:
        NoHolder: if an expert has no holder.
    """
    left = 0
    for expert in needed:
        left |= 1 << expert
    chosen: list[tuple[str, list[int]]] = []
    for holder in holders.holders:
        if holder.peer_id == HOME and holder.held & left:
            chosen.append((HOME, numbers(holder.held & left)))
            left &= ~holder.held
    for tier in (holders.holders, holders.reserve):
        if left and tier:
            if amounts is None:
                choice = Choice(tier, left, pairs, holders.run_length)
            else:
                choice = PricedChoice(tier, left, pairs, holders.run_length, amounts, holders.slack)
            for holder, mine in choice.best():
                chosen.append((holder.peer_id, numbers(mine)))
                left &= ~mine
    if left:
        raise _no_holder(left, holders)
    return chosen


def _distinct(
    chosen: IntArray, holders: LayerHolders
) -> tuple[list[int], Mapping[int, int] | None, Mapping[int, int] | None]:
    """The distinct expert numbers, ascending, and how many pairs each has, if that is to be weighed for
    computing, and for prices."""
    layer = holders.layer
    counts: Mapping[int, int] | None = None
    amounts: Mapping[int, int] | None = None
    if chosen.size <= COMPARED_PAIRS:
        listed = chosen.tolist()
        distinct = sorted(set(listed))
        counts = dict.fromkeys(distinct, 1) if len(distinct) == len(listed) else Counter(listed)
    else:
        if int(chosen.min()) < 0:
            raise LocalError(f"layer {layer}: the router chose expert {int(chosen.min())}")
        found = np.bincount(chosen)
        distinct = np.flatnonzero(found).tolist()
        if holders.is_priced:
            amounts = dict(zip(distinct, found[distinct].tolist(), strict=True))
    if distinct[0] < 0 or distinct[-1] > 0xFFFF:
        raise LocalError(
            f"layer {layer}: the router chose expert {distinct[0]} to {distinct[-1]}, beyond u16"
        )
    return distinct, counts, counts if counts is not None and holders.is_priced else amounts


def _server_calls(
    peers: list[str],
    owners: IndexArray | None,
    chosen: IntArray,
    pairs: IndexArray,
    n_used: int,
    row_per_pair: bool,
) -> list[ServerCall]:
    """Each peer's call, cut out of arrays that are made once for all of them.

    Args:
        owners: of each pair, as a position in peers; None if there is but one.
    """
    ends = [chosen.size]
    if owners is not None:
        order = np.argsort(owners, kind="stable")
        chosen, pairs = chosen[order], pairs[order]
        ends = np.cumsum(np.bincount(owners, minlength=len(peers))).tolist()
    experts = chosen.astype(np.uint16)
    if row_per_pair:
        rows, row_ends = pairs, ends
        counts = np.ones(pairs.size, dtype=np.uint16)
    else:
        tokens = pairs // n_used
        # A peer's pairs ascend, so a token's pairs stand together: a row begins where the token changes, and
        # where the peer does.
        begins = np.empty(tokens.size, dtype=np.bool_)
        begins[0] = True
        np.not_equal(tokens[1:], tokens[:-1], out=begins[1:])
        if len(ends) > 1:
            begins[ends[:-1]] = True
        first = np.flatnonzero(begins)
        rows = tokens[first]
        row_ends = np.searchsorted(first, ends).tolist() if len(ends) > 1 else [first.size]
        counts = np.empty(first.size, dtype=np.uint16)
        counts[:-1] = first[1:] - first[:-1]
        counts[-1] = tokens.size - first[-1]
    calls = []
    begin = row = 0
    for peer_id, end, row_end in zip(peers, ends, row_ends, strict=True):
        calls.append(
            ServerCall(peer_id, rows[row:row_end], counts[row:row_end], experts[begin:end], pairs[begin:end])
        )
        begin, row = end, row_end
    return calls


def _no_holder(lost: int, holders: LayerHolders) -> NoHolder:
    reasons = {peer: reason for peer, (experts, reason) in holders.formerly.items() if experts & lost}
    return NoHolder(holders.layer, numbers(lost), reasons, holders.run_length)
