"""Adverts for tests: identities that are the same on every run; a test says only what differs."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from routing.identity import Identity
from routing.wire.advert import Advert, sign_advert
from routing.wire.holdings import Slice

SWARM = bytes(range(32))
NOW = 1_800_000_000.0
MODEL = "0f" * 32


@cache
def identity(name: str | int) -> Identity:
    """The identity that belongs to a name."""
    seed = hashlib.sha256(str(name).encode()).digest()
    return Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(seed))


def advert(who: str | int = "ana", /, **fields: Any) -> Advert:
    """An advert of that identity, issued at NOW."""
    base: dict[str, Any] = {
        "swarm_id": SWARM,
        "peer_id": str(identity(who).peer_id),
        "instance": 7,
        "seq": int(fields.get("issued_at", NOW)) * 1000,
        "issued_at": int(NOW),
        "addresses": ["/ip4/192.168.1.7/udp/4001/quic-v1"],
        "slices": [Slice("experts", MODEL, "qwen3moe", experts=[(0, 47, [(0, 39), (64, 64)])])],
    }
    return Advert(**(base | fields))


def signed(who: str | int = "ana", /, **fields: Any) -> bytes:
    """The same as bytes."""
    return sign_advert(advert(who, **fields), identity(who))
