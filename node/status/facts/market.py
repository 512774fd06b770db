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
        waiting: of what it owes, signed off here and not countersigned by it yet.
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
    waiting: int = 0


class AuditedPeer(Struct, frozen=True):
    """How the audits of a peer went, and what stands against it.

    Attributes:
        build: its build class, as it says; "" if it does not, or is not known.
        checked: its answers that were held against another's, also before a restart; agreed: so many of them;
            the others differed.
        marks: how many of the last 32 were somewhat off; two are a proof. Since the node's start.
        suspected: it is in dispute, or marked.
        strikes: false answers that were proved and are not forgiven.
        until: unix time up to which it is not asked; null if it is.
        standing: what its word weighs here; hearsay: how much of that rests on others' receipts.
    """

    peer: str
    build: str
    checked: int
    agreed: int
    marks: int
    suspected: bool
    strikes: int
    until: float | None
    standing: float
    hearsay: float


class FalseAnswer(Struct, frozen=True):
    """A false answer that was proved.

    Attributes:
        at: when it was found; peer: who gave it.
        model, layer, call_index, pairs: which call.
        other: whose answer it was held against; "home" is this node itself.
        cosine, length: how far apart the worst row was: 1 - cosine, and the ratio of lengths less 1; length
            is null where that is infinite.
        reason: how it was decided, one line.
        pardoned: when the owner forgave it; null if that was not done.
    """

    at: float
    peer: str
    model: str
    layer: int
    call_index: int
    pairs: int
    other: str
    cosine: float
    length: float | None
    reason: str
    pardoned: float | None


class Audits(Struct, frozen=True):
    """What was found by running calls again.

    Attributes:
        share: of the calls that are run again; 0: none, and who was found out is not asked all the same.
        checked: calls that were, since the node's start; agreed, unsettled, convicted: with what end;
            same_bytes: in how many the two answers were byte for byte the same.
        waiting: calls that wait to be; missed: that nobody had time for.
        canaries: past calls kept, to be asked again.
        peers: those that are not asked first, then those against whom anything stands, then those that were
            checked most; peers_left_out: how many more there are.
        evidence: false answers, the newest first.
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
    peers: list[AuditedPeer]
    peers_left_out: int
    evidence: list[FalseAnswer]


class Market(Struct, frozen=True):
    """Attributes:
    mode, prefer: as in the config.
    owed: what all who owe this node owe it, by receipts; owes: what it owes others.
    spent_today: by this node's backbone, since midnight UTC.
    budget_day, budget_answer: most it may spend, null without a budget.
    asks: what it asks, a model each.
    credits: the largest first; credits_left_out: how many more there are.
    audits: null where this node has no backbone that audits, and knows of nobody who was found out.
    holders_answered: others that hold anything of what this node serves, or may serve, and have answered it
        within the hour; holders_silent: that do not answer; holders_heard: known by their adverts alone.
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
    audits: Audits | None = None
    holders_answered: int = 0
    holders_silent: int = 0
    holders_heard: int = 0
