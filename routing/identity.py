"""Who a node is: an Ed25519 key in libp2p's formats, its peer id, and the file the key lives in.

Sources: libp2p specs, `peer-ids/peer-ids.md` (key protobuf, peer id as an identity multihash) and
base58btc as multibase defines it. Only Ed25519 is spoken here; it is what every libp2p
implementation makes by default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from routing.errors import LocalError
from routing.private_file import read_private, write_private

PeerId = NewType("PeerId", str)
"""A peer id as text: base58btc of an identity multihash, "12D3KooW..." for Ed25519."""

# protobuf of libp2p's PublicKey / PrivateKey: field 1 (Type) = 1 (Ed25519), field 2 (Data), length
_PUBLIC_PREFIX = b"\x08\x01\x12\x20"
_PRIVATE_PREFIX = b"\x08\x01\x12\x40"
# identity multihash (code 0x00) over the 36 bytes of the PublicKey protobuf
_MULTIHASH_PREFIX = b"\x00\x24"

_PRIVATE_FILE_BYTES = len(_PRIVATE_PREFIX) + 64
_PEER_ID_BYTES = len(_MULTIHASH_PREFIX) + len(_PUBLIC_PREFIX) + 32
# 38 bytes that begin as ours do are 52 base58 digits, and the first 8 of them are always the same.
_PEER_ID_CHARS = 52
_PEER_ID_START = "12D3KooW"

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE = {char: value for value, char in enumerate(_BASE58)}


def peer_id_of(public_key: Ed25519PublicKey) -> PeerId:
    """The peer id of an Ed25519 public key."""
    return PeerId(_base58_encode(_MULTIHASH_PREFIX + encode_public_key(public_key)))


def encode_public_key(public_key: Ed25519PublicKey) -> bytes:
    """libp2p's PublicKey protobuf of an Ed25519 key, 36 bytes."""
    return _PUBLIC_PREFIX + public_key.public_bytes_raw()


def decode_public_key(data: bytes) -> Ed25519PublicKey:
    """Read libp2p's PublicKey protobuf; anything but an Ed25519 key is a ValueError."""
    if len(data) != len(_PUBLIC_PREFIX) + 32 or not data.startswith(_PUBLIC_PREFIX):
        raise ValueError(f"not an Ed25519 public key in libp2p's format ({len(data)} bytes)")
    return Ed25519PublicKey.from_public_bytes(data[len(_PUBLIC_PREFIX) :])


def parse_peer_id(text: str) -> PeerId:
    """Check that a text is the peer id of an Ed25519 key and return it as such.

    Raises:
        LocalError: the text is something else; the message says what.
    """
    _decode_peer_id(text)
    return PeerId(text)


def public_key_of(peer_id: PeerId) -> Ed25519PublicKey:
    """The public key inside a peer id (an identity multihash carries the whole key)."""
    return decode_public_key(_decode_peer_id(peer_id)[len(_MULTIHASH_PREFIX) :])


def _decode_peer_id(text: str) -> bytes:
    shown = text if len(text) <= 80 else text[:77] + "..."
    if len(text) != _PEER_ID_CHARS and text.startswith(_PEER_ID_START):
        raise LocalError(f"peer id {shown!r} has {len(text)} characters, {_PEER_ID_CHARS} are needed")
    if len(text) > _PEER_ID_CHARS:  # before the big-integer work that a long text would cost
        raise LocalError(
            f"peer id {shown!r} is too long: an Ed25519 peer id is '{_PEER_ID_START}' and 44 characters more"
        )
    bad = next((char for char in text if char not in _BASE58_VALUE), None)
    if bad is not None:
        raise LocalError(f"peer id {shown!r} holds {bad!r}, which base58 does not use")
    data = _base58_decode(text)
    if len(data) != _PEER_ID_BYTES or not data.startswith(_MULTIHASH_PREFIX + _PUBLIC_PREFIX):
        why = (
            "one of its characters is wrong"
            if text.startswith(_PEER_ID_START)
            else f"it should begin with '{_PEER_ID_START}'"
        )
        raise LocalError(f"peer id {shown!r} is not that of an Ed25519 key: {why}")
    return data


def _base58_encode(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, rest = divmod(number, 58)
        digits.append(_BASE58[rest])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def _base58_decode(text: str) -> bytes:
    number = 0
    for char in text:
        number = number * 58 + _BASE58_VALUE[char]
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


@dataclass(frozen=True)
class Identity:
    """A node's private key and the peer id that follows from it."""

    private_key: Ed25519PrivateKey
    peer_id: PeerId

    @classmethod
    def from_private_key(cls, private_key: Ed25519PrivateKey) -> Identity:
        return cls(private_key, peer_id_of(private_key.public_key()))

    @classmethod
    def generate(cls) -> Identity:
        """A fresh identity that lives in memory only."""
        return cls.from_private_key(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a key file.

        Raises:
            LocalError: the file is missing, can't be read, is open to other users, or is not a key.
        """
        return cls.from_private_key(
            _decode_private_key(
                read_private(Path(path), "key file", _PRIVATE_FILE_BYTES, "`panal init` makes one"),
                Path(path),
            )
        )

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a key file, or make one (mode 0600, in a folder of mode 0700) where there is none.

        Two processes that start at once end up with the same key: the second keeps the first one's.

        Raises:
            LocalError: as `load`, or the file can't be written.
        """
        target = Path(path)
        if not os.path.lexists(target):
            identity = cls.generate()
            if write_private(target, _encode_private_key(identity.private_key), "key file"):
                return identity
        return cls.load(target)

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self.private_key.public_key()

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


def _encode_private_key(key: Ed25519PrivateKey) -> bytes:
    return _PRIVATE_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw()


def _decode_private_key(data: bytes, path: Path) -> Ed25519PrivateKey:
    advice = "restore it from a copy, or move it away and a new identity is made"
    if len(data) != _PRIVATE_FILE_BYTES or not data.startswith(_PRIVATE_PREFIX):
        raise LocalError(f"key file {path} is not an Ed25519 key in libp2p's format: {advice}")
    seed, public = data[len(_PRIVATE_PREFIX) :][:32], data[len(_PRIVATE_PREFIX) + 32 :]
    key = Ed25519PrivateKey.from_private_bytes(seed)
    if key.public_key().public_bytes_raw() != public:
        raise LocalError(f"key file {path} is damaged, its two halves do not belong together: {advice}")
    return key
