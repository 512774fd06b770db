"""How two nodes stand with each other by what both have signed. Pure.

Seen from this node. Each amount is the total of one kind of receipt in one direction (µcr, all epochs), and
the peer has the same six with the sides changed: what I am owed is exactly what it owes.
"""

from __future__ import annotations

from dataclasses import dataclass

from market.receipt import Kind


@dataclass(slots=True)
class Standing:
    """Totals with one peer.

    Attributes:
        consumed: our work for it.
        provided: its work for us.
        paid_to_us, forgiven_by_us: its debt that we have signed off.
        paid_by_us, forgiven_to_us: ours that it has.
    """

    consumed: int = 0
    provided: int = 0
    paid_to_us: int = 0
    forgiven_by_us: int = 0
    paid_by_us: int = 0
    forgiven_to_us: int = 0

    @property
    def owes(self) -> int:
        """What it owes us; negative: what we owe it."""
        return (
            self.consumed
            - self.provided
            - self.paid_to_us
            - self.forgiven_by_us
            + self.paid_by_us
            + self.forgiven_to_us
        )

    @property
    def received(self) -> int:
        """What it has given us: work, and payments. What was forgiven is no gift of its."""
        return self.provided + self.paid_to_us

    @property
    def unsettled(self) -> int:
        """What it did for us, or overpaid, and no settlement has covered yet: the most that it can sign off.
        Who could sign off more would have an account here for nothing."""
        return self.provided + self.paid_to_us + self.forgiven_by_us - self.paid_by_us - self.forgiven_to_us

    def sums(self) -> tuple[int, int, int, int, int, int, int]:
        """What it owes us, and the totals, in the order of `ledger.Balance`."""
        return (
            self.owes, self.consumed, self.provided, self.paid_to_us, self.forgiven_by_us, self.paid_by_us,
            self.forgiven_to_us,
        )  # fmt: skip

    def add(self, we_pay: bool, kind: Kind, credits: int) -> None:
        """A full receipt has raised a stream's total."""
        match (we_pay, kind):
            case (False, Kind.WORK):
                self.consumed += credits
            case (True, Kind.WORK):
                self.provided += credits
            case (False, Kind.PAID):
                self.paid_to_us += credits
            case (True, Kind.PAID):
                self.paid_by_us += credits
            case (False, Kind.FORGIVEN):
                self.forgiven_by_us += credits
            case (True, Kind.FORGIVEN):
                self.forgiven_to_us += credits
