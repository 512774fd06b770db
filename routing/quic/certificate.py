"""libp2p's TLS certificates: a throw-away key, vouched for by the node's identity key.

Source: libp2p specs, `tls/tls.md`. The certificate is self-signed by a fresh P-256 key; an extension
(OID 1.3.6.1.4.1.53594.1.1) holds the identity's public key and its signature over the fresh one.
Whoever completes a TLS handshake with the certificate therefore holds the fresh key, and the
identity has said that this key is its own.

A second extension, panal's own, holds the node's proof of membership (`routing.membership`). It is not
critical: libp2p nodes of other programs pass over it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from routing.identity import Identity, PeerId, decode_public_key, encode_public_key, peer_id_of
from routing.membership import CERTIFICATE_BYTES, SWARM_ID_BYTES, Membership, proof

EXTENSION_OID = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNATURE_PREFIX = b"libp2p-tls-handshake:"

# Made from the GUID 98a983a2-6545-4b93-8199-06b5a3796d20 under Microsoft's arc for that purpose. The shorter
# 2.25.UUID is one number of 128 bits, at which Go's X.509 parser refuses the whole certificate.
MEMBERSHIP_OID = x509.ObjectIdentifier(
    "1.2.840.113556.1.8000.2554.39081.33698.25925.19347.33177.439715.7957792"
)

# The certificate is made anew at each start and only lives in memory: long enough for any uptime,
# begun in the past because peers' clocks differ.
_VALID_BEFORE = datetime.timedelta(days=1)
_VALID_AFTER = datetime.timedelta(days=3650)

# An Ed25519 key and signature take 108 bytes, an RSA-4096 one of another implementation about 1100.
_MAX_EXTENSION_BYTES = 4096

# A DER header of three bytes and the longest proof; what claims more is not read.
_MAX_MEMBERSHIP_BYTES = 3 + SWARM_ID_BYTES + CERTIFICATE_BYTES

_DER_SEQUENCE = 0x30
_DER_OCTET_STRING = 0x04


class BadCertificate(Exception):
    """The peer's certificate proves no identity; `str()` says why."""


@dataclass(frozen=True)
class NodeCertificate:
    """A certificate and its private key, ready for TLS."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey


def make_certificate(
    identity: Identity, now: datetime.datetime, membership: Membership | None = None
) -> NodeCertificate:
    """A fresh certificate for an identity.

    Args:
        now: aware datetime.
        membership: shown to peers; None shows none, as a libp2p node of another program would.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    statement = _SIGNATURE_PREFIX + _subject_key_info(key.public_key())
    extension = _der(
        _DER_SEQUENCE,
        _der(_DER_OCTET_STRING, encode_public_key(identity.public_key))
        + _der(_DER_OCTET_STRING, identity.private_key.sign(statement)),
    )
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "libp2p")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_AFTER)
        .add_extension(x509.UnrecognizedExtension(EXTENSION_OID, extension), critical=False)
    )
    if membership is not None:
        shown = x509.UnrecognizedExtension(MEMBERSHIP_OID, _der(_DER_OCTET_STRING, proof(membership)))
        builder = builder.add_extension(shown, critical=False)
    return NodeCertificate(builder.sign(key, hashes.SHA256()), key)


def verify_certificate(
    certificate: x509.Certificate, chain: Sequence[x509.Certificate], now: datetime.datetime
) -> PeerId:
    """Whose certificate is this? TLS has already checked that the peer holds its private key.

    Args:
        certificate: the peer's own certificate.
        chain: further certificates it sent; libp2p allows none.
        now: aware datetime.

    Raises:
        BadCertificate: it proves no identity.
    """
    if chain:
        raise BadCertificate(f"certificate chain of {len(chain) + 1}, libp2p allows exactly one certificate")
    try:
        return _verify(certificate, now)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise BadCertificate(f"malformed certificate: {_one_line(error)}") from None


def membership_shown(certificate: x509.Certificate) -> bytes | None:
    """The proof of membership in a certificate that `verify_certificate` has accepted; None without one.

    Raises:
        BadCertificate: the extension holds something else.
    """
    try:
        value = certificate.extensions.get_extension_for_oid(MEMBERSHIP_OID).value
    except x509.ExtensionNotFound:
        return None
    assert isinstance(value, x509.UnrecognizedExtension)
    if len(value.value) > _MAX_MEMBERSHIP_BYTES:
        raise BadCertificate(f"membership extension of {len(value.value)} bytes")
    try:
        shown, rest = _read_der(value.value, _DER_OCTET_STRING)
    except ValueError as error:
        raise BadCertificate(f"malformed membership extension: {error}") from None
    if rest:
        raise BadCertificate("bytes after the membership extension's end")
    return shown


def _verify(certificate: x509.Certificate, now: datetime.datetime) -> PeerId:
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise BadCertificate(
            f"certificate valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}, expired or a clock is wrong"
        )
    try:
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature:
        raise BadCertificate("certificate is not signed by its own key") from None
    for extension in certificate.extensions:
        unknown = isinstance(extension.value, x509.UnrecognizedExtension)
        if extension.critical and unknown and extension.oid != EXTENSION_OID:
            raise BadCertificate(f"unknown critical extension {extension.oid.dotted_string}")
    try:
        value = certificate.extensions.get_extension_for_oid(EXTENSION_OID).value
    except x509.ExtensionNotFound:
        raise BadCertificate("certificate carries no libp2p identity") from None
    assert isinstance(value, x509.UnrecognizedExtension)
    try:
        encoded_key, signature = _read_extension(value.value)
    except ValueError as error:
        raise BadCertificate(f"malformed libp2p extension: {error}") from None
    identity_key = decode_public_key(encoded_key)
    try:
        identity_key.verify(signature, _SIGNATURE_PREFIX + _subject_key_info(certificate.public_key()))
    except InvalidSignature:
        raise BadCertificate("forged identity: the libp2p key did not sign this certificate's key") from None
    return peer_id_of(identity_key)


def _subject_key_info(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]


def _read_extension(data: bytes) -> tuple[bytes, bytes]:
    """SEQUENCE { publicKey OCTET STRING, signature OCTET STRING }, nothing before, between or after."""
    if len(data) > _MAX_EXTENSION_BYTES:
        raise ValueError(f"{len(data)} bytes long")
    body, rest = _read_der(data, _DER_SEQUENCE)
    encoded_key, signature_part = _read_der(body, _DER_OCTET_STRING)
    signature, tail = _read_der(signature_part, _DER_OCTET_STRING)
    if rest or tail:
        raise ValueError("bytes after its end")
    return encoded_key, signature


def _read_der(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """One DER element of the given tag: its content, and what follows it."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("not the expected DER structure")
    size, start = data[1], 2
    if size & 0x80:
        digits = size & 0x7F
        # two length bytes say up to 65,535, more than the extension may be
        if not 1 <= digits <= 2 or len(data) < 2 + digits:
            raise ValueError("a bad DER length")
        size, start = int.from_bytes(data[2 : 2 + digits], "big"), 2 + digits
    if len(data) - start < size:
        raise ValueError("cut short")
    return data[start : start + size], data[start + size :]


def _der(tag: int, content: bytes) -> bytes:
    assert len(content) < 256
    size = bytes([len(content)]) if len(content) < 0x80 else bytes([0x81, len(content)])
    return bytes([tag]) + size + content


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
