"""The Noise handshake of libp2p, without I/O: who is at the other end, and two keys.

Sources: libp2p specs, `noise/README.md`; the Noise protocol framework, revision 34. The pattern is
XX with 25519, ChaChaPoly and SHA-256, an empty prologue, and three messages:

    -> e
    <- e, ee, s, es, payload
    -> s, se, payload

1. A payload holds the identity's public key and its signature over the sender's static Noise key, so
   whoever completes the handshake holds that identity. Only Ed25519 identities are accepted.
2. A dialer refuses any peer id but the one it asked for before it sends its own identity.
3. After the handshake each direction has its own key and counts its messages as nonces.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from routing.errors import PeerError
from routing.identity import Identity, PeerId, decode_public_key, encode_public_key, peer_id_of
from routing.libp2p.protobuf import as_bytes, bytes_field, read_fields

_PROTOCOL_NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"  # 32 bytes, so it is the first hash as it stands
_SIGNATURE_PREFIX = b"noise-libp2p-static-key:"
_KEY_BYTES = 32
TAG_BYTES = 16
# A Noise message, its tag included; its length travels in two bytes.
MAX_MESSAGE_BYTES = 65535
MAX_PLAINTEXT_BYTES = MAX_MESSAGE_BYTES - TAG_BYTES
# An Ed25519 payload has 104 bytes and js-libp2p adds its muxers; an RSA-4096 one has under 1,200.
MAX_HANDSHAKE_BYTES = 4096


class NoiseError(PeerError):
    """The handshake failed or a message is not authentic; the connection is of no use."""


class WrongIdentity(NoiseError):
    """Somebody answered, but not the peer that was asked for."""


class Cipher:
    """One direction after the handshake."""

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._counter = 0

    def encrypt(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        return self._aead.encrypt(self._nonce(), plaintext, associated)

    def decrypt(self, ciphertext: bytes, associated: bytes = b"") -> bytes:
        try:
            return self._aead.decrypt(self._nonce(), ciphertext, associated)
        except InvalidTag:
            raise NoiseError("the peer sent a message that is not authentic") from None

    def _nonce(self) -> bytes:
        nonce = bytes(4) + self._counter.to_bytes(8, "little")
        self._counter += 1
        return nonce


class Handshake:
    """One side of a handshake. The dialer: write, read, write; the listener: read, write, read.

    Attributes:
        peer_id: who is at the other end, once its payload has been read; else None.
        finished: all three messages have passed, `ciphers` may be called.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        expected: PeerId | None,
        initiator: bool,
        static: X25519PrivateKey,
        ephemeral: X25519PrivateKey,
    ) -> None:
        self._identity = identity
        self._expected = expected
        self._initiator = initiator
        self._static, self._ephemeral = static, ephemeral
        self._remote_static: X25519PublicKey | None = None
        self._remote_ephemeral: X25519PublicKey | None = None
        self._chaining = self._hash = _PROTOCOL_NAME
        self._cipher: Cipher | None = None
        self._step = 0
        self.peer_id: PeerId | None = None
        self._mix_hash(b"")  # the prologue

    @property
    def finished(self) -> bool:
        return self._step == 3

    def write(self) -> bytes:
        """The next message to send."""
        step, self._step = self._step, self._step + 1
        if step == 0:
            return self._write_ephemeral() + self._seal(b"")
        if step == 1:
            out = self._write_ephemeral()
            self._mix_key(self._ephemeral, self._remote_ephemeral)
            out += self._seal(self._static.public_key().public_bytes_raw())
            self._mix_key(self._static, self._remote_ephemeral)
            return out + self._seal(self._payload())
        out = self._seal(self._static.public_key().public_bytes_raw())
        self._mix_key(self._static, self._remote_ephemeral)
        return out + self._seal(self._payload())

    def read(self, message: bytes) -> None:
        """Take the peer's next message.

        Raises:
            WrongIdentity: the payload proves another peer id than the one asked for.
            NoiseError: anything else that is not as it must be.
        """
        step, self._step = self._step, self._step + 1
        if step == 0:
            self._open(self._read_ephemeral(message))
            return
        if step == 1:
            message = self._read_ephemeral(message)
            self._mix_key(self._ephemeral, self._remote_ephemeral)
            message = self._read_static(message)
            self._mix_key(self._ephemeral, self._remote_static)
        else:
            message = self._read_static(message)
            self._mix_key(self._ephemeral, self._remote_static)
        self._check_payload(self._open(message))

    def ciphers(self) -> tuple[Cipher, Cipher]:
        """(what we send, what we receive)."""
        first, second = _hkdf(self._chaining, b"")
        return (Cipher(first), Cipher(second)) if self._initiator else (Cipher(second), Cipher(first))

    def _write_ephemeral(self) -> bytes:
        public = self._ephemeral.public_key().public_bytes_raw()
        self._mix_hash(public)
        return public

    def _read_ephemeral(self, message: bytes) -> bytes:
        if len(message) < _KEY_BYTES:
            raise NoiseError(f"a handshake message of {len(message)} bytes is too short")
        self._mix_hash(message[:_KEY_BYTES])
        self._remote_ephemeral = X25519PublicKey.from_public_bytes(message[:_KEY_BYTES])
        return message[_KEY_BYTES:]

    def _read_static(self, message: bytes) -> bytes:
        size = _KEY_BYTES + TAG_BYTES
        if len(message) < size:
            raise NoiseError("a handshake message is too short")
        self._remote_static = X25519PublicKey.from_public_bytes(self._open(message[:size]))
        return message[size:]

    def _payload(self) -> bytes:
        signed = _SIGNATURE_PREFIX + self._static.public_key().public_bytes_raw()
        return bytes_field(1, encode_public_key(self._identity.public_key)) + bytes_field(
            2, self._identity.private_key.sign(signed)
        )

    def _check_payload(self, payload: bytes) -> None:
        key = signature = b""
        try:
            for number, value in read_fields(payload):
                if number == 1:
                    key = as_bytes(value)
                elif number == 2:
                    signature = as_bytes(value)
            public = decode_public_key(key)
        except ValueError as error:
            raise NoiseError(f"the peer's handshake names no usable identity: {error}") from None
        assert self._remote_static is not None
        try:
            public.verify(signature, _SIGNATURE_PREFIX + self._remote_static.public_bytes_raw())
        except InvalidSignature:
            raise NoiseError("the peer's identity did not sign its handshake key") from None
        peer_id = peer_id_of(public)
        if self._expected is not None and peer_id != self._expected:
            raise WrongIdentity(f"asked for {self._expected}, {peer_id} answered", peer=peer_id)
        self.peer_id = peer_id

    def _mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def _mix_key(self, private: X25519PrivateKey, public: X25519PublicKey | None) -> None:
        assert public is not None
        try:
            shared = private.exchange(public)
        except ValueError:  # a point of small order: the secret would be zero
            raise NoiseError("the peer's handshake key is degenerate") from None
        self._chaining, key = _hkdf(self._chaining, shared)
        self._cipher = Cipher(key)

    def _seal(self, plaintext: bytes) -> bytes:
        out = plaintext if self._cipher is None else self._cipher.encrypt(plaintext, self._hash)
        self._mix_hash(out)
        return out

    def _open(self, ciphertext: bytes) -> bytes:
        out = ciphertext if self._cipher is None else self._cipher.decrypt(ciphertext, self._hash)
        self._mix_hash(ciphertext)
        return out


def _hkdf(chaining: bytes, material: bytes) -> tuple[bytes, bytes]:
    secret = hmac.digest(chaining, material, "sha256")
    first = hmac.digest(secret, b"\x01", "sha256")
    return first, hmac.digest(secret, first + b"\x02", "sha256")
