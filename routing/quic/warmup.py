"""After the handshake each side fills its congestion window once, so that the first large call is fast.

A new connection may have some 14 KB in flight: a 12 KB call takes one round trip, one of 200 KB five. The
window grows by what the peer acknowledges, so each side sends about 240 KB that mean nothing, spread over
eight round trips: QUIC DATAGRAM frames (RFC 9221) full of zeros, which need no stream and no credit, are
not repeated when lost, and which a peer throws away. A peer that takes no datagrams is left alone. From
then on a PING each second (limits.PING_SECONDS) keeps the window.
"""

from __future__ import annotations

import trio

from routing.quic.connection import Connection

# What a 200 KB answer takes up in flight, headers included, and a little more.
ENOUGH_WINDOW = 220_000

# Of the window, each round trip: the other half is free for calls that come meanwhile. It still grows by
# half a round trip; a third would take twice as many.
_SHARE = 0.5
# A little more than a round trip, so that the acknowledgements have arrived.
_PACE = 1.15
# On loopback and in a LAN: windows are full again within milliseconds, and nobody needs it faster.
_SHORTEST_STEP = 0.01
# Of the 7 steps a path without loss takes; with loss the window shrinks again, and it is left at that.
_STEPS = 12


async def fill_window(connection: Connection) -> None:
    """Grow a new connection's congestion window to ENOUGH_WINDOW, or until it has been tried enough."""
    for _ in range(_STEPS):
        with trio.move_on_after(max(connection.rtt * _PACE, _SHORTEST_STEP)):
            await connection.closed.wait()
        window = connection.congestion_window
        if not connection.is_open or window >= ENOUGH_WINDOW:
            return
        connection.send_filler(int(window * _SHARE))
