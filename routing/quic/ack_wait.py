"""When an acknowledgement may wait for words of ours to go with it. Pure.

Alone it costs both ends a wake-up, in a call just while the answers of other servers come in or a request is
computed. qh3 by itself waits for 1 ms, and not at all after two packets.
"""

from __future__ import annotations

ACK_SHARE = 0.25
"""Of a round trip that an acknowledgement may wait: in a LAN no longer than the engine waits by itself."""

ACK_SECONDS = 0.008
"""At most: most calls are answered, and most answers followed by the next layer's call, within this."""

ACK_BYTES = 12_000
"""A peer that has sent more than this since it last heard of us may be waiting for that to go on: less than
the first window of a connection."""

MAX_ACK_DELAY_MS = 12
"""What a peer is told that we wait at most (RFC 9000's max_ack_delay), and adds to its timeout for a lost
last packet, where the usual 25 would be most of a round trip. What is beyond ACK_SECONDS is for our own
pauses."""


class AckWait:
    """What one connection knows of it.

    Attributes:
        is_eager: there is something to send besides acknowledgements.
        until: when the acknowledgement that waits goes in any case.
    """

    def __init__(self) -> None:
        self.is_eager = True
        self.until = 0.0
        self._unheard = 0  # bytes received since something was sent
        self._since = 0.0
        self._losses = 0

    def received(self, count: int, now: float) -> None:
        """Bytes of the peer."""
        if not self._unheard:
            self._since = now
        self._unheard += count

    def sent(self) -> None:
        """All that there was has been sent, acknowledgements too."""
        self.is_eager = False
        self._unheard = 0

    def is_small(self) -> bool:
        """Whether so little is to be acknowledged, and nothing else to be sent, that this may wait."""
        return not self.is_eager and self._unheard <= ACK_BYTES

    def holds(self, now: float, *, rtt: float, losses: int, unsent: int) -> bool:
        """Whether it waits on.

        Args:
            rtt: the smoothed round trip.
            losses: packets of ours ever lost.
            unsent: bytes that wait for the peer's permission, which may just have come.
        """
        before, self._losses = self._losses, losses
        if losses != before or unsent:
            return False
        self.until = self._since + min(rtt * ACK_SHARE, ACK_SECONDS)
        return now < self.until
