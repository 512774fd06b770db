"""Experts that nobody could compute. A `PeerError`: nothing is wrong here, asking again later may work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from routing.errors import PeerError
from routing.wire.experts import UNPAID_WORDS

FALSE_WORDS = "gave false answers"
"""In the reason of a peer that this node does not ask for that."""

NAMED_RUNS = 8
"""Runs of experts named in one line; the attribute has them all."""


class ExpertsUnavailable(PeerError):
    """A call can't be computed: every peer that held these experts failed, refused or is gone.

    Attributes:
        layer: block number.
        experts: which ones, ascending.
        reasons: what went wrong, by peer id, for the peers that were asked or once held them.
        unpaid: all who hold them refused for want of credit.
        run_length: experts that have to be at one server together; 0 if each may be elsewhere.
    """

    def __init__(
        self, layer: int, experts: Sequence[int], reasons: Mapping[str, str], run_length: int = 0
    ) -> None:
        named = f"layer {layer}: no peer holds {name_experts(experts)}{in_whole_runs([run_length])}"
        self.unpaid = bool(reasons) and all(UNPAID_WORDS in reason for reason in reasons.values())
        if reasons:
            told = "; ".join(
                reason if peer in reason else f"{peer}: {reason}" for peer, reason in reasons.items()
            )
            message = f"{named} any more ({told}): try again when it is back"
            if all(FALSE_WORDS in reason for reason in reasons.values()):
                held = f"layer {layer}: who holds {name_experts(experts)} is not asked"
                message = f"{held} ({told}): start another server for them, or panal market pardon"
            if self.unpaid:
                held = f"layer {layer}: who holds {name_experts(experts)} wants to be paid first"
                message = f"{held} ({told})"
        else:
            message = f"{named}: start a server for them or add its peer"
        super().__init__(message, peer=next(iter(reasons), ""))
        self.layer = layer
        self.experts = tuple(experts)
        self.reasons = dict(reasons)
        self.run_length = run_length


class NoHolder(ExpertsUnavailable):
    """No peer that may be asked holds these experts."""


def in_whole_runs(lengths: Iterable[int]) -> str:
    """` in whole runs of 16 (combine = stable)`, to follow experts; "" where no run has several."""
    several = sorted({length for length in lengths if length > 1})
    return f" in whole runs of {' or '.join(map(str, several))} (combine = stable)" if several else ""


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
