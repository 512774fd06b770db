"""Peers whose answers turned out to be false, and what of one's own work rests on them. Pure.

Whoever keeps what peers have computed (a cache of keys and values, tokens chosen after it) notes when each
was asked last. A peer that is found out has spoiled all that it had a part in since its last answer that was
run again and was right; earlier ones are believed.

Times are of `time.perf_counter`. From any thread: entries are added whole, and never changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from routing.errors import PeerError

MAX_CONVICTIONS = 64
"""Remembered, the newest: an answer that is still under way is hardly older than the last few."""


class Spoiled(PeerError):
    """An answer that rests on a peer's false ones. Asked again it is computed without that peer."""


@dataclass(frozen=True)
class Conviction:
    """A peer was found out.

    Attributes:
        since: the time of its last answer that was known to be right, if it had one.
        until: after that it may be asked again.
        reason: one line.
    """

    peer_id: str
    since: float
    until: float
    reason: str

    def spoils(self, used: Mapping[str, float]) -> bool:
        """Whether what has asked peers, last at these times, rests on its answers."""
        return self.since < used.get(self.peer_id, self.since) <= self.until

    def error(self) -> Spoiled:
        """For whoever waits for what is spoiled."""
        return Spoiled(
            f"{self.peer_id} gave false answers ({self.reason}), and this answer rests on them: "
            "ask again, it is not asked any more",
            peer=self.peer_id,
        )


class Convictions:
    """All of them.

    Attributes:
        count: goes up with each.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: deque[Conviction] = deque(maxlen=MAX_CONVICTIONS)

    def add(self, conviction: Conviction) -> None:
        """A peer was found out."""
        self._known.append(conviction)
        self.count += 1

    def pardon(self, peer_id: str, now: float) -> None:
        """A peer may be asked again from now on: what rests on what it answers then is not spoiled."""
        self._known = deque(
            (
                replace(each, until=min(each.until, now)) if each.peer_id == peer_id else each
                for each in self._known
            ),
            maxlen=MAX_CONVICTIONS,
        )

    def against(self, *used: Mapping[str, float]) -> Conviction | None:
        """The conviction that spoils what has asked peers last at these times; None if none does."""
        for each in reversed(tuple(self._known)):
            if any(each.spoils(times) for times in used):
                return each
        return None
