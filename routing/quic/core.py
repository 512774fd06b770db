"""What a QUIC engine must do for the plane, and what it tells the plane: no sockets, no clock.

Two engines stand behind `QuicCore`: `qh3_core` and `aioquic_core`. The plane calls `receive_*` and
`handle_timer`, which report to the `CoreListener` at once, and then asks for `datagrams_to_send` and
`next_timer`. A listener may queue things to send, but never feed or flush the engine that reports to it.

Times are seconds on one monotonic clock of the caller's choice; addresses are (host, port).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from routing.errors import LocalError
from routing.identity import PeerId
from routing.membership import OPEN_SWARM, Swarm
from routing.quic.certificate import NodeCertificate

Address = tuple[str, int]
Datagram = tuple[Any, ...]
"""Payload (bytes), address, and whatever else the engine adds: its own tuple, not copied on the hot path."""
Backend = Literal["qh3", "aioquic"]
BACKENDS: tuple[Backend, ...] = ("qh3", "aioquic")

CONNECTION_ID_BYTES = 8

# UDP payload. 1452 + 28 bytes of headers pass PPPoE (1492); at 1200 a 12 KB message outgrows the
# initial window of 10 datagrams and costs a second round trip.
DATAGRAM_BYTES = 1452

# RFC 9221: DATAGRAM frames of up to this size are taken, and thrown away; warmup.py says what for.
DATAGRAM_FRAME_BYTES = 65535

# Before the first measurement. RFC 9002 says 0.333; a lost first datagram then costs a second.
INITIAL_RTT = 0.1


@dataclass(frozen=True)
class CoreSettings:
    """What the plane wants of an engine, for every connection of a node.

    Attributes:
        certificate: the node's.
        stream_window: bytes a peer may send on one stream beyond what was read.
        connection_window: the same for all streams of a connection together.
        idle_timeout: seconds without any packet after which QUIC itself gives up.
        swarm: whose members are let in.
    """

    certificate: NodeCertificate
    stream_window: int
    connection_window: int
    idle_timeout: float
    swarm: Swarm = OPEN_SWARM


class CoreListener(Protocol):
    """Told by the engine what happened, in order, while it handles a datagram or a timer."""

    def on_handshake_complete(self) -> None:
        """Keys and the peer's identity are established."""

    def on_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        """Next bytes of a stream in order; `end`: the peer will send no more on it."""

    def on_stream_reset(self, stream_id: int, code: int) -> None:
        """The peer gave up sending on a stream."""

    def on_stop_sending(self, stream_id: int, code: int) -> None:
        """The peer will not read what we send on a stream; the engine has reset our side."""

    def on_connection_id(self, connection_id: bytes) -> None:
        """Datagrams to this connection id are ours from now on."""

    def on_connection_id_retired(self, connection_id: bytes) -> None:
        """The peer no longer uses this connection id."""

    def on_closed(self, reason: str) -> None:
        """The connection is over, whoever ended it; may be told more than once."""

    def on_terminated(self) -> None:
        """The closing period has passed too: the connection can be forgotten."""


class QuicCore(Protocol):
    """One connection's engine."""

    @property
    def connection_id(self) -> bytes:
        """The first connection id of our own, CONNECTION_ID_BYTES long."""

    @property
    def peer_id(self) -> PeerId | None:
        """Who the peer has proven to be."""

    @property
    def heard(self) -> bool:
        """Whether any packet of the peer could be decrypted."""

    @property
    def refusal(self) -> str | None:
        """Why we refused the peer's identity or membership, if we did."""

    @property
    def peer_address(self) -> Address:
        """Where datagrams go; changes when the peer's port does."""

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time in seconds."""

    @property
    def latest_rtt(self) -> float:
        """The round trip that was measured last, in seconds."""

    @property
    def lost(self) -> int:
        """Packets of ours that were taken for lost, since the beginning."""

    @property
    def congestion_window(self) -> int:
        """Bytes that may be in flight."""

    def connect(self, addr: Address, now: float) -> None:
        """Begin the handshake (clients)."""

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        """Take one datagram."""

    def receive_segments(self, data: bytes, segment_bytes: int, addr: Address, now: float) -> None:
        """Take several datagrams of this connection laid end to end, all but the last of equal size."""

    def datagrams_to_send(self, now: float) -> list[Datagram]:
        """What must go out now."""

    def next_timer(self) -> float | None:
        """When to call `handle_timer`."""

    def handle_timer(self, now: float) -> None:
        """A timer has come."""

    def open_stream(self) -> int | None:
        """A new stream's id, None if the peer allows no more now; it hears of it with the first byte."""

    def send(self, stream_id: int, data: bytes | bytearray | memoryview, end: bool) -> None:
        """Queue a copy of the bytes; `end`: nothing follows."""

    def unsent(self, stream_id: int) -> int:
        """Bytes of a stream that have not been sent for the first time yet."""

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        """Give up sending on a stream; no effect if it is over."""

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        """Tell the peer that we will not read a stream; no effect if it is over."""

    def ping(self) -> None:
        """Queue a PING: the peer must answer it."""

    def send_filler(self, count: int) -> None:
        """Queue about `count` bytes that the peer acknowledges and throws away, if it takes such."""

    def set_held(self, held: bool) -> None:
        """While held, the peer gets no further credit to send; letting go may report what was kept."""

    def shut(self, code: int, reason: str) -> None:
        """Queue a CONNECTION_CLOSE; the listener is not told."""

    def release(self) -> None:
        """Drop all buffers and the way back to the listener: nothing is asked or told any more."""


class CoreFactory(Protocol):
    """Makes an engine for one connection."""

    def __call__(
        self,
        settings: CoreSettings,
        listener: CoreListener,
        original_destination: bytes | None,
        expected_peer_id: PeerId | None,
    ) -> QuicCore:
        """
        Args:
            original_destination: the connection id a client's first datagram was sent to; None dials.
            expected_peer_id: the only identity to accept, or None for any.
        """


def load_backend(backend: str) -> CoreFactory:
    """The engine of a name; imports it, which takes some 60 ms.

    Raises:
        LocalError: the backend is not known here or not installed.
    """
    try:
        if backend == "qh3":
            from routing.quic.qh3_core import Qh3Core

            return Qh3Core
        if backend == "aioquic":
            from routing.quic.aioquic_core import AioquicCore

            return AioquicCore
    except ImportError as error:
        raise LocalError(f"QUIC backend {backend!r} can't be loaded: {error}; reinstall panal") from None
    raise LocalError(f"QUIC backend {backend!r} is unknown: use one of {', '.join(BACKENDS)}")
