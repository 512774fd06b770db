"""The second engine: aioquic, pure Python, with a congestion window that does not fall below a floor.

Slower than qh3 (about 1 ms of CPU for 12 KB), but on lossy paths the floor keeps an answer of 100 KB at
one round trip where qh3 needs two or three. Written against aioquic 1.7.2 exactly; what is private there
and used here: `QuicConnection._initialize`, `_write_stream_limits`, `_loss`, `_streams`, `_streams_queue`,
`_state`, `_local_max_data`, `_remote_max_streams_bidi`, `_network_paths`, `_close_at`, `_close_event`, and
Reno.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import (
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
    QuicConnectionState,
)
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.rangeset import RangeSet

from routing.identity import PeerId
from routing.quic import tls
from routing.quic.core import (
    CONNECTION_ID_BYTES,
    DATAGRAM_BYTES,
    DATAGRAM_FRAME_BYTES,
    INITIAL_RTT,
    Address,
    CoreListener,
    CoreSettings,
    Datagram,
)

# 256 KB in flight whatever is lost: 26 Mbit/s at 80 ms, which home uplinks carry, and one round trip
# for the answers experts give.
WINDOW_FLOOR = 256 << 10
# CUBIC's back-off (RFC 9438) instead of Reno's half, for the same reason.
_BACK_OFF = 0.7
_FLOOR_CONTROL = "panal-floor"

# Streams of ours the peer must allow before we open another; aioquic itself would queue silently.
_ID_STEP = 4

# aioquic logs at levels down to debug on the hot path; only its errors are of interest.
logging.getLogger("quic").setLevel(logging.ERROR)


class _FloorControl(RenoCongestionControl):  # type: ignore[misc]
    """Reno that starts at WINDOW_FLOOR and never goes below it."""

    _congestion_recovery_start_time: float

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.congestion_window = WINDOW_FLOOR
        self.lost = 0

    def on_packets_lost(self, *, now: float, packets: Any) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            self.lost += 1
            # one reduction for all the losses of one round trip
            if packet.sent_time > self._congestion_recovery_start_time:
                self._congestion_recovery_start_time = now
                self.congestion_window = max(int(self.congestion_window * _BACK_OFF), WINDOW_FLOOR)
                self.ssthresh = self.congestion_window

    def on_persistent_congestion(self) -> None:
        self.congestion_window = WINDOW_FLOOR

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Reno leaves slow start when the RTT grows; jitter on home links would end it at once."""


def _never(now: float) -> float | None:
    return None


register_congestion_control(_FLOOR_CONTROL, _FloorControl)


class _SlidingLimit(Limit):  # type: ignore[misc]
    """The connection's MAX_DATA: what has arrived plus one window, unless held.

    aioquic reads `value` to check the peer and to see whether there is news for it, and would double
    it each time half of it is used; its writing is ignored.
    """

    def __init__(self, window: int, held: Callable[[], bool]) -> None:
        self._window = window
        self._held = held
        self._granted = window
        super().__init__(QuicFrameType.MAX_DATA, "max_data", window)

    @property
    def value(self) -> int:
        limit = self.used + self._window
        if limit - self._granted >= self._window // 2 and not self._held():
            self._granted = limit
        return self._granted

    @value.setter
    def value(self, _: int) -> None:
        """See the class."""


class AioquicCore(QuicConnection):  # type: ignore[misc]
    """`core.QuicCore` by aioquic. Flow control credit slides with what arrives, unless held."""

    tls: Any

    def __init__(
        self,
        settings: CoreSettings,
        listener: CoreListener,
        original_destination: bytes | None,
        expected_peer_id: PeerId | None,
    ) -> None:
        is_client = original_destination is None
        configuration = QuicConfiguration(
            is_client=is_client,
            alpn_protocols=[tls.ALPN],
            max_datagram_size=DATAGRAM_BYTES,
            max_data=settings.connection_window,
            max_stream_data=settings.stream_window,
            idle_timeout=settings.idle_timeout,
            connection_id_length=CONNECTION_ID_BYTES,
            congestion_control_algorithm=_FLOOR_CONTROL,
            initial_rtt=INITIAL_RTT,
            max_datagram_frame_size=DATAGRAM_FRAME_BYTES,
            certificate=settings.certificate.certificate,
            private_key=settings.certificate.private_key,
        )
        self._listener = listener
        self._settings = settings
        self._expected_peer_id = expected_peer_id
        self._context = tls.MutualContext(
            is_client=is_client,
            certificate=settings.certificate,
            swarm=settings.swarm,
            expected_peer_id=expected_peer_id,
        )
        self._held = False
        self._pings = 0
        self._told_closed = False
        super().__init__(
            configuration=configuration,
            **({} if is_client else {"original_destination_connection_id": original_destination}),
        )
        self._local_max_data = _SlidingLimit(settings.connection_window, lambda: self._held)
        # Pacing wakes the timer task for every datagram or two; bursts of one window are what the
        # floor promises, and kernel and network queue them.
        self._loss._pacer.next_send_time = _never

    # --- what the plane asks ---

    @property
    def connection_id(self) -> bytes:
        return self.host_cid  # type: ignore[no-any-return]

    @property
    def peer_id(self) -> PeerId | None:
        return self._context.peer_id

    @property
    def heard(self) -> bool:
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def refusal(self) -> str | None:
        return self._context.refusal

    @property
    def peer_address(self) -> Address:
        address = self.get_peer_address()
        return ("", 0) if address is None else (address[0], address[1])

    @property
    def rtt(self) -> float:
        return self._loss._rtt_smoothed or INITIAL_RTT

    @property
    def latest_rtt(self) -> float:
        return self._loss._rtt_latest or INITIAL_RTT

    @property
    def lost(self) -> int:
        return self._loss._cc.lost  # type: ignore[no-any-return]

    @property
    def congestion_window(self) -> int:
        return self._loss.congestion_window  # type: ignore[no-any-return]

    # --- what the plane tells ---

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        super().receive_datagram(data, addr, now)
        self._report()

    def receive_segments(self, data: bytes, segment_bytes: int, addr: Address, now: float) -> None:
        receive = super().receive_datagram
        for start in range(0, len(data), segment_bytes):
            receive(data[start : start + segment_bytes], addr, now)
        self._report()

    def datagrams_to_send(self, now: float) -> list[Datagram]:
        return super().datagrams_to_send(now) if self._network_paths else []

    def next_timer(self) -> float | None:
        return None if self._close_at is None else self.get_timer()

    def handle_timer(self, now: float) -> None:
        if self._close_at is not None:
            super().handle_timer(now)
            self._report()

    def open_stream(self) -> int | None:
        stream_id: int = self.get_next_available_stream_id()
        if stream_id // _ID_STEP >= self._remote_max_streams_bidi:
            return None
        self.send_stream_data(stream_id, b"")  # takes the id; nothing goes out before there are bytes
        return stream_id

    def send(self, stream_id: int, data: bytes | bytearray | memoryview, end: bool) -> None:
        self.send_stream_data(stream_id, bytes(data), end)

    def unsent(self, stream_id: int) -> int:
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.sender._buffer_stop - stream.sender.next_offset

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        super().reset_stream(stream_id, error_code)
        self._drop_unsent(stream_id)

    def _drop_unsent(self, stream_id: int) -> None:
        """Of a stream that was reset; aioquic would keep it until the peer acknowledges, if ever."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.sender._reset_error_code is not None:
            stream.sender._buffer.clear()
            stream.sender._pending = RangeSet()

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        if stream_id in self._streams:  # else it is over
            super().stop_stream(stream_id, error_code)

    def ping(self) -> None:
        self._pings += 1
        self.send_ping(self._pings)

    def send_filler(self, count: int) -> None:
        """Never needed: the window begins at WINDOW_FLOOR."""

    def set_held(self, held: bool) -> None:
        self._held = held

    def shut(self, code: int, reason: str) -> None:
        self.close(error_code=code, reason_phrase=reason)
        self._told_closed = True

    def release(self) -> None:
        self._listener = cast(CoreListener, None)
        self._streams.clear()
        self._streams_queue.clear()
        for space in self._loss.spaces:  # a packet in flight knows the stream it carried
            space.sent_packets.clear()

    # --- aioquic's hooks ---

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        # the same context aioquic has just set up, but with mutual, libp2p's way of authentication
        context = tls.MutualContext(
            is_client=self._is_client,
            certificate=self._settings.certificate,
            swarm=self._settings.swarm,
            expected_peer_id=self._expected_peer_id,
        )
        context.handshake_extensions = self.tls.handshake_extensions
        context.alpn_cb = self.tls.alpn_cb
        context.update_traffic_key_cb = self.tls.update_traffic_key_cb
        self.tls = self._context = context

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        # aioquic would double the window each time half of it is used: no bound at all
        window = self._settings.stream_window
        limit = stream.receiver.highest_offset + window
        # local one-way streams have no such limit, aioquic marks them with 0
        told = stream.max_stream_data_local
        if told and not self._held and limit - told >= window // 2:
            stream.max_stream_data_local = limit
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            frame = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            frame.push_uint_var(stream.stream_id)
            frame.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local

    # --- reports ---

    def _report(self) -> None:
        listener = self._listener
        queue = self._events
        while queue:
            event = queue.popleft()
            match event:
                case events.StreamDataReceived():
                    listener.on_stream_data(event.stream_id, event.data, event.end_stream)
                case events.StreamReset():
                    listener.on_stream_reset(event.stream_id, event.error_code)
                case events.StopSendingReceived():
                    self._drop_unsent(event.stream_id)
                    listener.on_stop_sending(event.stream_id, event.error_code)
                case events.HandshakeCompleted():
                    listener.on_handshake_complete()
                case events.ConnectionIdIssued():
                    listener.on_connection_id(event.connection_id)
                case events.ConnectionIdRetired():
                    listener.on_connection_id_retired(event.connection_id)
                case events.ConnectionTerminated():
                    listener.on_closed(self._why(event))
                    listener.on_terminated()
        if self._close_event is not None and not self._told_closed:
            self._told_closed = True
            listener.on_closed(self._why(self._close_event))

    def _why(self, event: Any) -> str:
        return self.refusal or event.reason_phrase or f"closed, code {event.error_code:#x}"
