"""What is known of peers' answers, and how many requests may be sent twice: as star and table use it. Pure.

Put together from `routing.latency` (seconds) and `routing.trust` (faults). Everything but garbage is kept per
*path*, a peer and a route to it, and forgotten with it.
"""

from __future__ import annotations

from routing.latency import FREE_LOAD, Cost, Latencies
from routing.trust import Fault as Fault
from routing.trust import Trust

HEDGE_SHARE = 0.05
"""Hedges for each request: the tail of a healthy swarm needs less (1 answer in 100 is late), and a swarm that
is slow as a whole gets at most a twentieth more to do."""

HEDGE_BURST = 16.0
"""Hedges that may be saved up: enough for a server that dies in each layer of a short pass."""

HEDGE_RESERVE = 8.0
"""Of these, kept for answers that are still not there after three times their time: a swarm whose answers are
often a little late must not have spent everything when one of its servers hangs."""


class HedgeBudget:
    """How many requests may be sent a second time: a share of all, some of it saved up."""

    def __init__(self) -> None:
        self._left = HEDGE_BURST

    def earn(self) -> None:
        """A request was sent."""
        self._left = min(self._left + HEDGE_SHARE, HEDGE_BURST)

    def spend(self, count: int, *, urgent: bool = False) -> bool:
        """Take so many hedges, if there are so many left; the reserve only if it is urgent."""
        if self._left - count < (0.0 if urgent else HEDGE_RESERVE):
            return False
        self._left -= count
        return True

    def give_back(self, count: int) -> None:
        """They replaced a request that failed: no load was doubled."""
        self._left = min(self._left + count, HEDGE_BURST)


class Estimates:
    """`now` is seconds on any one clock that does not go back.

    Attributes:
        hedges: the budget of all calls together.
    """

    def __init__(self) -> None:
        self.hedges = HedgeBudget()
        self._latencies = Latencies()
        self._trust = Trust()

    @property
    def changes(self) -> int:
        """Goes up when somebody becomes or ceases to be doubted other than by time."""
        return self._trust.changes

    # --- what happened ---

    def answered(
        self,
        peer_id: str,
        path: str,
        now: float,
        *,
        wait: float,
        compute: float,
        rtt: float,
        nbytes: int,
        pairs: int,
        load: float,
        overrun: float = 0.0,
    ) -> None:
        """A valid answer.

        Args:
            wait: seconds from sending to the answer.
            compute: seconds that the server says it computed.
            rtt: the connection's round trip in seconds.
            nbytes: of request and answer together.
            pairs: that were computed.
            load: seconds that a call arriving now would wait, as the server says.
            overrun: seconds by which it was late.
        """
        self._latencies.answered(
            peer_id,
            path,
            now,
            wait=wait,
            compute=compute,
            rtt=rtt,
            nbytes=nbytes,
            pairs=pairs,
            overrun=overrun,
        )
        self._latencies.loaded(peer_id, path, load, now)
        self._trust.answered(peer_id, path, now)

    def late(self, peer_id: str, path: str, now: float) -> None:
        """An answer is not there when it should be; it may still come."""
        self._trust.late(peer_id, path, now)

    def beaten(
        self, peer_id: str, path: str, now: float, *, wait: float, rtt: float, nbytes: int, pairs: int,
        overrun: float,
    ) -> None:  # fmt: skip
        """Another's answer was there before this late one, `wait` seconds after it was asked for.

        Args:
            overrun: seconds by which it is late by now.
        """
        self._latencies.beaten(
            peer_id, path, now, wait=wait, rtt=rtt, nbytes=nbytes, pairs=pairs, overrun=overrun
        )

    def failed(self, peer_id: str, path: str, fault: Fault, now: float) -> None:
        """A call failed."""
        self._trust.failed(peer_id, path, fault, now)

    def overloaded(self, peer_id: str, path: str, load: float, now: float) -> None:
        """It refused, having too much to do for `load` more seconds: no fault, but others are asked first."""
        self._latencies.loaded(peer_id, path, load, now)
        self._trust.overloaded(peer_id, path, load, now)

    # --- what follows ---

    def patience(self, peer_id: str, path: str, *, rtt: float, nbytes: int, pairs: int) -> float:
        """Seconds after which an answer of this size is late."""
        return self._latencies.patience(peer_id, path, rtt=rtt, nbytes=nbytes, pairs=pairs)

    def overrun(self, peer_id: str, path: str) -> float:
        """Seconds after which half of its late answers have come; infinite if that is not known."""
        return self._latencies.overrun(peer_id, path)

    def cost(self, peer_id: str, path: str, now: float, *, rtt: float) -> Cost:
        """The answer expected of a peer: by this, replicas are compared."""
        return self._latencies.cost(peer_id, path, now, rtt=rtt)

    def doubted(self, peer_id: str, path: str, now: float) -> bool:
        """Whether others are to be asked first."""
        return self._trust.doubted(peer_id, path, now)

    def free(self, peer_id: str, path: str, now: float) -> bool:
        """Whether a hedge may go there: no queue, no garbage, no fault just now."""
        return self._latencies.load(peer_id, path, now) <= FREE_LOAD and self._trust.free(peer_id, path, now)
