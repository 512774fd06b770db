"""The last answers this node has given, with what they cost. Never what was asked or answered."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from node.decode.ledger import TripsReport
from node.status.facts import Answer, Trips
from routing.wire.text import sanitise

if TYPE_CHECKING:
    from node.decode.continuous.report import AnswerReport

KEPT = 50
"""Answers shown: an evening's chat; a page lists no more."""

ERROR_BYTES = 300
"""Of the line that says why an answer failed."""


PAID_PEERS = 16
"""Of those that an answer's work cost something: the dearest. All fifty answers are sent when one is new."""


class AnswerRing:
    """The newest KEPT answers."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque(maxlen=KEPT)
        self._number = 0

    def note(self, report: AnswerReport, model_id: str, at: float, error: str = "") -> None:
        """An answer has ended.

        Args:
            at: unix time.
            error: why it failed; "" if it did not.
        """
        self._number += 1
        self._answers.appendleft(
            Answer(
                number=self._number,
                at=round(at, 1),
                model=model_id,
                prompt_tokens=report.prompt_tokens,
                cached_tokens=report.cached_tokens,
                tokens=report.tokens,
                stopped=report.stopped,
                queued_seconds=round(report.queued, 3),
                prompt_seconds=round(report.prompt_seconds, 3),
                seconds=round(report.seconds, 3),
                tokens_per_second=round(report.tokens_per_second, 2),
                trips=trips_of(report.trips, report.tokens),
                error=sanitise(error, ERROR_BYTES),
            )
        )

    def told(self) -> list[Answer]:
        """The newest first."""
        return list(self._answers)


def trips_of(report: TripsReport, tokens: int) -> Trips:
    """The ledger as the status has it."""
    return Trips(
        passes=report.passes,
        trips=report.trips,
        trips_per_token=round(report.trips / tokens, 3) if tokens else 0.0,
        sent_bytes=round(report.bytes_out),
        received_bytes=round(report.bytes_back),
        waited_seconds=round(report.waited, 3),
        computed_seconds=round(report.computed_home, 3),
        drafted=report.drafted,
        accepted=report.accepted,
        hedges=report.hedges,
        hedges_won=report.hedges_won,
        late=sum(report.late.values()),
        failed=sum(report.failures.values()),
        slowest_peer=report.slowest_peer,
        cost=report.cost,
        cost_by_peer=dict(Counter(report.cost_by_peer).most_common(PAID_PEERS)),
    )
