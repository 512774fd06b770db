"""The table of adverts: who is in the swarm, as far as this node knows. Pure; who hears an advert offers it.

1. One identity, one row. A row is replaced only by a higher sequence number; the same or a lower one is
   a copy or a replay and changes nothing. The number is remembered after the row has gone, until the
   dates alone would refuse any older advert.
2. A row ends `lifetime` after its advert was issued. Clocks may be wrong by CLOCK_SKEW, so what counts is the
   advert's *age*: each node that passes it on says how long ago it was issued, and counts from there. The age
   told may differ from what the dates say by CLOCK_SKEW and no more; so a liar can neither keep a row
   longer than the dates allow nor end it before the next advert comes (`refresh_after`).
3. Room is limited in all, per subnet, and per peer that introduced a row. When there is none, newcomers are
   refused; live rows never make way. Pinned peers (connected, configured) have room always.
4. What is cheap is checked first, the signature late, membership last: a flood costs little, and forged
   or foreign adverts are neither used nor passed on.
5. An instance that speaks again after its successor has spoken is a second machine with the same key.

`now` is unix time in seconds everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from routing.advert_rows import Changes, Clone, Cursor, Offer, Outcome, Row, TableLimits
from routing.errors import LocalError
from routing.subnet import subnet_of
from routing.wire.advert import (
    CLOCK_SKEW,
    Advert,
    AdvertError,
    Fault,
    SignedAdvert,
    UnprovenAdvert,
    decode_advert,
)
from routing.wire.exchange import ANSWER_OVERHEAD, ENTRY_OVERHEAD, MAX_ADVERTS, MAX_ANSWER_BYTES

ADVERT_BURST = 4
"""Adverts of one identity taken at once: an honest one issues one in two seconds at most, but several may
arrive together over a slow way."""

ADVERTS_PER_SECOND = 1.0
"""Of one identity, in the long run."""

PROBATION = 60.0
"""Seconds a row lives at least if nobody told its advert's age and its dates say it is over: its clock may be
behind. Time to dial the peer and hear a newer one."""

FORMER_INSTANCES = 4
"""Earlier processes of an identity that are remembered, to notice one that speaks again."""

MAX_BLAMED = 1_024
"""Peers whose refused adverts are counted; the longest known one is forgotten first."""

MAX_OWN_CLONES = 8
"""Other machines with our own key that are named."""

LOCAL_GROUP = "local"
"""The group of rows without any public address."""

PLACES_SHOWN = 3
"""Addresses of a machine in a message for people."""

DEFAULT_LIMITS = TableLimits()

_ALWAYS_BLAMED = frozenset(
    {Fault.OVERSIZED, Fault.VERSION, Fault.MALFORMED, Fault.ADDRESSES, Fault.FOREIGN, Fault.SIGNATURE}
)


@dataclass(slots=True)
class _Entry:
    """An identity: its row, or what is remembered of it."""

    signed: SignedAdvert  # the newest advert; of one that has gone only if it is a farewell
    issued: float  # by our clock
    expires: float
    guessed: bool  # nobody told its age
    source: str
    via: int
    groups: tuple[str, ...]
    tokens: float
    refilled: float
    changed: int = 0
    live: bool = True
    former: dict[int, str] = field(default_factory=dict)  # instance -> its addresses
    clone: Clone | None = None

    @property
    def forget_at(self) -> float:
        """From then on its dates refuse this advert, and all before it."""
        advert = self.signed.advert
        return advert.issued_at + advert.lifetime + CLOCK_SKEW


class AdvertTable:
    """All adverts this node believes.

    Args:
        swarm_id: 32 bytes; adverts of others are refused.
        own_peer_id: this node's.
        own_instance: this process's random u64; also the epoch of its cursors.
        check_member: (advert, now) -> why its node is no member of the swarm, "" if it is.

    Attributes:
        own_seq: the highest sequence number seen of our own identity; our next advert must be above.
    """

    def __init__(
        self,
        swarm_id: bytes,
        own_peer_id: str,
        own_instance: int,
        check_member: Callable[[Advert, float], str],
        limits: TableLimits = DEFAULT_LIMITS,
    ) -> None:
        self.own_seq = 0
        self._swarm_id = swarm_id
        self._own_peer_id = own_peer_id
        self._own_instance = own_instance
        self._check_member = check_member
        self._limits = limits
        self._own_since: int | None = None
        self._own_clones: dict[int, Clone] = {}
        self._entries: dict[str, _Entry] = {}  # in the order of their changes
        self._counter = 0
        self._live = 0
        self._groups: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._pinned: set[str] = set()
        self._next_expiry = math.inf  # no row ends before
        self._gone: dict[str, None] = {}  # ended, not yet reported
        self._blamed: dict[str, int] = {}

    # --- writing ---

    def offer(
        self, data: bytes, now: float, *, from_peer: str, age: float | None = None, via: int = 0
    ) -> Offer:
        """Take an advert that somebody has brought, if it is good and new. Never raises for its content.

        Args:
            data: the bytes as they came.
            from_peer: who brought it; "" if no peer is to blame (DHT, LAN).
            age: seconds since it was issued, as told by who brought it; None if nobody said.
            via: the connection it came over, so that `changes` need not send it back there; 0 for none.
        """
        peer_id = ""
        try:
            unproven = decode_advert(data)
            peer_id = unproven.advert.peer_id
            unproven.check(swarm_id=self._swarm_id, now=now)
            if peer_id == self._own_peer_id:
                return self._take_own_echo(unproven)
            return self._take(unproven, now, from_peer, age, via)
        except AdvertError as error:
            if error.fault in _ALWAYS_BLAMED:
                self._blame(from_peer)
            return Offer(Outcome.REFUSED, peer_id, str(error))

    def put_own(self, data: bytes, now: float) -> Offer:
        """Put this node's own advert, or its farewell, into the table.

        Raises:
            LocalError: it is not ours, or not newer than the one before.
        """
        try:
            unproven = decode_advert(data)
            unproven.check(swarm_id=self._swarm_id, now=now)
            signed = unproven.prove()
        except AdvertError as error:
            raise LocalError(f"this node's own advert is not valid: {error}") from error
        advert = signed.advert
        if advert.peer_id != self._own_peer_id or advert.instance != self._own_instance:
            raise LocalError(f"an advert of {advert.peer_id} can't be put in as this node's own")
        entry = self._entries.get(advert.peer_id)
        if entry is not None and advert.seq <= entry.signed.advert.seq:
            raise LocalError(f"this node's own advert has number {advert.seq}, the one before is not lower")
        self.own_seq = max(self.own_seq, advert.seq)
        if self._own_since is None:
            self._own_since = advert.issued_at
        return self._accept(signed, now, now, False, "", 0)

    def expire(self, now: float) -> list[str]:
        """Drop rows whose time is over; call it each second.

        Returns:
            Peers whose time ran out since the last call and that have not come back. Not those that said
            farewell: their `Offer` said so.
        """
        if now >= self._next_expiry:
            self._drop_expired(now)
        self._forget_gone(now)
        gone, self._gone = self._gone, {}
        return [peer_id for peer_id in gone if self.get(peer_id) is None]

    def pin(self, peer_id: str) -> None:
        """Always have room for this peer. The caller bounds how many there are."""
        self._pinned.add(peer_id)

    def unpin(self, peer_id: str) -> None:
        """An ordinary peer again; its row stays while it lives."""
        self._pinned.discard(peer_id)

    def forgive(self, from_peer: str) -> None:
        """Start counting a peer's refused adverts anew."""
        self._blamed.pop(from_peer, None)

    # --- reading ---

    def __len__(self) -> int:
        """Live rows, our own included."""
        return self._live

    def rows(self) -> list[Row]:
        """All live rows, our own included."""
        return [self._row(entry) for entry in self._entries.values() if entry.live]

    def get(self, peer_id: str) -> Row | None:
        """A peer's row."""
        entry = self._entries.get(peer_id)
        return self._row(entry) if entry is not None and entry.live else None

    def holders_of(self, model_id: str) -> list[Row]:
        """Other nodes that serve anything of a model."""
        return [row for row in self._others() if row.advert.serves(model_id)]

    def relays(self) -> list[Row]:
        """Other nodes that relay for others."""
        return [row for row in self._others() if row.advert.serves_relay]

    def clones(self) -> list[Clone]:
        """Keys in use on two machines, our own first."""
        others = [entry.clone for entry in self._entries.values() if entry.clone is not None]
        return [*self._own_clones.values(), *others]

    def refusals(self, from_peer: str) -> int:
        """How many adverts this peer has brought that no honest one would have passed on."""
        return self._blamed.get(from_peer, 0)

    @property
    def cursor(self) -> Cursor:
        """Where the table stands now."""
        return Cursor(self._own_instance, self._counter)

    def changes(self, cursor: Cursor, now: float, *, not_via: int = 0) -> Changes:
        """What has changed since a cursor, bounded by MAX_ADVERTS and MAX_ANSWER_BYTES of an answer.

        Args:
            not_via: leave out what came over this connection; 0 leaves out nothing.
        """
        after = min(cursor.counter, self._counter) if cursor.epoch == self._own_instance else 0
        newest_first = []
        for entry in reversed(self._entries.values()):
            if entry.changed <= after:
                break
            newest_first.append(entry)
        adverts: list[tuple[float, bytes]] = []
        room = MAX_ANSWER_BYTES - ANSWER_OVERHEAD
        for entry in reversed(newest_first):
            farewell = not entry.live and entry.signed.advert.leaving
            told = (entry.live or farewell) and now < entry.expires and (not not_via or entry.via != not_via)
            if told:
                cost = len(entry.signed.data) + ENTRY_OVERHEAD
                if len(adverts) == MAX_ADVERTS or cost > room:
                    return Changes(adverts, Cursor(self._own_instance, after), True)
                room -= cost
                adverts.append((max(0.0, now - entry.issued), entry.signed.data))
            after = entry.changed
        return Changes(adverts, self.cursor, False)

    # --- inside: taking ---

    def _take(
        self, unproven: UnprovenAdvert, now: float, from_peer: str, age: float | None, via: int
    ) -> Offer:
        advert = unproven.advert
        peer_id = advert.peer_id
        entry = self._entries.get(peer_id)
        if entry is not None and advert.seq <= entry.signed.advert.seq:
            return self._take_copy(entry, unproven, now, age)
        if advert.leaving and entry is None:
            return Offer(Outcome.KNOWN, peer_id)  # nobody here has heard of it
        issued = _issued(advert, now, age)
        if now >= issued + advert.lifetime:
            return Offer(Outcome.REFUSED, peer_id, f"advert of {peer_id}: expired, as told by {from_peer}")
        refusal = self._why_not(entry, advert, now, from_peer)
        if refusal:
            return Offer(Outcome.REFUSED, peer_id, f"advert of {peer_id}: {refusal}")
        signed = unproven.prove()
        refusal = self._check_member(advert, now)
        if refusal:
            self._blame(from_peer)
            return Offer(Outcome.REFUSED, peer_id, f"advert of {peer_id}: {refusal}")
        return self._accept(signed, now, issued, age is None, from_peer, via)

    def _take_copy(self, entry: _Entry, unproven: UnprovenAdvert, now: float, age: float | None) -> Offer:
        known, advert = entry.signed.advert, unproven.advert
        if advert.seq == known.seq and not entry.live:
            return Offer(Outcome.KNOWN, known.peer_id)  # and over
        if unproven.data != entry.signed.data:
            text = f"advert of {known.peer_id}: a replay, number {advert.seq} where {known.seq} is known"
            return Offer(Outcome.REFUSED, known.peer_id, text)
        if age is not None and entry.guessed and entry.live:
            entry.issued = _issued(known, now, age)
            entry.expires = entry.issued + known.lifetime
            entry.guessed = False
            self._next_expiry = min(self._next_expiry, entry.expires)
        return Offer(Outcome.KNOWN, known.peer_id)

    def _take_own_echo(self, unproven: UnprovenAdvert) -> Offer:
        """Our own identity, from outside: what we said, what an earlier run said, or another machine."""
        advert = unproven.advert
        if advert.instance == self._own_instance or advert.seq <= self.own_seq:
            return Offer(Outcome.KNOWN, advert.peer_id)
        unproven.prove()
        self.own_seq = advert.seq
        if self._own_since is None or advert.issued_at <= self._own_since or advert.leaving:
            return Offer(Outcome.KNOWN, advert.peer_id)
        clone = None
        if advert.instance not in self._own_clones and len(self._own_clones) < MAX_OWN_CLONES:
            own = self._entries.get(advert.peer_id)
            here = _places(own.signed.advert) if own is not None else "this machine"
            clone = Clone(advert.peer_id, True, (here, _places(advert)))
            self._own_clones[advert.instance] = clone
        text = f"advert of {advert.peer_id}: that is this node's own identity, used elsewhere"
        return Offer(Outcome.REFUSED, advert.peer_id, text, clone=clone)

    def _why_not(self, entry: _Entry | None, advert: Advert, now: float, from_peer: str) -> str:
        """Why there is no room for it now; "" if there is."""
        goes = advert.leaving and entry is not None and entry.live  # happens once
        if entry is not None and not goes and _tokens(entry, now) < 1:
            return f"more than {ADVERTS_PER_SECOND:g} a second"
        if advert.leaving or advert.peer_id in self._pinned:
            return ""
        refusal = self._lack_of_room(entry, advert, from_peer)
        if refusal and now >= self._next_expiry:
            self._drop_expired(now)
            refusal = self._lack_of_room(entry, advert, from_peer)
        return refusal

    def _lack_of_room(self, entry: _Entry | None, advert: Advert, from_peer: str) -> str:
        limits = self._limits
        had: tuple[str, ...] = ()
        if entry is not None and entry.live:
            had = entry.groups
        else:
            if self._live >= limits.rows:
                return f"the table is full, {limits.rows} rows"
            if from_peer and self._sources[from_peer] >= limits.per_source:
                return f"{from_peer} has introduced {limits.per_source} nodes already"
        for group in _groups(advert):
            most = limits.local if group == LOCAL_GROUP else limits.per_subnet
            if group not in had and self._groups[group] >= most:
                what = "without a public address" if group == LOCAL_GROUP else f"in {group}"
                return f"there are {most} nodes {what} already"
        return ""

    def _accept(
        self, signed: SignedAdvert, now: float, issued: float, guessed: bool, source: str, via: int
    ) -> Offer:
        advert = signed.advert
        before = self._entries.pop(advert.peer_id, None)
        was_live = before is not None and before.live
        if before is not None and was_live:
            self._uncount(before)
            source = before.source  # who introduced it answers for its place
        entry = _Entry(
            signed=signed,
            issued=issued,
            expires=issued + advert.lifetime,
            guessed=guessed,
            source=source,
            via=via,
            groups=() if advert.leaving else _groups(advert),
            tokens=float(ADVERT_BURST - 1) if before is None else _tokens(before, now) - 1,
            refilled=now,
            live=not advert.leaving,
        )
        clone = None if before is None else _inherit(entry, before)
        self._counter += 1
        entry.changed = self._counter
        self._entries[advert.peer_id] = entry
        if advert.leaving:
            self._forget_gone(now)
            return Offer(Outcome.LEFT, advert.peer_id, advert=advert, clone=clone)
        self._live += 1
        self._next_expiry = min(self._next_expiry, entry.expires)
        self._groups.update(entry.groups)
        self._sources[source] += 1
        outcome = Outcome.REFRESHED if was_live else Outcome.NEW
        return Offer(outcome, advert.peer_id, advert=advert, clone=clone)

    # --- inside: ending ---

    def _drop_expired(self, now: float) -> None:
        """End the rows whose time is over."""
        self._next_expiry = math.inf
        for entry in self._entries.values():
            if entry.live and now < entry.expires:
                self._next_expiry = min(self._next_expiry, entry.expires)
            elif entry.live:
                self._uncount(entry)
                entry.live = False
                self._gone[entry.signed.advert.peer_id] = None
                entry.signed = _bare(entry.signed.advert)
        self._forget_gone(now)

    def _forget_gone(self, now: float) -> None:
        gone = [peer_id for peer_id, entry in self._entries.items() if not entry.live]
        too_many = len(gone) - self._limits.gone
        for number, peer_id in enumerate(gone):
            if number < too_many or now >= self._entries[peer_id].forget_at:
                del self._entries[peer_id]

    def _uncount(self, entry: _Entry) -> None:
        self._live -= 1
        for group in entry.groups:
            _decrease(self._groups, group)
        _decrease(self._sources, entry.source)

    def _blame(self, from_peer: str) -> None:
        if not from_peer:
            return
        count = self._blamed.pop(from_peer, 0)  # and to the end: the oldest goes first
        if len(self._blamed) >= MAX_BLAMED:
            del self._blamed[next(iter(self._blamed))]
        self._blamed[from_peer] = count + 1

    def _others(self) -> list[Row]:
        return [row for row in self.rows() if row.advert.peer_id != self._own_peer_id]

    def _row(self, entry: _Entry) -> Row:
        signed = entry.signed
        pinned = signed.advert.peer_id in self._pinned
        return Row(signed.advert, signed.data, entry.issued, entry.expires, entry.source, pinned)


def _bare(advert: Advert) -> SignedAdvert:
    """What is needed of an advert once its row has gone: who, which, and when."""
    kept = Advert(
        advert.swarm_id, advert.peer_id, advert.instance, advert.seq, advert.issued_at, advert.lifetime
    )
    return SignedAdvert(kept, b"")


def _issued(advert: Advert, now: float, age: float | None) -> float:
    """When it was issued by our clock: as told, or by its dates, but no further off these than CLOCK_SKEW."""
    elapsed = now - advert.issued_at
    if age is None:
        # by its dates; if these say it is over, its clock may be behind
        age = elapsed if elapsed < advert.lifetime else max(0.0, advert.lifetime - PROBATION)
    return now - min(max(age, elapsed - CLOCK_SKEW, 0.0), max(elapsed + CLOCK_SKEW, 0.0))


def _tokens(entry: _Entry, now: float) -> float:
    passed = max(0.0, now - entry.refilled)
    return min(float(ADVERT_BURST), entry.tokens + passed * ADVERTS_PER_SECOND)


def _inherit(entry: _Entry, before: _Entry) -> Clone | None:
    """Carry over what is known of an identity; a clone if this advert is the first to show one."""
    advert, previous = entry.signed.advert, before.signed.advert
    entry.former, entry.clone = before.former, before.clone
    if advert.instance == previous.instance:
        return None
    returned = advert.instance in entry.former
    entry.former.pop(advert.instance, None)
    entry.former[previous.instance] = _places(previous)
    while len(entry.former) > FORMER_INSTANCES:
        del entry.former[next(iter(entry.former))]
    if not returned or entry.clone is not None:
        return None
    entry.clone = Clone(advert.peer_id, False, (_places(advert), _places(previous)))
    return entry.clone


def _places(advert: Advert) -> str:
    return ", ".join((advert.addresses + advert.control)[:PLACES_SHOWN]) or "no address"


def _groups(advert: Advert) -> tuple[str, ...]:
    """The subnets it counts in: of its public addresses, or the one for those that have none."""
    groups = {subnet_of(host) for host in advert.hosts()} - {""}
    return tuple(sorted(groups)) or (LOCAL_GROUP,)


def _decrease(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
