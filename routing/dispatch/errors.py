"""Experts that nobody could compute. A `PeerError`: nothing is wrong here, asking again later may work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routing.errors import PeerError

NAMED_RUNS = 8
"""Runs of experts named in one line; the attribute has them all."""


class ExpertsUnavailable(PeerError):
    """A call can't be computed: every peer that held these experts failed, refused or is gone.

    Attributes:
        layer: block number.
        experts: which ones, ascending.
        reasons: what went wrong, by peer id, for the peers that were asked or once held them.
    """

    def __init__(self, layer: int, experts: Sequence[int], reasons: Mapping[str, str]) -> None:
        named = f"layer {layer}: no peer holds {name_experts(experts)}"
        if reasons:
            told = "; ".join(
                reason if peer in reason else f"{peer}: {reason}" for peer, reason in reasons.items()
            )
            message = f"{named} any more ({told}): try again when it is back"
        else:
            message = f"{named}: start a server for them or add its peer"
        super().__init__(message, peer=next(iter(reasons), ""))
        self.layer = layer
        self.experts = tuple(experts)
        self.reasons = dict(reasons)


class NoHolder(ExpertsUnavailable):
    """No peer that may be asked holds these experts."""


def name_experts(experts: Sequence[int]) -> str:
    """`expert 3`, `experts 0-3, 7` or, of many, the first runs and how many more."""
    runs: list[list[int]] = []
    for expert in experts:
        if runs and expert == runs[-1][1] + 1:
            runs[-1][1] = expert
        else:
            runs.append([expert, expert])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:NAMED_RUNS]]
    rest = sum(last - first + 1 for first, last in runs[NAMED_RUNS:])
    more = f" and {rest} more" if rest else ""
    return f"expert{'' if len(experts) == 1 else 's'} {', '.join(shown)}{more}"
