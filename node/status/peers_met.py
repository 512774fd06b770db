"""Which peers this node has met, and who of them is there now. Pure.

1. *Online* is who is connected. *Offline* is who was connected and is not, or does not answer although it is
   wanted. *Heard* is who is neither, and whose advert lives.
2. An advert outlives its node by minutes; so who was lost counts as offline until it connects again or an
   advert comes that was issued afterwards.
3. Who is offline is remembered for KEEP_SECONDS, MAX_OFFLINE at most, those lost last: peers make identities
   at no cost. Wanted peers are remembered as long as they are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["online", "heard", "offline"]

KEEP_SECONDS = 900.0
"""A peer that restarts, or whose lid was closed over a meal, keeps its place in the list."""

MAX_OFFLINE = 256
"""Peers that were connected and are not."""

LOST_SLACK = 2.0
"""Seconds by which the age of an advert may be told wrong on its way."""

SEEN_STEP = 10.0
"""`last_seen` of those who are online moves in such steps, or it would change of all of them all the time."""


@dataclass(slots=True)
class Met:
    """A peer that is or was connected.

    Attributes:
        since: connected since; None: it is not.
        lost_at: when it was lost; None while it is connected.
        last_seen: when it was connected last.
        reason: why it was lost.
        address, name, version: as last known, for when it is gone.
    """

    since: float | None
    lost_at: float | None
    last_seen: float
    reason: str = ""
    address: str = ""
    name: str = ""
    version: str = ""


class PeersMet:
    """All of them. `now` is unix time."""

    def __init__(self) -> None:
        self._met: dict[str, Met] = {}  # those lost last at the end

    def get(self, peer_id: str) -> Met | None:
        return self._met.get(peer_id)

    def ids(self) -> list[str]:
        """Everybody who is remembered."""
        return list(self._met)

    def observe(self, now: float, since: Mapping[str, float], reason_of: Callable[[str], str]) -> None:
        """Once a second: who is connected.

        Args:
            since: by peer that is connected now: since when.
            reason_of: why a peer that was connected is not any more.
        """
        for peer_id, begun in since.items():
            met = self._met.get(peer_id)
            if met is None:
                self._met[peer_id] = Met(begun, None, now)
            elif met.since is None:
                met.since, met.lost_at, met.reason, met.last_seen = begun, None, "", now
            else:
                met.last_seen = now
        for peer_id, met in list(self._met.items()):
            if met.since is not None and peer_id not in since:
                met.since, met.lost_at, met.reason = None, now, reason_of(peer_id)
                self._met[peer_id] = self._met.pop(peer_id)
        offline = [(each, met.lost_at) for each, met in self._met.items() if met.lost_at is not None]
        for number, (peer_id, lost_at) in enumerate(reversed(offline)):
            if number >= MAX_OFFLINE or now - lost_at > KEEP_SECONDS:
                del self._met[peer_id]

    def state(self, peer_id: str, issued: float | None, wanted_reason: str) -> tuple[State, str]:
        """A peer's state, and why it is offline ("" otherwise).

        Args:
            issued: when its advert was issued, by our clock; None without a live advert.
            wanted_reason: why it does not answer although it is wanted; "" if it is not wanted, or has not
                been tried yet.
        """
        met = self._met.get(peer_id)
        if met is not None and met.since is not None:
            return "online", ""
        if wanted_reason:
            return "offline", wanted_reason
        lost_at = None if met is None else met.lost_at
        if issued is None or (lost_at is not None and issued <= lost_at + LOST_SLACK):
            return "offline", "" if met is None else met.reason
        return "heard", ""

    def last_seen(self, peer_id: str, issued: float | None) -> float | None:
        """When it was last heard of; None: never."""
        met = self._met.get(peer_id)
        if met is None:
            return issued
        if met.since is not None:
            return max(met.last_seen // SEEN_STEP * SEEN_STEP, met.since)
        return max(met.last_seen, issued or 0.0)
