"""How audits go, in numbers."""

from __future__ import annotations

import msgspec


class AuditReport(msgspec.Struct, frozen=True):
    """Since the start of the process.

    Attributes:
        share: of the calls that are run again.
        checked: calls that were; agreed, unsettled, convicted: with what end; same_bytes: in how many the two
            answers were byte for byte the same.
        waiting: calls that wait to be; missed: that nobody had time for.
        canaries: past calls kept.
        quarantined: peers that are not asked, with the unix time until then.
        suspected: peers against whom something stands open.
    """

    share: float
    checked: int
    agreed: int
    unsettled: int
    convicted: int
    same_bytes: int
    waiting: int
    missed: int
    canaries: int
    quarantined: dict[str, float]
    suspected: list[str]
