"""What the books write down and read again: the port between accounts in memory and a file. Pure.

`Ledger.write` blocks, in a thread: one transaction, on the disk when it returns. It is called before a
signature leaves (books.Step), never on the path of a call. Amounts are µcr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from market.receipt import Kind, SignedReceipt
from market.stream import ADOPT_EPOCHS

MAX_PEERS = 4_096
"""Peers whose accounts are kept: more than a node ever meets at once; some 4 MB."""

FORGET_EPOCHS = ADOPT_EPOCHS + 48
"""Hours without a receipt after which an account at zero may be forgotten: two days, for whatever clocks say,
after its receipts could no longer be shown to us as news."""

MAX_RECEIPTS = 50_000
"""Receipts of past epochs kept for the owner to look at, 20 MB; of older ones only the sums."""

MAX_EVIDENCE = 256
"""Proofs of double signing kept, the oldest forgotten first. The verdict on a peer stays with its account."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A receipt: proposed by us (signed once), or full.

    Attributes:
        peer: the other side.
        we_pay: whether we are the payer.
    """

    peer: str
    we_pay: bool
    signed: SignedReceipt


@dataclass(frozen=True, slots=True)
class Granted:
    """What the newcomers' pool has granted a peer, in all."""

    peer: str
    credits: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn on the pool on the latest day, by subnet; it replaces what was written before."""

    by_subnet: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two receipts that an honest peer cannot both have signed.

    Attributes:
        why: `receipt.contradiction` of the two.
        at: unix seconds.
        pardoned: unix seconds at which the owner forgave it; 0: that was not done. Not written with it.
    """

    peer: str
    why: str
    one: SignedReceipt
    other: SignedReceipt
    at: int
    pardoned: int = 0


@dataclass(frozen=True, slots=True)
class Pardoned:
    """The owner forgives a peer that it has signed double: the proofs stay, and are marked.

    Attributes:
        at: unix seconds.
    """

    peer: str
    at: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An account that makes room."""

    peer: str


Record = Entry | Granted | Drawn | Evidence | Pardoned | Forgotten


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream as it was written down (market.stream).

    Attributes:
        total_pairs, total_credits: of all epochs, by full receipts.
        full, earlier: its last full receipt, and that of the epoch before; None: there is none.
        pending: signed by us, and n above the last full one's.
    """

    we_pay: bool
    kind: Kind
    total_pairs: int = 0
    total_credits: int = 0
    full: SignedReceipt | None = None
    earlier: SignedReceipt | None = None
    pending: SignedReceipt | None = None


@dataclass(frozen=True, slots=True)
class AccountState:
    """One peer's account."""

    peer: str
    granted: int = 0
    fault: str = ""
    streams: tuple[StreamState, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerState:
    """All that a process goes on from.

    Attributes:
        drawn: on the newcomers' pool, by day and subnet.
    """

    accounts: tuple[AccountState, ...] = ()
    drawn: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Balance:
    """How we stand with a peer, for people.

    Attributes:
        owes_us: µcr by receipts of both sides; negative: we owe it.
        consumed, provided, paid_to_us, forgiven_by_us, paid_by_us, forgiven_to_us: what that is made of
            (market.standing).
        unsigned: computed for it and not covered by a receipt.
        due: computed by it and not covered by a full receipt.
        claimed: what it counts of that, as it said last.
        limit: what it may owe; -1 where that is not known (read from the file).
        granted: of it by the newcomers' pool.
        last_epoch: of the latest receipt.
        fault: why nothing is done with it any more; "" if all is well.
        refused: why it did not take our last receipt; "" if it did.
        waiting: of what it owes, signed off by us and not countersigned by it yet.
    """

    peer: str
    owes_us: int
    consumed: int
    provided: int
    paid_to_us: int
    forgiven_by_us: int
    paid_by_us: int
    forgiven_to_us: int
    unsigned: int = 0
    due: int = 0
    claimed: int = 0
    limit: int = -1
    granted: int = 0
    last_epoch: int = 0
    fault: str = ""
    refused: str = ""
    waiting: int = 0


class Ledger(Protocol):
    """The file, or what stands for it."""

    def load(self, now: float) -> LedgerState:
        """What was written down."""

    def write(self, records: Sequence[Record]) -> None:
        """All of it or, with a LocalError, nothing.

        A receipt that is behind one that is there changes nothing, so the same may be written again.
        """

    def close(self) -> None:
        """Nothing is lost without it."""
