"""TLS 1.3 for libp2p's QUIC: aioquic's engine, mutual, with identity and membership checked inside the
handshake.

Both QUIC backends use it. The check runs when the peer's CertificateVerify arrives, before either
side has keys for application data from the other: a wrong peer, or one that is not of our swarm, neither
gets nor gives one byte.
"""

from __future__ import annotations

import datetime
import ssl
from typing import Any, NoReturn

from aioquic import tls

from routing.identity import PeerId
from routing.membership import Swarm, check_proof
from routing.quic.certificate import (
    BadCertificate,
    NodeCertificate,
    membership_shown,
    verify_certificate,
)

ALPN = "libp2p"

OTHER_PEER = "answered instead of"
"""In a refusal because of who the peer is; all others are about its certificate or its membership."""

# AES-128-GCM first: the fastest with AES instructions, and everybody speaks it.
CIPHER_SUITES = [
    tls.CipherSuite.AES_128_GCM_SHA256,
    tls.CipherSuite.AES_256_GCM_SHA384,
    tls.CipherSuite.CHACHA20_POLY1305_SHA256,
]

# A TLS message may claim 16 MB and would be gathered until it is whole; certificates take 1 KB.
MAX_HANDSHAKE_BYTES = 65536


class AlertCertificateRequired(tls.Alert):  # type: ignore[misc]
    """RFC 8446, section 4.4.2.4: the client sent an empty certificate list."""

    description = tls.AlertDescription.certificate_required


class AlertAccessDenied(tls.Alert):  # type: ignore[misc]
    """RFC 8446, section 6.2: the certificate is valid, but its holder may not come in."""

    description = tls.AlertDescription.access_denied


class MutualContext(tls.Context):  # type: ignore[misc]
    """One connection's TLS state.

    Attributes:
        peer_id: who the peer has proven to be, None before it has.
        refusal: why its identity or membership was refused, None if it wasn't; one line for an error text.
    """

    def __init__(
        self, *, is_client: bool, certificate: NodeCertificate, swarm: Swarm, expected_peer_id: PeerId | None
    ) -> None:
        super().__init__(
            is_client=is_client,
            alpn_protocols=[ALPN],
            cipher_suites=CIPHER_SUITES,
            # no authority signs these certificates, `_check_certificate_verify_signature` checks them
            verify_mode=ssl.CERT_NONE,
        )
        self.certificate = certificate.certificate
        self.certificate_private_key = certificate.private_key
        self._request_client_certificate = not is_client
        self._swarm = swarm
        self._expected_peer_id = expected_peer_id
        self.peer_id: PeerId | None = None
        self.refusal: str | None = None

    def handle_message(self, input_data: bytes, output_buf: Any) -> None:
        if len(self._receive_buffer) + len(input_data) > MAX_HANDSHAKE_BYTES:
            raise tls.AlertDecodeError("TLS handshake message too long")
        super().handle_message(input_data, output_buf)

    def _check_certificate_verify_signature(self, verify: Any) -> None:
        super()._check_certificate_verify_signature(verify)
        now = datetime.datetime.now(datetime.UTC)
        try:
            peer_id = verify_certificate(self._peer_certificate, self._peer_certificate_chain, now)
            shown = membership_shown(self._peer_certificate)
        except BadCertificate as error:
            self._refuse(tls.AlertBadCertificate, str(error))
        if self._expected_peer_id is not None and peer_id != self._expected_peer_id:
            self._refuse(tls.AlertBadCertificate, f"{peer_id} {OTHER_PEER} {self._expected_peer_id}")
        objection = check_proof(self._swarm, shown, peer_id, now.timestamp())
        if objection:
            self._refuse(AlertAccessDenied, f"{peer_id} {objection}")
        self.peer_id = peer_id

    def _server_handle_certificate(self, input_buf: Any) -> None:
        super()._server_handle_certificate(input_buf)
        if self._peer_certificate is None:
            self.refusal = "the client sent no certificate"
            raise AlertCertificateRequired(self.refusal)

    def _refuse(self, alert: type[tls.Alert], reason: str) -> NoReturn:
        self.refusal = reason
        raise alert(reason)
