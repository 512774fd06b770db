"""Put the servers' answers together: pure, and exact about the order of additions.

Float addition is not associative, so the order is part of the protocol. All additions are f32, one at a
time, never reassociated:

rows: each pair's row is laid at [token, slot]; the result is ((slot 0 + slot 1) + slot 2) + ...
    This is the chain of ggml_add over one view per slot in llama.cpp's build_moe_ffn: the same bytes.
sum: a server adds its own pairs of a row in slot order (`sum_pairs`); the backbone adds the servers'
    vectors in the order of `order_key`: home, then peers by id, then answers that replaced failed ones.
    With one server and f32 both ways that is the chain above, so again the same bytes; with more it is not.
stable: whoever computes a run of experts (routing.wire.runs) adds a row's pairs of it in slot order
    (`sum_runs`); the backbone adds a token's runs in ascending order. A run is never split over servers, so
    no addition depends on who served which of them.

Nothing starts from zero (0 + -0.0 is 0.0, not -0.0): the first summand is copied. An overflow gives infinity
without a warning; who asked looks at the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.dispatch.plan import HOME, IndexArray, ServerCall
from routing.errors import LocalError
from routing.wire.codecs import Float32Array
from routing.wire.runs import run_groups


@dataclass(frozen=True, eq=False)
class Part:
    """One server's answer to its part of a call.

    Attributes:
        call: what it was asked.
        y: f32 [pairs, n_out] for rows, [rows, n_out] for sum, [groups, n_out] for stable.
        wave: 0 for the first plan, n + 1 for what replaces a failed part of wave n.
    """

    call: ServerCall
    y: Float32Array
    wave: int = 0


def order_key(part: Part) -> tuple[int, bool, str, int]:
    """Where a part stands in the sum: by wave, home before peers, peers by id, then by first pair."""
    return (part.wave, part.call.peer_id != HOME, part.call.peer_id, int(part.call.pairs[0]))


def combine_rows(parts: Sequence[Part], n_tokens: int, n_used: int, n_out: int) -> Float32Array:
    """Lay every pair's row in its place and add the slots in order.

    Args:
        parts: in any order; together they have every pair exactly once.

    Returns:
        f32 [n_tokens, n_out].

    Raises:
        LocalError: if a shape does not fit or a pair is missing or twice there.
    """
    _check_widths([(part.y, part.call.pairs.size) for part in parts], n_out)
    _check_pairs([part.call.pairs for part in parts], n_tokens * n_used)
    if len(parts) == 1:  # all pairs of one server are in their places already
        return add_slots(parts[0].y.reshape(n_tokens, n_used, n_out))
    laid = np.empty((n_tokens * n_used, n_out), dtype=np.float32)
    for part in parts:
        laid[part.call.pairs] = part.y
    return add_slots(laid.reshape(n_tokens, n_used, n_out))


def combine_sum(parts: Sequence[Part], n_tokens: int, n_out: int) -> Float32Array:
    """Add the servers' vectors per token, in the order of `order_key`.

    Args:
        parts: in any order; each has a token at most once.

    Returns:
        f32 [n_tokens, n_out].

    Raises:
        LocalError: if a shape does not fit or a token has no vector.
    """
    result = np.empty((n_tokens, n_out), dtype=np.float32)
    begun = np.zeros(n_tokens, dtype=np.bool_)
    for part in sorted(parts, key=order_key):
        rows = part.call.rows
        if part.y.shape != (rows.size, n_out) or (rows.size and int(rows[-1]) >= n_tokens):
            raise LocalError(f"vectors {list(part.y.shape)} do not fit {rows.size} rows of {n_out}")
        known = begun[rows]
        if not known.any():
            result[rows] = part.y
        else:
            with np.errstate(over="ignore"):
                result[rows[known]] += part.y[known]
            result[rows[~known]] = part.y[~known]
        begun[rows] = True
    if not begun.all():
        raise LocalError(f"{n_tokens - int(begun.sum())} of {n_tokens} tokens have no vector")
    return result


def combine_stable(
    parts: Sequence[Part], n_tokens: int, n_used: int, n_out: int, run_length: int
) -> Float32Array:
    """Add a token's runs in ascending order, whoever they are from.

    Args:
        parts: in any order; together they have every pair exactly once, the pairs of a run in one of them.
        run_length: experts of a run.

    Returns:
        f32 [n_tokens, n_out].

    Raises:
        LocalError: if a shape does not fit, a pair is missing or twice there, or a run is split.
    """
    groups = [run_groups(part.call.counts, part.call.experts, run_length) for part in parts]
    _check_widths([(part.y, each.sizes.size) for part, each in zip(parts, groups, strict=True)], n_out)
    _check_pairs([part.call.pairs for part in parts], n_tokens * n_used)
    tokens = np.concatenate([part.call.rows[each.rows] for part, each in zip(parts, groups, strict=True)])
    runs = np.concatenate([each.runs for each in groups])
    if len(parts) == 1:  # in order already
        return sum_pairs(parts[0].y, _per_row(tokens, n_tokens))
    order = np.lexsort((runs, tokens))
    if ((np.diff(tokens[order]) == 0) & (np.diff(runs[order]) == 0)).any():
        raise LocalError(f"the pairs of a run of {run_length} experts were computed by two")
    return sum_pairs(np.concatenate([part.y for part in parts])[order], _per_row(tokens, n_tokens))


def add_slots(laid: Float32Array) -> Float32Array:
    """[n_tokens, n_used, n_out] to [n_tokens, n_out]: slot 0 + slot 1 + ... in f32."""
    result: Float32Array = laid[:, 0].copy()
    with np.errstate(over="ignore"):
        for slot in range(1, laid.shape[1]):
            result += laid[:, slot]
    return result


def add_runs(y: Float32Array, ids: npt.NDArray[np.integer[Any]], run_length: int) -> Float32Array:
    """What `combine_stable` gives where one computes everything.

    Args:
        y: f32 [n_tokens * n_used, n_out], every pair's row.
        ids: [n_tokens, n_used], the router's choice.

    Returns:
        f32 [n_tokens, n_out].
    """
    groups = run_groups(np.full(ids.shape[0], ids.shape[1]), ids.reshape(-1), run_length)
    return sum_pairs(sum_pairs(y[groups.order], groups.sizes), _per_row(groups.rows, ids.shape[0]))


def sum_runs(
    y: Float32Array,
    counts: npt.NDArray[np.uint16],
    experts: npt.NDArray[np.uint16],
    run_length: int,
) -> Float32Array:
    """What a server does for stable: add each row's pairs of each run in slot order.

    Args:
        y: f32 [pairs, n_out], in (row, slot) order.
        counts: [rows], pairs of each row, at least 1.
        experts: [pairs], the expert of each.

    Returns:
        f32 [groups, n_out], rows ascending, runs ascending within a row.

    Raises:
        LocalError: if counts, experts and y do not fit each other.
    """
    groups = run_groups(counts, experts, run_length)
    if y.shape[0] != experts.size:
        raise LocalError(f"{experts.size} experts do not fit {y.shape[0]} pairs")
    return sum_pairs(y[groups.order], groups.sizes)


def sum_pairs(y: Float32Array, counts: npt.NDArray[np.uint16]) -> Float32Array:
    """What a server does for sum: add each row's pairs in order.

    Args:
        y: f32 [pairs, n_out], in (row, slot) order.
        counts: [rows], pairs of each row, at least 1.

    Returns:
        f32 [rows, n_out].

    Raises:
        LocalError: if the counts do not add up to y's rows or one is 0.
    """
    ends = np.cumsum(counts, dtype=np.intp)
    if counts.size == 0 or int(ends[-1]) != y.shape[0] or not counts.all():
        raise LocalError(f"the counts of {counts.size} rows do not fit {y.shape[0]} pairs")
    begins = ends - counts
    result: Float32Array = y[begins]
    with np.errstate(over="ignore"):
        for slot in range(1, int(counts.max())):
            longer = np.flatnonzero(counts > slot)
            result[longer] += y[begins[longer] + slot]
    return result


def _per_row(rows: IndexArray, n_rows: int) -> npt.NDArray[np.uint16]:
    """How many vectors each row has."""
    return np.bincount(rows, minlength=n_rows).astype(np.uint16)


def _check_widths(answers: Sequence[tuple[Float32Array, int]], n_out: int) -> None:
    for y, wanted in answers:
        if y.shape != (wanted, n_out):
            raise LocalError(f"rows {list(y.shape)} do not fit {wanted} of {n_out}")


def _check_pairs(parts: Sequence[IndexArray], n_pairs: int) -> None:
    found = np.zeros(n_pairs, dtype=np.intp)
    for pairs in parts:
        found[pairs] += 1
    if not (found == 1).all():
        raise LocalError(f"{int((found != 1).sum())} of {n_pairs} pairs are missing or were answered twice")
