"""Messages of peers that are under way, counted: what they may hold of our memory, and for how long.

A request that arrives and an answer that waits to be sent both stay in memory until the peer has done its
part. One `Share` for each connection and direction counts them; the `Budget` of the endpoint adds up the
shares. Whoever is refused is the newest of the one who has most, so a stranger who fills the budget pays
for it before an honest peer does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from routing.quic.limits import PROGRESS_BYTES

if TYPE_CHECKING:
    from routing.quic.stream import Stream


class Budget:
    """Bytes of one direction in all connections of an endpoint.

    Attributes:
        total: bytes held when each share was last counted.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit
        self._shares: dict[Share, int] = {}

    def note(self, share: Share, held: int) -> None:
        self.total += held - self._shares.pop(share, 0)
        if held:
            self._shares[share] = held

    def bound(self) -> None:
        """Refuse the newest of the largest share, until the total is within the limit."""
        if self.total <= self._limit:
            return
        for share in list(self._shares):  # some have been counted a while ago
            share.count()
        while self.total > self._limit:
            largest = max(self._shares, key=self._shares.__getitem__)
            largest.refuse_newest()
            largest.count()


class Share:
    """The messages under way on one connection in one direction.

    Streams this side has opened are followed, but not counted: what they carry, this side has asked for or
    chosen to send.

    Attributes:
        streams: those with a message under way, the newest last; for each when it last made progress, and
            how many bytes were missing then.
        counted: bytes held when it was counted last.
    """

    def __init__(
        self,
        budget: Budget,
        limit: int,
        *,
        held: Callable[[Stream], int],
        missing: Callable[[Stream], int],
        refuse: Callable[[Stream], None],
    ) -> None:
        """
        Args:
            limit: bytes of this connection, if they are of more than one message: whether a single one is
                too long has been decided before.
            held: bytes a stream's message holds in memory.
            missing: bytes its peer has yet to send or to take.
            refuse: gives up a stream, so that it holds nothing.
        """
        self.streams: dict[Stream, tuple[float, int]] = {}
        self.counted = 0
        self._budget = budget
        self._limit = limit
        self._held = held
        self._missing = missing
        self._refuse = refuse

    def begin(self, stream: Stream, now: float) -> None:
        """A message is under way; it may be refused at once."""
        self.streams.pop(stream, None)
        self.streams[stream] = (now, self._missing(stream))
        self.bound()

    def end(self, stream: Stream) -> None:
        """It is complete, or given up."""
        if self.streams.pop(stream, None) is not None:
            self.count()

    def clear(self) -> None:
        self.streams.clear()
        self.counted = 0
        self._budget.note(self, 0)

    def count(self) -> int:
        """Bytes held now."""
        count = self._held
        held = self.counted = sum(count(stream) for stream in self.streams if stream.inbound)
        self._budget.note(self, held)
        return held

    def bound(self) -> None:
        """Refuse the newest messages while all together hold too much here or in the endpoint."""
        while self.count() > self._limit and sum(stream.inbound for stream in self.streams) > 1:
            self.refuse_newest()
        self._budget.bound()

    def refuse_newest(self) -> None:
        for stream in reversed(self.streams):
            if stream.inbound:
                del self.streams[stream]
                self._refuse(stream)
                return

    def stalled(self, now: float, patience: float) -> list[Stream]:
        """Those whose peer has moved less than PROGRESS_BYTES in `patience` seconds. Call it each second."""
        found: list[Stream] = []
        for stream, (since, missing_then) in list(self.streams.items()):
            missing = self._missing(stream)
            if missing <= 0:
                self.end(stream)
            elif missing_then - missing >= PROGRESS_BYTES:
                self.streams[stream] = (now, missing)
            elif now - since >= patience:
                found.append(stream)
        self.count()
        return found

    def restart(self, now: float) -> None:
        """What has passed until now was not the peer's fault."""
        for stream in self.streams:
            self.streams[stream] = (now, self._missing(stream))
