"""What the table of adverts takes and gives: limits, verdicts, rows, cursors. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from routing.wire.advert import Advert


@dataclass(frozen=True)
class TableLimits:
    """Room in the table.

    Attributes:
        rows: in all; 9 KB each at most, so 36 MB. Pinned rows may go beyond.
        per_subnet: rows that name a public address of one IPv4 /24 or IPv6 /48.
        local: rows that name no public address: a LAN, or nodes known through relays only.
        per_source: rows first heard from one peer; one liar can't fill the table.
        gone: identities without a row whose sequence number is remembered.
    """

    rows: int = 4_096
    per_subnet: int = 64
    local: int = 512
    per_source: int = 2_048
    gone: int = 4_096


class Outcome(Enum):
    """What became of an advert that was offered."""

    NEW = "new"
    REFRESHED = "refreshed"
    LEFT = "left"
    KNOWN = "known"
    REFUSED = "refused"


@dataclass(frozen=True)
class Clone:
    """One key in use on two machines.

    Attributes:
        peer_id: the identity.
        own: it is this node's own.
        addresses: what either names as its addresses, in words.
    """

    peer_id: str
    own: bool
    addresses: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.addresses
        if self.own:
            return (
                f"this node's own identity {self.peer_id} is in use elsewhere, at {second} (here: {first}): "
                "its key file was copied; move it away on one of the two machines and start that one again"
            )
        return (
            f"identity {self.peer_id} is in use on two machines, at {first} and at {second}: its key file "
            "was copied; one of the two needs a key of its own"
        )


@dataclass(frozen=True)
class Offer:
    """What became of an advert that was offered.

    Attributes:
        outcome: the verdict.
        peer_id: whose advert it says it is; "" if unreadable. Unproven if REFUSED.
        reason: why it was refused, in words; "" otherwise.
        advert: the one now in the table, for NEW and REFRESHED; the farewell for LEFT.
        clone: two machines with one key, when this advert was the first to show it: log it loudly.
    """

    outcome: Outcome
    peer_id: str = ""
    reason: str = ""
    advert: Advert | None = None
    clone: Clone | None = None

    @property
    def changed(self) -> bool:
        """Whether the table is another one now."""
        return self.outcome in (Outcome.NEW, Outcome.REFRESHED, Outcome.LEFT)


@dataclass(frozen=True)
class Row:
    """A live row.

    Attributes:
        advert: what the peer says.
        data: its bytes.
        issued: when, by our clock and as far as we can tell.
        expires: when the row ends.
        source: the peer it was first heard from; "" for our own, the DHT, the LAN.
        pinned: exempt from the limits.
    """

    advert: Advert
    data: bytes
    issued: float
    expires: float
    source: str
    pinned: bool


@dataclass(frozen=True)
class Cursor:
    """How far somebody has read a table. `Cursor()` is the beginning.

    Attributes:
        epoch: the table's, another one after a restart.
        counter: the last change read.
    """

    epoch: int = 0
    counter: int = 0


@dataclass(frozen=True)
class Changes:
    """What has changed since a cursor.

    Attributes:
        adverts: (age in seconds, the advert's bytes), oldest change first.
        cursor: to ask with next.
        more: there is more than fitted.
    """

    adverts: list[tuple[float, bytes]]
    cursor: Cursor
    more: bool
