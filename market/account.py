"""One peer's account: how we stand with it, and its streams of receipts in both directions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from market.ledger import Granted
from market.receipt import Kind
from market.standing import Standing
from market.stream import Accepting, Issuing
from routing.identity import PeerId

Side = tuple[bool, Kind]
"""A stream with one peer: whether we are its payer, and its kind."""

PUT_OFF_SECONDS = 60.0
"""Before a settlement that the debtor did not take is offered again: it may have lost the receipts of what is
settled, and then never takes it. On a new connection it is offered at once."""


def we_issue(we_pay: bool, kind: Kind) -> bool:
    """Whether we sign first: our debts, and what settles others'."""
    return we_pay == (kind is Kind.WORK)


@dataclass(slots=True)
class Account:
    """What we know of one peer.

    Attributes:
        we, peer: the two.
        standing: by full receipts.
        fault: why nothing is done with it any more (it has signed double); "" if all is well.
        line: what it has earned (credit_line.earned_line).
        granted: what it may owe beyond, by the newcomers' pool; `granted_written` of it is on the disk.
        subnet: where it was last; "" if unknown.
        unsigned: computed for it and not covered by a receipt yet (of which pairs: market.uncovered).
        since: when the first of it was computed, or the last receipt came.
        given_up: of what was computed by this process nobody will sign for.
        counted: what it adds to the sum of all debts.
        offered_at: when we last sent it a receipt.
        due_at: when the first thing that is not offered was due; 0: there is none.
        claimed: what it counts as unsigned of ours, as it said last.
        refused: why it did not take our last receipt; "" if it did.
        offered: of which stream the last offer was.
        in_vain: µcr owed to it in this process for answers that never arrived.
        given_up_on: what we asked of it and did not wait for, the last of it at `given_up_at`
            (accounts_payer).
        put_off: settlements that it did not take, and when it said so.
        caught_up: what both know was compared since this process began.
        writing: a step of its is being written down, or could not be.
        leaving: it is being written down that it is forgotten.
    """

    we: PeerId
    peer: PeerId
    standing: Standing = field(default_factory=Standing)
    fault: str = ""
    line: int = 0
    granted: int = 0
    granted_written: int = 0
    subnet: str = ""
    unsigned: int = 0
    since: float = 0.0
    given_up: int = 0
    counted: int = 0
    offered_at: float = 0.0
    due_at: float = 0.0
    claimed: int = 0
    refused: str = ""
    given_up_on: int = 0
    in_vain: int = 0
    given_up_at: float = 0.0
    offered: Side = (True, Kind.WORK)
    put_off: dict[Side, float] = field(default_factory=dict)
    caught_up: bool = False
    writing: bool = False
    leaving: bool = False
    issues: dict[Side, Issuing] = field(default_factory=dict)
    accepts: dict[Side, Accepting] = field(default_factory=dict)

    @property
    def owes(self) -> int:
        """What it owes us, signed or not; negative: we owe it."""
        return self.standing.owes + self.unsigned

    def issuing(self, we_pay: bool, kind: Kind) -> Issuing:
        """The stream of what we owe (WORK), or of what settles its debt."""
        stream = self.issues.get((we_pay, kind))
        if stream is None:
            assert we_issue(we_pay, kind)
            stream = self.issues[we_pay, kind] = Issuing(*self._sides(we_pay), kind)
        return stream

    def accepting(self, we_pay: bool, kind: Kind) -> Accepting:
        """The stream of what it owes, or of what settles ours."""
        stream = self.accepts.get((we_pay, kind))
        if stream is None:
            assert not we_issue(we_pay, kind)
            stream = self.accepts[we_pay, kind] = Accepting(*self._sides(we_pay), kind)
        return stream

    def stream(self, we_pay: bool, kind: Kind) -> Issuing | Accepting:
        """Either."""
        return self.issuing(we_pay, kind) if we_issue(we_pay, kind) else self.accepting(we_pay, kind)

    def streams(self) -> Iterator[tuple[Side, Issuing | Accepting]]:
        """Those that are in use."""
        yield from self.issues.items()
        yield from self.accepts.items()

    @property
    def is_signed(self) -> bool:
        """Whether anything was ever signed between the two: such accounts are on the disk."""
        return any(
            stream.full is not None or (isinstance(stream, Issuing) and stream.pending is not None)
            for _, stream in self.streams()
        )

    @property
    def is_open(self) -> bool:
        """Whether something waits for a receipt from us."""
        return not self.fault and any(stream.due_credits > 0 for stream in self.issues.values())

    @property
    def waiting(self) -> int:
        """What we have signed off of its debt, and it has not countersigned yet."""
        return sum(each.due_credits for (we_pay, _), each in self.issues.items() if not we_pay)

    def is_put_off(self, side: Side, now: float) -> bool:
        """Whether a settlement is not to be offered just now: it was refused, and there may be work to be
        signed for."""
        return side in self.put_off and abs(now - self.put_off[side]) < PUT_OFF_SECONDS

    @property
    def last_epoch(self) -> int:
        """Of its latest full receipt; 0 if there is none."""
        return max((stream.full.receipt.epoch for _, stream in self.streams() if stream.full), default=0)

    def newly_granted(self) -> tuple[Granted, ...]:
        """What the pool has granted it, if that is not written down yet (`granted_written` says so then)."""
        return () if self.granted == self.granted_written else (Granted(self.peer, self.granted),)

    def _sides(self, we_pay: bool) -> tuple[PeerId, PeerId]:
        return (self.we, self.peer) if we_pay else (self.peer, self.we)
