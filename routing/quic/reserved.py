"""When events may be taken from qh3, so that it forgets no stream for which it has still to send. Pure.

qh3 2.1.0 reserves what several streams have to send, builds one datagram of what fits, and keeps the rest
reserved while the congestion window is full. It forgets a stream when the event that ends it is taken. If
something of that stream is reserved then, the datagram with it fails: "reserved stream is missing". All that
was in it is lost unrecorded, bytes and credit of other streams too: to go on would let them stall.

A stream that is over has something reserved only if it was sent twice (after a timeout qh3 copies packets
that may be on their way yet; one is acknowledged while the other waits), or if it was reset or stopped and
that waits to be sent. In such doubt, which lasts until nothing is in flight, events are taken only when
nothing is reserved. Two things show that:

1. qh3 has no more to send though its window has room.
2. It sends a datagram though its window is full: an acknowledgement or a PING, which else had to wait for
   what is reserved.
"""

from __future__ import annotations

PROBES = 2
"""Datagrams that qh3 sends at a timeout, full window or not, with anything in them."""

LEAST_DATAGRAM_BYTES = 1200
"""Room without which qh3 takes its window for full, whatever it has found the path to carry."""


class Reserved:
    """What one connection knows of it.

    Attributes:
        in_doubt: a stream may end while something of it is reserved.
        may_remain: so it is, and something may be reserved now.
    """

    def __init__(self) -> None:
        self.in_doubt = False
        self.may_remain = False
        self._probes = 0

    def timed_out(self) -> None:
        self._probes += PROBES
        self.doubt()

    def doubt(self) -> None:
        """A timeout has come, or a stream is reset or stopped by either side."""
        self.in_doubt = self.may_remain = True

    def sent(self, room: int) -> None:
        """A datagram was built, in doubt.

        Args:
            room: bytes that the congestion window had left before.
        """
        if self._probes:
            self._probes -= 1
            self.may_remain = True
        else:
            self.may_remain = room >= LEAST_DATAGRAM_BYTES

    def finished(self, room: int, in_flight: int, datagram_bytes: int) -> None:
        """There was nothing more to build, in doubt.

        Args:
            room: bytes that the congestion window has left.
            in_flight: bytes.
            datagram_bytes: the largest datagram.
        """
        if room >= datagram_bytes:
            self.may_remain = False
            self._probes = 0
            self.in_doubt = in_flight > 0
