"""Circuit relay messages: golden bytes, fields in any order, refusals and bounds."""

from __future__ import annotations

import pytest

from relay.hop_wire import (
    MAX_ADDRS,
    HopMessage,
    HopType,
    Limit,
    ReservationInfo,
    Status,
    StopMessage,
    StopType,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
    status_name,
)
from routing.errors import LocalError
from routing.identity import PeerId, decode_public_key, peer_id_of
from routing.libp2p.delimited import MalformedMessage

KEY = bytes(range(32))
# a public key of 32 bytes need not be a point for its id to be one; decode_public_key takes any
PEER = peer_id_of(decode_public_key(b"\x08\x01\x12\x20" + KEY))
PEER_BYTES = b"\x00\x24\x08\x01\x12\x20" + KEY

RESERVE = b"\x08\x00"
# type 1; peer (40 bytes): id (38 bytes)
CONNECT = b"\x08\x01\x12\x28\x0a\x26" + PEER_BYTES
# type 2; reservation (11 bytes): expire 2e9, one address of 3 bytes; limit: 120 s, 131072 bytes; status 100
RESERVED = (
    b"\x08\x02\x1a\x0b\x08\x80\xa8\xd6\xb9\x07\x12\x03abc" + b"\x22\x06\x08\x78\x10\x80\x80\x08\x28\x64"
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (RESERVE, HopMessage(HopType.RESERVE)),
        (CONNECT, HopMessage(HopType.CONNECT, peer=PEER)),
        (
            RESERVED,
            HopMessage(
                HopType.STATUS,
                reservation=ReservationInfo(2_000_000_000, (b"abc",)),
                limit=Limit(120, 131072),
                status=Status.OK,
            ),
        ),
        (b"\x08\x02\x28\xcc\x01", HopMessage(HopType.STATUS, status=Status.NO_RESERVATION)),
    ],
)
def test_golden_hop_messages(body: bytes, message: HopMessage) -> None:
    assert encode_hop(message) == body
    assert decode_hop(body) == message


def test_golden_stop_messages() -> None:
    connect = StopMessage(StopType.CONNECT, peer=PEER, limit=Limit(120, 0))
    body = b"\x08\x00\x12\x28\x0a\x26" + PEER_BYTES + b"\x1a\x04\x08\x78\x10\x00"
    assert encode_stop(connect) == body
    assert decode_stop(body) == connect
    assert encode_stop(StopMessage(StopType.STATUS, status=Status.OK)) == b"\x08\x01\x20\x64"


def test_what_later_versions_add_is_skipped_and_order_does_not_matter() -> None:
    # field 6 bytes, field 7 fixed32, field 8 fixed64, field 9 varint, then status, then type
    body = b"\x32\x02zz" + b"\x3d1234" + b"\x4112345678" + b"\x48\x05" + b"\x28\xc9\x01" + b"\x08\x02"
    assert decode_hop(body) == HopMessage(HopType.STATUS, status=Status.RESOURCE_LIMIT_EXCEEDED)


def test_the_last_of_a_repeated_field_counts() -> None:
    assert decode_hop(b"\x08\x00\x08\x02\x28\x01\x28\x64").status == Status.OK


def test_an_unknown_status_is_kept() -> None:
    message = decode_hop(b"\x08\x02\x28\xe7\x07")
    assert message.status == 999
    assert status_name(message.status) == "status 999"
    assert status_name(204) == "NO_RESERVATION"
    assert status_name(None) == "no status"


def test_addresses_proposed_for_a_target_are_skipped() -> None:
    peer = b"\x0a\x26" + PEER_BYTES + b"\x12\x03abc"
    assert decode_hop(b"\x08\x01\x12" + bytes([len(peer)]) + peer) == HopMessage(HopType.CONNECT, peer=PEER)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "without a type"),
        (b"\x28\x64", "without a type"),
        (b"\x08\x03", "unknown type 3"),
        (b"\x08", "cut off"),
        (b"\x08" + b"\xff" * 10, "64 bits"),
        (b"\x08\x01\x12\x7f", "field of 127 bytes"),
        (b"\x08\x01\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "field of 18446744073709551615 bytes"),
        (b"\x08\x02\x3d123", "cut off"),
        (b"\x08\x01\x13", "wire type 3"),
        (b"\x0a\x01a", "a number is expected"),
        (b"\x08\x01\x10\x07", "bytes are expected"),
        (b"\x08\x01\x12\x00", "without an id"),
        (b"\x08\x01\x12\x05\x0a\x03abc", "not that of an Ed25519 key"),
        (b"\x08\x01\x12\x04\x0a\x02\x00\x24", "not that of an Ed25519 key"),
        (b"\x08\x02\x1a\x42" + b"\x12\x00" * 33, "33 addresses"),
    ],
)
def test_malformed_bodies(body: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        decode_hop(body)


def test_as_many_addresses_as_allowed_pass() -> None:
    reservation = decode_hop(b"\x08\x02\x1a\x40" + b"\x12\x00" * MAX_ADDRS).reservation
    assert reservation is not None and len(reservation.addrs) == MAX_ADDRS


def test_a_message_that_would_be_too_long_is_not_sent() -> None:
    info = ReservationInfo(1, tuple(b"x" * 500 for _ in range(9)))
    with pytest.raises(LocalError, match="4096"):
        encode_hop(HopMessage(HopType.STATUS, reservation=info))


def test_only_ed25519_ids_are_sent() -> None:
    with pytest.raises(LocalError, match="12D3KooW"):
        encode_hop(HopMessage(HopType.CONNECT, peer=PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")))
