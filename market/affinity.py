"""Experts of a layer that tokens use together, put into groups: so that few servers have what a token needs.
Pure.

1. How much experts are used together is counted from real choices, where somebody has some; else it is read
   from the router's weights, which are in every trunk: experts whose weights point the same way are chosen
   together.
2. Every node makes groups of its own, by its own draws. They need not agree, and are better not to: a second
   replica with the same groups saves no token a server, one with others does (scripts/bench_placement).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from market.ground import Bools, Floats, Ints

CELLS_A_USED = 2
"""Cells of a group for each expert that a token uses of a layer: a token's experts can all be in one group,
and a layer of the usual models has eight groups."""

OWN_NOISE = 0.5
"""How far own draws bend each bond: standard deviation of its logarithm. More of it costs more in groups than
their variety saves, less the other way round."""


def group_cells(n_experts: int, n_used: int) -> int:
    """How many cells a group has at most."""
    return max(1, min(CELLS_A_USED * n_used, n_experts))


def together_by_choices(ids: Ints, n_experts: int) -> Floats:
    """[n_experts, n_experts], how often two experts are chosen by one token.

    Args:
        ids: [n_tokens, n_used], of one layer.
    """
    used = np.zeros((len(ids), n_experts), np.float32)
    np.put_along_axis(used, ids, 1, axis=1)
    counts: Floats = (used.T @ used).astype(np.float64)
    return counts


def together_by_router(weights: npt.NDArray[Any]) -> Floats:
    """[n_experts, n_experts], cosines between experts, what is common to all taken away.

    Args:
        weights: [n_experts, n_embd], of one layer's router; finite.
    """
    apart = weights.astype(np.float64)
    apart -= apart.mean(axis=0)
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    apart /= np.where(lengths > 0, lengths, 1.0)
    cosines: Floats = apart @ apart.T
    return cosines


def between(together: Floats, part_of: Ints) -> Floats:
    """[n_parts, n_parts], how much parts that are served whole are used together: the sum of their experts.

    Args:
        part_of: [n_experts], the part of each, from 0 on; -1: in none.
    """
    parts = np.eye(int(part_of.max()) + 1)[part_of] * (part_of >= 0)[:, None]
    bonds: Floats = parts.T @ together @ parts
    return bonds


def groups_of(together: Floats, size: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """[n_experts], the group of each expert, from 0 on: of at most `size`, as equal as can be.

    Groups are begun anywhere and grow by what goes best with them; then experts change places while that adds
    to what is used together within groups.
    """
    n_experts = len(together)
    bend = np.triu(rng.lognormal(0.0, OWN_NOISE, together.shape), 1)
    bonds = together * (bend + bend.T)  # and nothing on the diagonal
    count = -(-n_experts // size)
    group = np.full(n_experts, -1, np.int32)
    begin = rng.random(n_experts)
    for each in range(count):
        free = group < 0
        pull = np.where(free, begin, -np.inf)
        for _ in range(n_experts // count + (each < n_experts % count)):
            group[int(pull.argmax())] = each
            pull = np.where(group < 0, bonds @ (group == each), -np.inf)
    least = 1e-9 * float(np.abs(bonds).sum())  # below it sums of floats may turn in a circle
    while True:
        of_group = bonds @ np.eye(count)[group]  # [n_experts, count]
        to = of_group[:, group]  # of the first, in the group of the second
        own = of_group[np.arange(n_experts), group]
        gain = to + to.T - own[:, None] - own[None, :] - 2 * bonds
        gain[group[:, None] == group[None, :]] = 0
        one, other = divmod(int(gain.argmax()), n_experts)
        if gain[one, other] <= least:
            return group
        group[one], group[other] = group[other], group[one]


def servers_touched(ids: Ints, placement: Bools) -> float:
    """Servers that a token asks for one layer, on average: always the one with most of what is still missing.

    Args:
        ids: [n_tokens, n_used], experts of tokens.
        placement: [n_servers, n_experts], who holds what; each expert is held by someone.
    """
    holds = placement[:, ids]  # [n_servers, n_tokens, n_used]
    missing = np.ones(ids.shape, np.bool_)
    tokens = np.arange(len(ids))
    asked = 0
    while missing.any():
        has = (holds & missing).sum(axis=2)
        server = has.argmax(axis=0)
        asked += int(missing.any(axis=1).sum())
        before = missing.sum()
        missing &= ~holds[server, tokens]
        if missing.sum() == before:
            raise ValueError("an expert is held by nobody")
    return asked / len(ids)
