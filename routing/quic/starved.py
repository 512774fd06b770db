"""When a connection is given up because its peer's engine has lost count of its streams. Pure.

qh3 2.1.0 takes a FIN that goes alone (nothing was left to send on its stream) for an empty range of bytes,
and leaves off there if the bytes before it are not acknowledged yet: a lost one is not sent again, one
acknowledged before those bytes is not noted. The stream is never forgotten then, and who opened it never gets
the credit for another. At a loss of 2 % it took 1,300 exchanges in memory, 6,500 over sockets, to use up the
100 streams of a connection.

So an end is best sent with the last bytes (`Stream.send_message(..., end=True)`), or after an answer, which
acknowledges them. What is left of it, and the peers that do otherwise, are the matter of this.
"""

from __future__ import annotations

STARVED_SECONDS = 10.0
"""How long no stream can be opened though few are open. Credit comes back a round trip after a stream is
over; a peer that is paused for longer is taken for dead."""

FEW_STREAMS = 50
"""Of the 100 that a peer allows at once. With more of ours open, they may be why it allows no further one."""


class Starved:
    """What one connection knows of it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def opened(self) -> None:
        """There was credit."""
        self._since = None

    def refused(self, ours: int, now: float) -> bool:
        """There was none; whether the connection is to be given up.

        Args:
            ours: streams that this side has opened and that are not over.
            now: seconds.
        """
        if ours > FEW_STREAMS:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= STARVED_SECONDS
