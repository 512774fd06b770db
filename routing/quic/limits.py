"""How much of us a peer may use. Every bound of the plane that is a matter of policy stands here."""

from __future__ import annotations

from dataclasses import dataclass

# QUIC's own bounds on what a peer may send ahead of our reading. 2 MiB a stream let one stream carry
# 25 MB/s at 80 ms; 4 MiB a connection bound a peer that ignores everything else.
STREAM_WINDOW = 2 << 20
CONNECTION_WINDOW = 4 << 20

# A writer waits while more than this of its stream is unsent, and goes on below half of it: enough
# to keep a 200 Mbit/s link with 80 ms busy, little enough to notice a slow reader early.
SEND_BACKLOG_HIGH = 1 << 20
SEND_BACKLOG_LOW = 1 << 19

# A longer message goes to the engine in pieces of this size, the next when the backlog has drained: the
# engine copies what it is given, and would hold a 200 MB answer once more for a peer that never reads.
SEND_PIECE = SEND_BACKLOG_LOW

# A stream with more than this unsent counts as a message under way (see unfinished.py). Below it, the
# 100 streams of a connection hold 6 MiB; and what fits a congestion window never counts.
SEND_NOTED = 64 << 10

# Requests that have begun to arrive on one connection: one of the largest (64 MiB) and half of another.
ARRIVING_PER_CONNECTION = 96 << 20

# The same for all connections: 64 callers with 512 rows of 4,096 floats each, on a home computer.
ARRIVING = 512 << 20

# Answers that wait to be sent on one connection: two microbatches of 512 rows with 8 experts of 4,096
# floats are 128 MiB, and callers may overlap as much again.
SENDING_PER_CONNECTION = 256 << 20

# The same for all connections.
SENDING = 512 << 20

# A message under way must move by PROGRESS_BYTES in STALL_SECONDS, or be complete: 70 kbit/s, less than any
# link that calls experts, and longer than any pause of a link that is not dead.
STALL_SECONDS = 30.0
PROGRESS_BYTES = 256 << 10

# Shorter pieces of a stream than this are laid together when they arrive: an object for each costs 50 bytes,
# so a peer that sends two bytes in each frame would make us hold 25 times what it has sent.
CHUNK_BYTES = 512

# Requests of one connection that are taken at once of what one wake-up of the socket has brought; between
# further ones CROWDED_PAUSE passes. A backbone has some layers' calls under way, so it never waits; a peer
# that floods us has a thousand looked at in a second, a fifth of a core, and others are served meanwhile.
REQUESTS_AT_ONCE = 8
CROWDED_PAUSE = 0.001

# Of a peer's reason for closing: a line for the log and the screen.
CLOSE_REASON_BYTES = 200

# Both ends PING each second: qh3's congestion window falls back after 2 s without traffic, NAT
# bindings live 30 s or more, and a peer that vanished is noticed.
PING_SECONDS = 1.0

# PINGs in a row without any packet from the peer before it counts as dead, so 4 to 5 s. Counted in
# our own PINGs, not by the clock: after a pause of this process a healthy peer must not be dropped.
MISSED_PINGS = 4

# QUIC's own idle timeout, the last resort; far longer than what MISSED_PINGS finds.
IDLE_TIMEOUT = 30.0

# The engines grant 100 streams at a time (qh3 has it fixed).
MAX_STREAMS_PER_CONNECTION = 100


@dataclass(frozen=True)
class Limits:
    """Bounds of one endpoint.

    Attributes:
        connections: inbound connections in all; each costs some 50 KB when idle.
        connections_per_ip: inbound connections from one IPv4 address or IPv6 /64; several nodes share a NAT.
        handshakes: inbound handshakes under way; each costs 3 ms of CPU, and strangers can start them.
        handshake_burst, handshakes_per_second: inbound handshakes that may begin, in all. Without it a few
            strangers who close each connection as soon as it is there keep a whole core busy.
        handshake_burst_per_ip, handshakes_per_second_per_ip: the same for one address. What is too much is
            dropped: a dialer tries again by itself.
        handshake_timeout: seconds an inbound handshake may take.
        streams_per_connection: streams a peer may have open on one connection, at most 100.
        unread_bytes: bytes of a connection received but not read before the peer gets no more credit.
            What one connection can make us hold is this plus CONNECTION_WINDOW. A message somebody is
            waiting for does not count here, but below.
        arriving_per_connection, arriving: bytes of messages that have begun to arrive on streams the peer
            opened and that somebody waits for, of a connection and in all; above it the newest is reset.
        sending_per_connection, sending: the same for messages that wait to be sent on such streams.
        stall_seconds: how long such a message may make no progress.
    """

    connections: int = 256
    connections_per_ip: int = 32
    handshakes: int = 64
    handshake_burst: int = 128
    handshakes_per_second: float = 40.0
    handshake_burst_per_ip: int = 64
    handshakes_per_second_per_ip: float = 8.0
    handshake_timeout: float = 5.0
    streams_per_connection: int = MAX_STREAMS_PER_CONNECTION
    unread_bytes: int = 4 << 20
    arriving_per_connection: int = ARRIVING_PER_CONNECTION
    arriving: int = ARRIVING
    sending_per_connection: int = SENDING_PER_CONNECTION
    sending: int = SENDING
    stall_seconds: float = STALL_SECONDS
