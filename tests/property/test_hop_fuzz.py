"""Circuit relay messages under any bytes: a message or MalformedMessage, and what is written is read."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from relay.hop_wire import (
    HopMessage,
    HopType,
    Limit,
    ReservationInfo,
    StopMessage,
    StopType,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
)
from routing.identity import decode_public_key, peer_id_of
from routing.libp2p.delimited import MalformedMessage

peers = st.binary(min_size=32, max_size=32).map(
    lambda key: peer_id_of(decode_public_key(b"\x08\x01\x12\x20" + key))
)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
limits = st.builds(Limit, u32, u64)
infos = st.builds(
    ReservationInfo,
    u64,
    st.lists(st.binary(max_size=60), max_size=32).map(tuple),
    st.binary(max_size=300),
)
hops = st.builds(
    HopMessage,
    st.sampled_from(HopType),
    st.none() | peers,
    st.none() | infos,
    st.none() | limits,
    st.none() | u32,
)
stops = st.builds(
    StopMessage, st.sampled_from(StopType), st.none() | peers, st.none() | limits, st.none() | u32
)


@given(body=st.binary(max_size=200))
def test_any_bytes_give_a_message_or_an_error(body: bytes) -> None:
    for decode in (decode_hop, decode_stop):
        with contextlib.suppress(MalformedMessage):
            decode(body)


@given(message=hops)
def test_hop_round_trip(message: HopMessage) -> None:
    assert decode_hop(encode_hop(message)) == message


@given(message=stops)
def test_stop_round_trip(message: StopMessage) -> None:
    assert decode_stop(encode_stop(message)) == message


@given(message=hops, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_never_crashes(message: HopMessage, at: int, flip: int) -> None:
    body = bytearray(encode_hop(message))
    body[at % len(body)] ^= flip
    with contextlib.suppress(MalformedMessage):
        decode_hop(bytes(body))
