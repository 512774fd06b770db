"""How far two sequences of tokens are the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def shared_prefix(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """Tokens from the beginning that both have."""
    length = min(len(mine), len(theirs))
    if list(mine[:length]) == list(theirs[:length]):  # nearly always, and much faster than a loop
        return length
    return next(i for i in range(length) if mine[i] != theirs[i])
