"""Who was found out, for how long it is not asked, and how that is forgiven. Pure.

1. A strike is a false answer that was proved. Each puts a peer into quarantine, twice as long as the one
   before: it is not asked for anything, not even when nobody else is left.
2. Time without a strike, counted from the end of the last quarantine, takes one strike back.
3. Suspicion is no strike: of two that differ one is wrong, and nobody knows which. It has others asked about
   the peer sooner (market.audit), and it ends when the peer is cleared.

`now` is unix time: strikes outlast the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

FIRST_QUARANTINE = 600.0
LAST_QUARANTINE = 7 * 86_400.0
"""Seconds. A bit that flipped in honest memory costs ten minutes; who goes on lying is asked about once a
week."""

FORGIVE_AFTER = 7 * 86_400.0
"""Seconds without a strike that take one back: as long as the longest quarantine, so that nobody gains by
waiting one out and lying again."""

MAX_STRIKES = 16
"""Doublings that matter are fewer; a strike more or less of these is forgiven one by one."""

MAX_REMEMBERED = 4_096
"""Peers with strikes, as many as adverts are kept of (routing.adverts). Those whose quarantine ended first
are forgotten first."""


@dataclass(frozen=True)
class Strikes:
    """What stands against a peer.

    Attributes:
        count: strikes that are not forgiven.
        until: unix time up to which it is not asked.
        at: when the last strike was, or the last one was forgiven.
    """

    count: int
    until: float
    at: float

    def holds(self, now: float) -> bool:
        """Whether it is not to be asked. What ends later than any quarantine does is of a clock that was
        ahead: nobody is kept out for years by that."""
        return 0 < self.until - now <= LAST_QUARANTINE


class Quarantine:
    """All that stands against peers.

    Args:
        known: from an earlier run, by peer.
    """

    def __init__(self, known: Iterable[tuple[str, Strikes]] = ()) -> None:
        self._strikes = dict(known)

    def strike(self, peer_id: str, now: float) -> Strikes:
        """A false answer was proved; what stands against the peer from now on.

        Answers from before the quarantine that come to light during it count as one with the first.
        """
        known = self.of(peer_id, now)
        if known is not None and known.holds(now):
            return known
        count = min((known.count if known is not None else 0) + 1, MAX_STRIKES)
        seconds = min(FIRST_QUARANTINE * 2.0 ** (count - 1), LAST_QUARANTINE)
        self._strikes[peer_id] = Strikes(count, now + seconds, now)
        if len(self._strikes) > MAX_REMEMBERED:
            del self._strikes[min(self._strikes, key=lambda each: self._strikes[each].until)]
        return self._strikes[peer_id]

    def pardon(self, peer_id: str, now: float) -> Strikes | None:
        """The owner forgives a peer all that stands against it: it may be asked from now on.

        Returns:
            What that was; None: nothing stood against it.
        """
        known = self.of(peer_id, now)
        self._strikes.pop(peer_id, None)
        return known

    def of(self, peer_id: str, now: float) -> Strikes | None:
        """What stands against a peer; None: nothing, or nothing any more."""
        known = self._strikes.get(peer_id)
        if known is None:
            return None
        forgiven = int(max(0.0, now - known.until) / FORGIVE_AFTER)
        if forgiven >= known.count:
            return None
        return replace(known, count=known.count - forgiven) if forgiven else known

    def holds(self, peer_id: str, now: float) -> bool:
        """Whether it is not to be asked."""
        known = self._strikes.get(peer_id)
        return known is not None and known.holds(now)

    def barred(self, now: float) -> dict[str, float]:
        """Everybody who is not to be asked, with the unix time at which that ends."""
        return {peer: known.until for peer, known in self._strikes.items() if known.holds(now)}

    def all(self, now: float) -> dict[str, Strikes]:
        """Everybody against whom something stands."""
        found = {peer: self.of(peer, now) for peer in self._strikes}
        return {peer: known for peer, known in found.items() if known is not None}
