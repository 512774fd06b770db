"""Peer ids in binary, as libp2p's messages carry them: the identity multihash of an Ed25519 key.

Source: libp2p specs, `peer-ids/peer-ids.md`.
"""

from __future__ import annotations

from routing.identity import PeerId, decode_public_key, encode_public_key, peer_id_of, public_key_of

# code 0x00 (identity), length 36: the PublicKey protobuf follows whole
_MULTIHASH_PREFIX = b"\x00\x24"


def peer_id_to_bytes(peer_id: PeerId) -> bytes:
    """38 bytes; the text is checked first, LocalError if it is no peer id."""
    return _MULTIHASH_PREFIX + encode_public_key(public_key_of(peer_id))


def peer_id_from_bytes(data: bytes) -> PeerId:
    """Read a peer id; ValueError for other kinds of keys, which panal does not speak to."""
    if not data.startswith(_MULTIHASH_PREFIX):
        raise ValueError("a peer id that is not that of an Ed25519 key")
    return peer_id_of(decode_public_key(data[len(_MULTIHASH_PREFIX) :]))
