"""What is read of a packet before it is decrypted, and what counts as one address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.quic.admission import origin_of
from routing.quic.headers import all_short_headers_to, destination_of, may_open_connection

INITIAL = b"\xc3\0\0\0\x01\x08" + b"original" + bytes(1200)


def test_destinations() -> None:
    assert destination_of(b"\x40" + b"12345678" + b"rest") == b"12345678"
    assert destination_of(INITIAL) == b"original"
    assert destination_of(b"\x01" + bytes(30)) is None  # a hole-punch probe
    assert destination_of(b"\x40" + bytes(7)) is None


@pytest.mark.parametrize(
    ("data", "opens"),
    [
        (INITIAL, True),
        (INITIAL[:1199], False),
        (b"\xe3" + INITIAL[1:], False),  # Handshake
        (b"\x43" + INITIAL[1:], False),  # short header
        (INITIAL[:1] + b"\xff\0\0\x1d" + INITIAL[5:], False),  # draft 29
        (INITIAL[:5] + b"\x07" + INITIAL[6:], False),
        (INITIAL[:5] + b"\x15" + INITIAL[6:], False),
    ],
)
def test_what_may_open_a_connection(data: bytes, opens: bool) -> None:
    assert may_open_connection(data, destination_of(data) or b"") is opens


@given(st.binary(max_size=1300))
def test_any_bytes_have_a_destination_or_none(data: bytes) -> None:
    destination = destination_of(data)
    assert destination is None or may_open_connection(data, destination) in (True, False)


@given(
    ids=st.lists(st.sampled_from([b"12345678", b"12345679", b"x2345678"]), min_size=2, max_size=44),
    segment=st.integers(9, 1452),
    tail=st.integers(1, 1452),
    long_header=st.integers(0, 60),
)
def test_the_column_check_agrees_with_a_loop(
    ids: list[bytes], segment: int, tail: int, long_header: int
) -> None:
    segments = [
        ((b"\xc0" if number == long_header else b"\x5a") + each).ljust(segment, b"\x07")
        for number, each in enumerate(ids)
    ]
    segments[-1] = segments[-1][:tail]
    data = b"".join(segments)
    expected = all(each[:1] < b"\x80" and each[1:9] == ids[0] for each in segments)
    assert all_short_headers_to(ids[0], data, segment) is expected


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_what_counts_as_one_address(host: str, origin: str) -> None:
    assert origin_of(host) == origin
