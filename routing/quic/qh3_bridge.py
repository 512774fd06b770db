"""aioquic's TLS in the place of qh3's, whose server can't ask for client certificates."""

from __future__ import annotations

from typing import Any

from aioquic import tls as aioquic_tls
from aioquic.buffer import Buffer
from qh3 import tls as qh3_tls
from qh3.quic import events
from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError, QuicTlsCryptoData

from routing.quic import tls
from routing.quic.ack_wait import MAX_ACK_DELAY_MS

_EPOCHS = (aioquic_tls.Epoch.INITIAL, aioquic_tls.Epoch.HANDSHAKE, aioquic_tls.Epoch.ONE_RTT)
# Bound of one TLS flight of ours; two certificates would fit many times.
_FLIGHT_BYTES = 16384
# QUIC's CRYPTO_ERROR range (RFC 9000, section 20.1): 0x100 + TLS alert
_CRYPTO_ERROR = 0x100


class Bridge(QuicTlsBridge):  # type: ignore[misc]
    """qh3's link between packets and TLS, with a TLS engine of the plane's choice."""

    _handshake_complete: bool

    def use(self, context: tls.MutualContext) -> None:
        parameters = pull_quic_transport_parameters(Buffer(data=self.serialize_transport_parameters()))
        parameters.max_ack_delay = MAX_ACK_DELAY_MS
        buffer = Buffer(capacity=_FLIGHT_BYTES)
        push_quic_transport_parameters(buffer, parameters)
        context.handshake_extensions = [(aioquic_tls.ExtensionType.QUIC_TRANSPORT_PARAMETERS, buffer.data)]
        context.alpn_cb = self._on_alpn
        context.update_traffic_key_cb = self._on_secret
        self.tls = context

    @staticmethod
    def _validate_certificate(configuration: Any) -> None:
        """qh3 wants certificates of its own type; ours are in the context."""

    def _on_secret(self, direction: Any, epoch: Any, cipher_suite: Any, secret: bytes) -> None:
        self._on_traffic_secret(
            qh3_tls.Direction(direction.value),
            qh3_tls.Epoch(epoch.value),
            qh3_tls.CipherSuite(int(cipher_suite)),
            secret,
        )

    def _handle_tls(self, data: bytes, epoch: Any) -> None:
        buffers = {each: Buffer(capacity=_FLIGHT_BYTES) for each in _EPOCHS}
        try:
            self.tls.handle_message(bytes(data), buffers)
        except aioquic_tls.Alert as alert:
            raise QuicTlsBridgeError(_CRYPTO_ERROR + int(alert.description), str(alert)) from alert
        for out_epoch, buffer in buffers.items():
            if buffer.data:
                key = qh3_tls.Epoch(out_epoch.value)
                offset = self._output_offsets[key]
                self._outbound.append(QuicTlsCryptoData(key, offset, buffer.data))
                self._output_offsets[key] = offset + len(buffer.data)
        done = (aioquic_tls.State.CLIENT_POST_HANDSHAKE, aioquic_tls.State.SERVER_POST_HANDSHAKE)
        if not self._handshake_complete and self.tls.state in done:
            self._handshake_complete = True
            self._events.append(
                events.HandshakeCompleted(
                    alpn_protocol=self.tls.alpn_negotiated, early_data_accepted=False, session_resumed=False
                )
            )
