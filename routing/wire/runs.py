"""Fixed runs of experts: how pairs are grouped where combine is stable. Pure.

A layer's experts are cut into runs of a length that its manifest declares: [0, n), [n, 2n), ..., the last may
be shorter. The pairs of a row that fall into one run are a *group*; their vectors are added where they are
computed, in slot order, and travel as one. Both sides work out the groups of a request from its counts and
experts, so nothing about them travels but the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.errors import LocalError

MAX_RUN_LENGTH = 65_535
"""Experts of a run: no layer has more (experts are u16)."""

_SHIFT = 16  # a run's number is below 2^16, as an expert's is

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class RunGroups:
    """The groups of some rows' pairs: rows ascending, runs ascending within a row.

    Attributes:
        order: intp [pairs]: the pairs, those of a group together and in slot order.
        sizes: u16 [groups]: pairs of each, at least 1.
        rows, runs: intp [groups]: whose row and which run each is.
    """

    order: IndexArray
    sizes: npt.NDArray[np.uint16]
    rows: IndexArray
    runs: IndexArray


def run_groups(
    counts: npt.NDArray[np.integer[Any]], experts: npt.NDArray[np.integer[Any]], run_length: int
) -> RunGroups:
    """Group pairs by row and run.

    Args:
        counts: [rows], pairs of each row, at least 1.
        experts: [pairs], in (row, slot) order, each within u16.
        run_length: experts of a run.

    Raises:
        LocalError: if the counts do not add up to the pairs, or runs have no such length.
    """
    if not 1 <= run_length <= MAX_RUN_LENGTH:
        raise LocalError(f"runs of {run_length} experts are out of range")
    row_of_pair = np.repeat(np.arange(counts.size, dtype=np.int64), counts)
    if row_of_pair.size != experts.size or experts.size == 0:
        raise LocalError(f"the counts of {counts.size} rows do not fit {experts.size} pairs")
    keys = row_of_pair << _SHIFT | experts.astype(np.int64) // run_length
    order = np.argsort(keys, kind="stable")  # stable: slots stay in order
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    groups = keys[first]
    return RunGroups(
        order,
        np.diff(first, append=keys.size).astype(np.uint16),
        (groups >> _SHIFT).astype(np.intp),
        (groups & (1 << _SHIFT) - 1).astype(np.intp),
    )
