"""Adverts as records of the DHT: under which keys they lie, and which of them a server may keep.

1. A record's key follows from the advert alone, so that a server checks adverts of swarms it has never
   heard of: `/panal/` and base64url, without padding, of SHA-256 over "panal-record-1\\0", swarm id, peer id.
2. A provider key, for "who has adverts of this swarm" or "... of this model in it", is a SHA-256 multihash
   over "panal-provider-1\\0", swarm id, and the model id or nothing. Who is listed there is a hint: any peer
   may list itself. What it says of itself, it signs.
3. Of two adverts under one key the one with the higher sequence number is kept.

Pure: `now` is unix time in seconds.
"""

from __future__ import annotations

import base64
import hashlib

from routing.errors import PeerError
from routing.wire.advert import CLOCK_SKEW, SignedAdvert, decode_advert

NAMESPACE = b"/panal/"
_RECORD_DOMAIN = b"panal-record-1\0"
_PROVIDER_DOMAIN = b"panal-provider-1\0"
# multihash: code 0x12 (sha2-256), 32 bytes follow
_SHA256_MULTIHASH = b"\x12\x20"
PROVIDER_KEY_BYTES = 34
# py-libp2p answers FIND_NODE for keys of at most 50 bytes, js- and go-libp2p for any; hence base64.
RECORD_KEY_BYTES = 50


class RecordRefused(PeerError):
    """A record that is none of ours, or lies under the wrong key."""


def record_key(swarm_id: bytes, peer_id: str) -> bytes:
    """The key of a node's advert in a swarm, RECORD_KEY_BYTES of text."""
    digest = hashlib.sha256(_RECORD_DOMAIN + swarm_id + peer_id.encode()).digest()
    return NAMESPACE + base64.urlsafe_b64encode(digest).rstrip(b"=")


def provider_key(swarm_id: bytes, model_id: str | None) -> bytes:
    """The key under which nodes of a swarm list themselves; with a model id, those that serve it."""
    return (
        _SHA256_MULTIHASH + hashlib.sha256(_PROVIDER_DOMAIN + swarm_id + (model_id or "").encode()).digest()
    )


def check_record(key: bytes, value: bytes, *, now: float) -> SignedAdvert:
    """The advert in a record.

    Raises:
        RecordRefused: another namespace, or the key is not the one that follows from the advert.
        AdvertError: the advert is malformed, wrongly signed, expired or from the future.
    """
    if not key.startswith(NAMESPACE):
        raise RecordRefused("a record of another namespace than /panal")
    unproven = decode_advert(value)
    advert = unproven.advert
    if record_key(advert.swarm_id, advert.peer_id) != key:
        raise RecordRefused(f"the advert of {advert.peer_id} lies under another key", peer=advert.peer_id)
    unproven.check(swarm_id=advert.swarm_id, now=now)
    return unproven.prove()


def record_ends(record: SignedAdvert, now: float) -> float:
    """Unix time after which a server need not keep it: as its dates say, but no later than if issued now."""
    advert = record.advert
    return min(advert.issued_at, now) + advert.lifetime + CLOCK_SKEW
