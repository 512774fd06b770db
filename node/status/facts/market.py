"""The market in the status: what cells cost here, who owes whom. Amounts are micro-credits."""

from __future__ import annotations

from msgspec import Struct


class Asking(Struct, frozen=True):
    """What this node asks for its cells of a model.

    Attributes:
        number: names the quote; it grows with each.
        until: when it is over.
        cells: that have a price; lowest, mean, highest: for a pair, one token through one cell.
    """

    model: str
    number: int
    until: float
    cells: int
    lowest: int
    mean: float
    highest: int


class Credit(Struct, frozen=True):
    """How this node stands with a peer.

    Attributes:
        owes: what the peer owes by receipts that both have signed; negative: this node owes it.
        unsigned: computed for it, and not covered by a receipt yet.
        due: computed by it, and not covered by a receipt that it has countersigned.
        limit: what it may owe.
        refused: why it did not take the last receipt, "" if it did.
        refuses: why it does not compute for this node, "" if it does, or was not asked.
        refused_here: why this node does not compute for it, likewise.
        fault: why nothing is done with it any more, "" if all is well.
    """

    peer: str
    owes: int
    unsigned: int
    due: int
    limit: int
    refused: str
    refuses: str
    refused_here: str
    fault: str


class Market(Struct, frozen=True):
    """Attributes:
    mode, prefer: as in the config.
    owed: what all who owe this node owe it, by receipts; owes: what it owes others.
    spent_today: by this node's backbone, since midnight UTC.
    budget_day, budget_answer: most it may spend, null without a budget.
    asks: what it asks, a model each.
    credits: the largest first; credits_left_out: how many more there are.
    """

    mode: str
    prefer: str
    owed: int
    owes: int
    spent_today: int
    budget_day: int | None
    budget_answer: int | None
    asks: list[Asking]
    credits: list[Credit]
    credits_left_out: int
