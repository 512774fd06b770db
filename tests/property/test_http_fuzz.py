"""Bytes that are nearly HTTP: the door answers in HTTP or closes, and stays open for others."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.http.authority import Authority, KnownHosts, parse_address
from node.http.guard import Guard, Head
from node.http.refusals import Refusal
from tests.http_shop import Shop
from tests.open_door import OpenDoor, request

WHOLE = (
    request("GET / HTTP/1.1")
    + request("POST /echo HTTP/1.1", b'{"a": 1}')
    + request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked")
    + b"3\r\nabc\r\n0\r\n\r\n"
    + request("GET /v1/hello HTTP/1.1\nConnection: close")
)
"""Four requests that are right."""


@pytest.fixture(scope="module")
def door() -> Iterator[OpenDoor]:
    with OpenDoor(Shop().routes()) as opened:
        yield opened


def knock(door: OpenDoor, data: bytes) -> bytes:
    """All that comes back when nothing more is sent."""
    with door.knock() as knocking:
        try:
            knocking.send(data)
            knocking.socket.shutdown(socket.SHUT_WR)
            return knocking.rest()
        except OSError:  # it had seen enough
            return b""


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.data())
def test_perturbed_requests(door: OpenDoor, data: st.DataObject) -> None:
    said = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(said)))
        end = data.draw(st.integers(at, min(at + 8, len(said))))
        said[at:end] = data.draw(st.binary(max_size=8) | st.sampled_from((b"\r\n", b"\n", b":", b" ", b"0")))
    answer = knock(door, bytes(said))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert door.ask("GET / HTTP/1.1").body == b"hello /"


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(door: OpenDoor, said: bytes) -> None:
    answer = knock(door, said)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


@FUZZ
@given(st.lists(st.integers(0, len(WHOLE)), max_size=6))
def test_pieces_do_not_matter(door: OpenDoor, places: list[int]) -> None:
    """However the bytes are cut, the same four answers come."""
    ends = sorted({*places, len(WHOLE)})
    with door.knock() as knocking:
        for start, end in zip([0, *ends], ends, strict=False):
            knocking.send(WHOLE[start:end])
        assert knocking.response().body == b"hello /"
        assert json.loads(knocking.response().body)["length"] == 8
        assert json.loads(knocking.response().body)["length"] == 3
        assert knocking.response().body == b"hello /v1/hello"
        assert knocking.is_closed()


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_heads_are_taken_or_refused(target: str, host: str, origin: str) -> None:
    guard = Guard(KnownHosts(), None)
    own = parse_address("127.0.0.1")
    assert own is not None
    head = Head(
        "POST",
        target,
        [(b"host", host.encode("latin-1", "replace")), (b"origin", origin.encode("latin-1", "replace"))],
        own,
    )
    try:
        guard.admit(head)
    except Refusal as refusal:
        assert refusal.status in (400, 403, 421) and "\n" not in refusal.message
    else:
        known = Authority.parse(host)
        assert known is not None and known.host in ("localhost", "127.0.0.1")
        assert origin.split("://")[1] == host
