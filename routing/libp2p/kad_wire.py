"""Kademlia's messages, bytes in and out.

Source: libp2p specs, `kad-dht/README.md` (`/ipfs/kad/1.0.0`, protobuf). Peers whose id is not of an
Ed25519 key and addresses other than TCP and WebSocket are left out when reading: we could not use them.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from routing.control_address import ControlAddress
from routing.identity import PeerId
from routing.libp2p.protobuf import as_bytes, as_number, bytes_field, number_field, read_fields
from routing.peer_id_bytes import peer_id_from_bytes, peer_id_to_bytes
from routing.wire.advert import MAX_ADVERT_BYTES

KAD = "/ipfs/kad/1.0.0"

# The longest request stores a record: an advert, its key twice, and a few numbers.
MAX_REQUEST_BYTES = MAX_ADVERT_BYTES + 1024
# A reply lists 20 peers and, from other implementations, any number of providers.
MAX_REPLY_BYTES = 256 << 10
# Of what a reply lists, this much is looked at.
MAX_PEERS = 64
# Addresses kept of each peer: some interfaces, both families.
MAX_PEER_ADDRESSES = 8
# Keys of go-libp2p's DHT are at most this long; ours have 34, 38 and 50 bytes.
MAX_KEY_BYTES = 128


class Kind(enum.IntEnum):
    """Message.MessageType."""

    PUT_VALUE = 0
    GET_VALUE = 1
    ADD_PROVIDER = 2
    GET_PROVIDERS = 3
    FIND_NODE = 4
    PING = 5


@dataclass(frozen=True)
class KadPeer:
    """A peer as a message lists it. Nothing of it is proven.

    Attributes:
        addresses: where it is said to listen, without /p2p.
    """

    peer_id: PeerId
    addresses: tuple[ControlAddress, ...] = ()


@dataclass(frozen=True)
class Message:
    """A request or a reply.

    Attributes:
        key: a record's key, a provider key or a peer id in binary.
        value: of the record under `key`; None if there is none.
        closer: peers nearer to the key.
        providers: peers that list themselves under the key.
    """

    kind: Kind
    key: bytes = b""
    value: bytes | None = None
    closer: tuple[KadPeer, ...] = ()
    providers: tuple[KadPeer, ...] = ()


_TYPE, _KEY, _RECORD, _CLOSER, _PROVIDERS = 1, 2, 3, 8, 9


def encode_message(message: Message) -> bytes:
    """The protobuf."""
    out = number_field(_TYPE, message.kind)
    if message.key:
        out += bytes_field(_KEY, message.key)
    if message.value is not None:
        out += bytes_field(_RECORD, bytes_field(1, message.key) + bytes_field(2, message.value))
    for number, peers in ((_CLOSER, message.closer), (_PROVIDERS, message.providers)):
        for peer in peers:
            out += bytes_field(number, _encode_peer(peer))
    return out


def decode_message(data: bytes) -> Message:
    """Read a message; ValueError if it is none."""
    kind, key, value, value_key = Kind.PUT_VALUE, b"", None, None
    peers: dict[int, list[KadPeer]] = {_CLOSER: [], _PROVIDERS: []}
    for number, field in read_fields(data):
        if number == _TYPE:
            kind = Kind(as_number(field))
        elif number == _KEY:
            key = as_bytes(field)
        elif number == _RECORD:
            value_key, value = _decode_record(as_bytes(field))
        elif number in peers and len(peers[number]) < MAX_PEERS:
            peer = _decode_peer(as_bytes(field))
            if peer is not None:
                peers[number].append(peer)
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    if value_key is not None and value_key != key:
        raise ValueError("a record under another key than the message's")
    return Message(kind, key, value, tuple(peers[_CLOSER]), tuple(peers[_PROVIDERS]))


def position_of(key: bytes) -> int:
    """Where a key, or a peer id in binary, lies in Kademlia's space of 256 bits."""
    return int.from_bytes(hashlib.sha256(key).digest(), "big")


def position_of_peer(peer_id: PeerId) -> int:
    """Where a peer lies."""
    return position_of(peer_id_to_bytes(peer_id))


def _encode_peer(peer: KadPeer) -> bytes:
    out = bytes_field(1, peer_id_to_bytes(peer.peer_id))
    for address in peer.addresses[:MAX_PEER_ADDRESSES]:
        out += bytes_field(2, address.to_bytes())
    return out


def _decode_peer(data: bytes) -> KadPeer | None:
    peer_id: PeerId | None = None
    addresses: list[ControlAddress] = []
    for number, field in read_fields(data):
        if number == 1:
            try:
                peer_id = peer_id_from_bytes(as_bytes(field))
            except ValueError:
                return None
        elif number == 2 and len(addresses) < MAX_PEER_ADDRESSES:
            try:
                addresses.append(ControlAddress.from_bytes(as_bytes(field)).with_peer(None))
            except ValueError:
                continue
    return None if peer_id is None else KadPeer(peer_id, tuple(dict.fromkeys(addresses)))


def _decode_record(data: bytes) -> tuple[bytes, bytes]:
    key = value = b""
    for number, field in read_fields(data):
        if number == 1:
            key = as_bytes(field)
        elif number == 2:
            value = as_bytes(field)
    return key, value
