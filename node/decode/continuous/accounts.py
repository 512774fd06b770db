"""What a decoder's passes took, in all and of each answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from node.decode.continuous.asked import Asked
from node.decode.continuous.rate import Rate
from node.decode.continuous.report import DecoderStats
from node.decode.ledger import PassDone, TripsLedger
from node.decode.members import Made, Member

Shares = Sequence[tuple[Member, int]]
"""Rows of each member in a pass."""


class Accounts:
    """Sums since the start. For one thread at a time."""

    def __init__(self) -> None:
        self._ledger = TripsLedger()
        self._rate = Rate()
        self._counts: Counter[str] = Counter()

    @property
    def used(self) -> Mapping[str, float]:
        """When each peer has answered last, in all passes."""
        return self._ledger.used

    def count(self, what: str, amount: int = 1) -> None:
        """One of the counts of `DecoderStats`."""
        self._counts[what] += amount

    def token(self, now: float) -> None:
        """A token was chosen."""
        self._counts["tokens"] += 1
        self._rate.add(1, now)

    def made(self, shared: TripsLedger, made: Made, asked: Mapping[Member, Asked]) -> None:
        """A pass was made: each answer gets its part.

        Args:
            shared: the pass's own ledger.
        """
        given = Counter(choice.member for choice in made.choices if choice.error is None)
        first = 0
        for member, rows in made.rows:
            each = asked[member]
            if member.cached > each.cached:
                self._counts["cached_tokens"] += member.cached - each.cached
                each.cached = member.cached
            if not rows:
                continue  # its first token came with another's prompt
            each.ledger.add_part(shared, first, rows, made.done.rows)
            first += rows
            each.ledger.count_pass(
                PassDone(
                    rows,
                    drafted=made.done.drafted,
                    accepted=made.done.accepted,
                    tokens=given[member],
                    decoding=each.tokens > 0,
                    drafting=made.done.drafting,
                    seconds=made.done.seconds,
                )
            )
        shared.count_pass(made.done)
        self._ledger.add(shared)

    def failed(self, shared: TripsLedger, shares: Shares, asked: Mapping[Member, Asked]) -> None:
        """A pass failed: it has cost something, too."""
        first, of = 0, sum(rows for _, rows in shares)
        for member, rows in shares:
            asked[member].ledger.add_part(shared, first, rows, of)
            first += rows
        self._ledger.add(shared)

    def stats(
        self, now: float, *, slots: int, active: int, reading: int, waiting: int, queue: int, cached: int
    ) -> DecoderStats:
        """How the decoder is doing."""
        counts = self._counts
        return DecoderStats(
            slots=slots,
            active=active,
            reading=reading,
            waiting=waiting,
            queue=queue,
            cached=cached,
            asked=counts["asked"],
            answered=counts["answered"],
            left=counts["left"],
            failed=counts["failed"],
            refused=counts["refused"],
            prompt_tokens=counts["prompt_tokens"],
            cached_tokens=counts["cached_tokens"],
            tokens=counts["tokens"],
            tokens_per_second=self._rate.per_second(now),
            trips=self._ledger.report(),
        )
