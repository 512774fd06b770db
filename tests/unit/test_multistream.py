"""multistream-select: golden bytes, every split of them, refusals and bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.wire.multistream import (
    MAX_ATTEMPTS,
    MAX_LINE_BYTES,
    Dialer,
    Listener,
    NegotiationError,
    ProtocolRefused,
    encode_line,
)

# as the multistream-select document shows them: varint length, text, newline
HEADER_LINE = b"\x13/multistream/1.0.0\n"
PING_LINE = b"\x11/ipfs/ping/1.0.0\n"
NA_LINE = b"\x03na\n"


def answer_to(listener: Listener, data: bytes) -> bytes:
    listener.receive_data(data)
    return listener.data_to_send()


def test_golden_bytes() -> None:
    assert Dialer("/ipfs/ping/1.0.0").opening() == HEADER_LINE + PING_LINE
    listener = Listener({"/ipfs/ping/1.0.0"})
    assert answer_to(listener, HEADER_LINE + PING_LINE + b"abc") == HEADER_LINE + PING_LINE
    assert listener.agreed == "/ipfs/ping/1.0.0"
    assert listener.trailing_data == b"abc"


def test_long_lines_have_two_byte_lengths() -> None:
    line = encode_line("x" * 299)
    assert line[:2] == b"\xac\x02" and len(line) == 302
    listener = Listener({"x" * 299})
    listener.receive_data(HEADER_LINE + line)
    assert listener.agreed == "x" * 299


@given(cuts=st.lists(st.integers(0, 45), max_size=6))
def test_any_split_of_the_bytes_gives_the_same(cuts: list[int]) -> None:
    dialer, listener = Dialer("/a/1"), Listener({"/a/1", "/b/1"})
    to_listener = dialer.opening() + b"\0\0\0\1message"
    answer = b""
    edges = [0, *sorted(min(cut, len(to_listener)) for cut in cuts), len(to_listener)]
    rest = b""
    for begin, end in itertools.pairwise(edges):
        if listener.agreed is None:
            answer += answer_to(listener, to_listener[begin:end])
            rest = listener.trailing_data
        else:
            rest += to_listener[begin:end]
    assert listener.agreed == "/a/1"
    assert rest == b"\0\0\0\1message"
    for byte in answer:
        assert dialer.agreed is None
        dialer.receive_data(bytes([byte]))
    assert dialer.agreed == "/a/1"
    assert dialer.trailing_data == b""


def test_unknown_protocols_get_na_and_another_try() -> None:
    listener = Listener({"/b/1"})
    assert answer_to(listener, HEADER_LINE + encode_line("/a/1")) == HEADER_LINE + NA_LINE
    assert listener.agreed is None
    assert answer_to(listener, encode_line("/b/1")) == encode_line("/b/1")
    assert listener.agreed == "/b/1"


def test_ls_lists_what_is_offered() -> None:
    listener = Listener({"/b/1", "/a/1"})
    answer = answer_to(listener, HEADER_LINE + encode_line("ls"))
    inner = encode_line("/a/1") + encode_line("/b/1")
    assert answer == HEADER_LINE + bytes([len(inner) + 1]) + inner + b"\n"
    assert listener.agreed is None


def test_dialer_hears_na() -> None:
    dialer = Dialer("/a/1")
    with pytest.raises(ProtocolRefused, match="/a/1"):
        dialer.receive_data(HEADER_LINE + NA_LINE)


def test_na_goes_out_although_an_optimistic_message_followed() -> None:
    listener = Listener({"/b/1"})
    with pytest.raises(NegotiationError):
        listener.receive_data(Dialer("/a/1").opening() + b"\0\0\0\5hello")
    assert listener.data_to_send() == HEADER_LINE + NA_LINE
    assert listener.data_to_send() == b""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode_line("/multistream/2.0.0"), "expected '/multistream/1.0.0'"),
        (b"\x13/multistream/1.0.0X", "newline"),
        (b"\x00", "0 bytes"),
        (b"\x80\x00", "shortest form"),
        (b"\x81\x08", "1025 bytes"),
        (b"\xff\xff\xff\xff\x0f", "longer than"),
        (b"\x03\xff\xfe\n", "ASCII"),
    ],
)
def test_malformed_lines_are_refused_by_both_sides(data: bytes, why: str) -> None:
    with pytest.raises(NegotiationError, match=why):
        Listener({"/a/1"}).receive_data(data)
    with pytest.raises(NegotiationError, match=why):
        Dialer("/a/1").receive_data(data)


def test_dialer_refuses_another_protocol_than_asked() -> None:
    with pytest.raises(NegotiationError, match="/b/1"):
        Dialer("/a/1").receive_data(HEADER_LINE + encode_line("/b/1"))


def test_attempts_are_bounded() -> None:
    listener = Listener({"/a/1"})
    assert answer_to(listener, HEADER_LINE) == HEADER_LINE
    for attempt in range(MAX_ATTEMPTS):
        assert answer_to(listener, encode_line(f"/x/{attempt}")) == NA_LINE
    with pytest.raises(NegotiationError, match="attempts"):
        listener.receive_data(encode_line("/a/1"))


def test_a_claimed_length_is_refused_before_the_line_comes() -> None:
    length = MAX_LINE_BYTES + 1
    with pytest.raises(NegotiationError):
        Listener({"/a/1"}).receive_data(bytes([length & 0x7F | 0x80, length >> 7]))


@given(st.binary(max_size=400))
def test_any_bytes_agree_wait_or_are_refused(data: bytes) -> None:
    for side in (Dialer("/a/1"), Listener({"/a/1"})):
        try:
            side.receive_data(data)
        except NegotiationError as error:
            assert "\n" not in str(error)
        else:
            assert side.agreed is not None or len(side.trailing_data) <= MAX_LINE_BYTES + 2
