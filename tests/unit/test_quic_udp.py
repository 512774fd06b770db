"""The UDP socket: runs for GSO, datagrams that arrive as they were sent, and errors that are only loss."""

from __future__ import annotations

import socket
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import LocalError
from routing.quic.udp import UdpSocket, _run_length

A, B = ("127.0.0.1", 1), ("127.0.0.1", 2)


def split(received: list[tuple[bytes, int, tuple[str, int]]]) -> list[bytes]:
    """The datagrams in what `receive` gave."""
    datagrams = []
    for data, segment, _ in received:
        step = segment or max(len(data), 1)
        datagrams += [data[start : start + step] for start in range(0, len(data), step)]
    return datagrams


def receive_all(target: UdpSocket, count: int) -> list[bytes]:
    datagrams: list[bytes] = []
    end = time.monotonic() + 2
    while len(datagrams) < count and time.monotonic() < end:
        datagrams += split(target.receive())
    return datagrams


@given(
    st.lists(st.tuples(st.sampled_from([1, 100, 1400]), st.sampled_from([A, B])), min_size=1, max_size=150)
)
def test_runs_are_what_one_gso_call_may_take(shape: list[tuple[int, tuple[str, int]]]) -> None:
    datagrams = [(bytes(size), address) for size, address in shape]
    sizes = [size for size, _ in shape]
    index = 0
    while index < len(datagrams):
        run = _run_length(datagrams, sizes, index)
        assert 1 <= run <= 64
        part = shape[index : index + run]
        assert {address for _, address in part} == {part[0][1]}
        assert all(size == part[0][0] for size, _ in part[:-1]) and part[-1][0] <= part[0][0]
        assert sum(size for size, _ in part) <= 65_000
        index += run


def test_mixed_datagrams_arrive_whole_and_at_the_right_socket() -> None:
    sender, first, second = (UdpSocket("127.0.0.1", 0) for _ in range(3))
    try:
        to_first = [bytes([n]) * size for n, size in enumerate((1400, 1400, 1400, 900, 1400, 30, 1400, 1400))]
        to_second = [bytes([100 + n]) * 1200 for n in range(100)]
        datagrams = [(data, first.local_address) for data in to_first]
        datagrams[3:3] = [(data, second.local_address) for data in to_second]
        assert sender.send(datagrams) == sum(map(len, to_first + to_second))
        assert receive_all(first, len(to_first)) == to_first
        assert receive_all(second, len(to_second)) == to_second
    finally:
        for each in (sender, first, second):
            each.close()


def test_too_large_and_unreachable_datagrams_are_only_lost() -> None:
    sender, target = UdpSocket("127.0.0.1", 0), UdpSocket("127.0.0.1", 0)
    try:
        sender.send([(bytes(65_520), target.local_address), (b"after", target.local_address)])
        assert sender.lost == 1
        sender.send([(b"x", ("192.0.2.1", 9)), (b"again", target.local_address)])
        assert receive_all(target, 2) == [b"after", b"again"]
    finally:
        sender.close()
        target.close()


@pytest.mark.skipif(sys.platform != "linux", reason="GSO is Linux only")
def test_without_gso_nothing_changes() -> None:
    sender, target = UdpSocket("127.0.0.1", 0), UdpSocket("127.0.0.1", 0)
    try:
        sender._gso = False
        datagrams = [(bytes([n]) * 1400, target.local_address) for n in range(20)]
        sender.send(datagrams)
        assert receive_all(target, 20) == [data for data, _ in datagrams]
    finally:
        sender.close()
        target.close()


def test_a_closed_socket_swallows_what_is_still_sent() -> None:
    sender = UdpSocket("127.0.0.1", 0)
    sender.close()
    sender.send([(b"x", A)])
    assert sender.lost == 1


def test_addresses_are_brought_to_the_sockets_family() -> None:
    only4 = UdpSocket("127.0.0.1", 0)
    assert only4.reachable("192.0.2.1") == "192.0.2.1"
    with pytest.raises(LocalError, match="IPv4 only"):
        only4.reachable("2001:db8::1")
    only4.close()
    try:
        both = UdpSocket("::", 0)
    except LocalError:
        pytest.skip("no IPv6 on this machine")
    assert both.reachable("192.0.2.1") == "::ffff:192.0.2.1"
    assert both.socket.family == socket.AF_INET6
    both.close()
