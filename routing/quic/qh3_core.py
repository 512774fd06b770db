"""The default engine: qh3's native packet core, with aioquic's TLS in place of its own.

qh3's TLS server can't ask for client certificates, so `qh3_bridge` puts `tls.MutualContext` where qh3's
context would be. Written against qh3 2.1.0 exactly; what is private there and used here: the bridge's
hooks, `QuicConnection._create_tls`, `_drain_core`, `_drain_tls`, `_core`, `_tls`, `_handshake_confirmed`.
"""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn, cast

from qh3 import tls as qh3_tls
from qh3.quic import events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError

from routing.identity import PeerId
from routing.quic import tls
from routing.quic.ack_wait import AckWait
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
from routing.quic.qh3_bridge import Bridge
from routing.quic.reserved import Reserved

# Payload of a DATAGRAM frame that fits every packet: after lost handshake packets qh3 falls back to datagrams
# of 1,200 bytes, and a frame that fits none stops all sending for good ("packet builder capacity exhausted").
_FILLER_BYTES = 1100
_ACK_TIMER = "ack_application"  # as qh3 calls the deadline of an acknowledgement


class EngineFailure(Exception):
    """A Rust panic in the native core."""


def _raise_as_ordinary(error: BaseException) -> NoReturn:
    """A panic derives from BaseException and would end the node: one connection's matter it is.

    Its class can't be imported, only recognised.
    """
    if type(error).__name__ == "PanicException":
        raise EngineFailure(str(error)) from None
    raise error


class Qh3Core(QuicConnection):  # type: ignore[misc]
    """`core.QuicCore` by qh3. Flow control credit is given as events are taken from the native core."""

    host_cid: bytes
    _core: Any
    _remote_addr: Any
    _tls: Any

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
            probe_datagram_size=False,
            max_data=settings.connection_window,
            max_stream_data=settings.stream_window,
            idle_timeout=settings.idle_timeout,
            connection_id_length=CONNECTION_ID_BYTES,
            initial_rtt=INITIAL_RTT,
            max_datagram_frame_size=DATAGRAM_FRAME_BYTES,
        )
        # asserted to be there for servers; never looked at, see Bridge
        configuration.certificate = configuration.private_key = True
        super().__init__(configuration=configuration, original_destination_connection_id=original_destination)
        self._listener = listener
        self._context = tls.MutualContext(
            is_client=is_client,
            certificate=settings.certificate,
            swarm=settings.swarm,
            expected_peer_id=expected_peer_id,
        )
        self._settings = settings
        self._expected_peer_id = expected_peer_id
        self._held = False
        self._pings = 0
        self._ack_wait = AckWait()
        self._reserved = Reserved()
        self._timeouts = 0
        self._ready: list[Datagram] = []  # built, not asked for yet

    # --- what the plane asks ---

    @property
    def connection_id(self) -> bytes:
        return self.host_cid

    @property
    def peer_id(self) -> PeerId | None:
        return self._context.peer_id

    @property
    def heard(self) -> bool:
        return self._core is not None and self._core.received_authenticated_packet

    @property
    def refusal(self) -> str | None:
        return self._context.refusal

    @property
    def peer_address(self) -> Address:
        if self._core is None:
            return self._remote_addr or ("", 0)
        host, port = self._core.active_path[2][:2]
        return host, port

    @property
    def rtt(self) -> float:
        smoothed = None if self._core is None else self._core.smoothed_rtt
        return INITIAL_RTT if smoothed is None else smoothed

    @property
    def latest_rtt(self) -> float:
        latest = None if self._core is None else self._core.latest_rtt
        return INITIAL_RTT if latest is None else latest

    @property
    def lost(self) -> int:
        return 0 if self._core is None else self._core.loss_total

    @property
    def congestion_window(self) -> int:
        return 0 if self._core is None else self._core.congestion_window

    # --- what the plane tells ---

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        try:
            if self._handshake_confirmed and not data[0] & 0x80:
                self._ack_wait.received(len(data), now)
                self._core.receive_datagram(data, addr, now, len(data))
                if self._reserved.may_remain:
                    self._settle(now)
                self._drain_core()
            else:
                super().receive_datagram(data, addr, now)
                self._report_handshake()
        except BaseException as error:  # noqa: BLE001  (re-raised)
            _raise_as_ordinary(error)

    def receive_segments(self, data: bytes, segment_bytes: int, addr: Address, now: float) -> None:
        if not self._handshake_confirmed:
            for start in range(0, len(data), segment_bytes):
                self.receive_datagram(data[start : start + segment_bytes], addr, now)
            return
        try:
            self._ack_wait.received(len(data), now)
            self._core.receive_gro_buffer(data, segment_bytes, addr, now)
            if self._reserved.may_remain:
                self._settle(now)
            self._drain_core()
        except BaseException as error:  # noqa: BLE001  (re-raised)
            _raise_as_ordinary(error)

    def datagrams_to_send(self, now: float) -> list[Datagram]:
        core = self._core
        if core is None or (not self._ready and self._may_wait(now)):
            return []
        self._ack_wait.sent()
        self._build(now)
        datagrams, self._ready = self._ready, []
        return datagrams

    def _build(self, now: float) -> None:
        """Have the engine build all it may send now."""
        core, ready, reserved = self._core, self._ready, self._reserved
        poll = core.poll_transmit
        try:
            if not reserved.in_doubt:
                while (transmit := poll(now)) is not None:
                    ready.append(transmit)
                return
            room = core.congestion_window - core.bytes_in_flight
            while (transmit := poll(now)) is not None:
                ready.append(transmit)
                reserved.sent(room)
                room = core.congestion_window - core.bytes_in_flight
            reserved.finished(room, core.bytes_in_flight, DATAGRAM_BYTES)
        except RuntimeError:
            # "packet builder capacity exhausted" (2.1.0). Seen when a server's flight meets the limit
            # against amplification: of a first datagram padded outside its packet, as aioquic's are,
            # qh3 counts the packet alone. What was built so far is good, the rest comes with the
            # client's next datagram.
            reserved.may_remain = reserved.in_doubt

    def _settle(self, now: float) -> None:
        """Before events are taken in doubt: have what is reserved sent, and find out whether it was all."""
        if self._would_forget() and self._core.has_events:
            self._build(now)
            if self._would_forget():
                self._pings += 1
                self._core.send_ping(self._pings)
                self._build(now)

    def _would_forget(self) -> bool:
        """Whether taking events could end a stream that has something reserved."""
        if not self._handshake_confirmed or self._core.state != "connected":
            return False  # nothing ends before, and nothing is sent after
        return self._reserved.may_remain

    def next_timer(self) -> float | None:
        timer = None if self._core is None else self._core.get_timer()
        if timer is None:
            return None
        due: float = timer[1]
        return max(due, self._ack_wait.until) if timer[0] == _ACK_TIMER else due

    def handle_timer(self, now: float) -> None:
        if self._core is not None:
            self._ack_wait.is_eager = True
            self._core.handle_timer(now)
            timeouts = self._core.pto_total
            if timeouts != self._timeouts:
                self._timeouts = timeouts
                self._reserved.timed_out()
            if self._reserved.may_remain:
                self._settle(now)
            self._drain_core()

    def open_stream(self) -> int | None:
        try:
            stream_id: int = self._core.open_stream(False)
            return stream_id
        except ValueError:  # "Bidirectional stream limit N exceeded"
            return None

    def send(self, stream_id: int, data: bytes | bytearray | memoryview, end: bool) -> None:
        self._ack_wait.is_eager = True
        self._core.send_stream(stream_id, data, end)

    def unsent(self, stream_id: int) -> int:
        unsent: int = self._core.get_send_buffer_size(stream_id)
        return unsent

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        self._ack_wait.is_eager = True
        with contextlib.suppress(ValueError, QuicConnectionError):  # it is over
            super().reset_stream(stream_id, error_code)
            self._reserved.doubt()

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        self._ack_wait.is_eager = True
        with contextlib.suppress(ValueError, QuicConnectionError):  # it is over
            super().stop_stream(stream_id, error_code)
            self._reserved.doubt()

    def ping(self) -> None:
        self._ack_wait.is_eager = True
        self._pings += 1
        self._core.send_ping(self._pings)

    def send_filler(self, count: int) -> None:
        self._ack_wait.is_eager = True
        try:
            for _ in range(count // _FILLER_BYTES):
                self._core.send_datagram(bytes(_FILLER_BYTES))
        except (ValueError, RuntimeError):
            pass  # the peer takes no datagrams

    def set_held(self, held: bool) -> None:
        self._held = held
        if not held:
            self._drain_core()

    def shut(self, code: int, reason: str) -> None:
        self._ack_wait.is_eager = True
        self.close(error_code=code, reason_phrase=reason)

    def release(self) -> None:
        self._remote_addr = self.peer_address
        self._core = None
        self._listener = cast(CoreListener, None)
        # this object knows TLS, TLS the bridge, and the bridge this object
        self._tls = self._context.alpn_cb = self._context.update_traffic_key_cb = None

    def _may_wait(self, now: float) -> bool:
        """Whether there is nothing to send but an acknowledgement, and that has time."""
        core, wait = self._core, self._ack_wait
        if not self._handshake_confirmed or not wait.is_small():
            return False
        timer = core.get_timer()
        if timer is None or timer[0] != _ACK_TIMER:
            return False
        return wait.holds(now, rtt=self.rtt, losses=core.loss_total, unsent=core.get_send_buffer_size())

    # --- qh3's hooks ---

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        # called again after a Retry or version negotiation: the handshake starts over
        self._context = tls.MutualContext(
            is_client=self._is_client,
            certificate=self._settings.certificate,
            swarm=self._settings.swarm,
            expected_peer_id=self._expected_peer_id,
        )
        bridge = Bridge(
            self._configuration,
            version=self._version,
            local_initial_source_connection_id=self.host_cid,
            remote_initial_source_connection_id=remote_source_cid,
            original_destination_connection_id=self._original_destination_connection_id,
            retry_source_connection_id=self._retry_source_connection_id,
            version_change_handler=self._set_version,
        )
        bridge.use(self._context)
        self._tls = bridge
        return bridge

    def _drain_core(self) -> None:
        core = self._core
        if self._held:
            # An untaken event is credit not given. A connection that is over needs no bound any more.
            if core.state in ("first_flight", "connected"):
                return
            self._held = False
        if self._reserved.may_remain and self._would_forget():
            return
        next_event = core.next_event
        on_stream_data = self._listener.on_stream_data
        while (event := next_event()) is not None:
            if event[0] == "stream_data":
                on_stream_data(event[1], event[2], event[3])
            else:
                self._handle_event(event)

    def _handle_event(self, event: tuple[Any, ...]) -> None:
        listener = self._listener
        match event:
            case ("crypto_data", epoch, offset, data, *_):
                self._handle_crypto(epoch, offset, data)
            case ("stream_reset", stream_id, code, *_):
                listener.on_stream_reset(stream_id, code)
            case ("stop_sending", stream_id, code, *_):
                self._reserved.doubt()
                listener.on_stop_sending(stream_id, code)
            case ("handshake_done", *_):
                self._handshake_confirmed = True
                self._core.handshake_confirmed()
            case ("connection_id_issued", connection_id, *_):
                listener.on_connection_id(connection_id)
            case ("connection_id_retired", connection_id, *_):
                listener.on_connection_id_retired(connection_id)
            case ("peer_closed", _, code, _, reason, *_):
                listener.on_closed(reason.decode("utf-8", "replace") or f"closed by the peer, code {code:#x}")
            case ("protocol_error", code, _, reason, *_):
                listener.on_closed(f"the peer broke the QUIC protocol: {reason} (code {code:#x})")
            case ("connection_terminated", code, _, reason, *_):
                text = reason.decode("utf-8", "replace")
                listener.on_closed(text or f"closed, code {code:#x}")
                listener.on_terminated()

    def _handle_crypto(self, epoch: int, offset: int, data: bytes) -> None:
        try:
            self._tls.receive_crypto(qh3_tls.Epoch(epoch), data, offset, version=self._core.version)
            self._drain_tls()
        except QuicTlsBridgeError as error:
            self._core.close(error.error_code, int(error.frame_type), error.reason_phrase.encode())
            self._listener.on_closed(self.refusal or error.reason_phrase or "TLS handshake failed")

    def _report_handshake(self) -> None:
        # qh3's own queue: only the handshake puts something there, stream data goes to the listener
        while (event := self._events.popleft() if self._events else None) is not None:
            if isinstance(event, events.HandshakeCompleted):
                self._listener.on_handshake_complete()
            elif isinstance(event, events.ConnectionTerminated):
                self._listener.on_closed(event.reason_phrase or "QUIC version negotiation failed")
                self._listener.on_terminated()
