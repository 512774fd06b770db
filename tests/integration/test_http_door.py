"""The HTTP door by raw sockets: what it understands, its bounds, and how it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
import trio

from node.http import door as door_module
from node.http.connection import Connection
from node.http.door import HttpDoor
from node.http.exchange import MAX_BODIES_BYTES
from node.http.guard import MAX_BODY_BYTES
from node.http.listening import DoorSettings
from tests.http_shop import Shop
from tests.open_door import END_SECONDS, OpenDoor, request


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def door(shop: Shop) -> Iterator[OpenDoor]:
    with OpenDoor(shop.routes(), DoorSettings(("127.0.0.1", 0), hosts=("my.lan",))) as opened:
        yield opened


# --- plain HTTP ---


def test_answers_with_the_headers_that_guard_a_page(door: OpenDoor) -> None:
    answer = door.ask("GET / HTTP/1.1")
    assert (answer.status, answer.body) == (200, b"hello /")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_several_requests_on_one_connection(door: OpenDoor) -> None:
    with door.knock() as knocking:
        for _ in range(3):
            knocking.send(request("GET /v1/hello HTTP/1.1"))
            assert knocking.response().body == b"hello /v1/hello"
        # and pipelined: both before an answer
        knocking.send(request("POST /echo HTTP/1.1", b"one") + request("POST /echo HTTP/1.1", b"second"))
        assert json.loads(knocking.response().body)["length"] == 3
        assert json.loads(knocking.response().body)["length"] == 6
        knocking.send(request("GET / HTTP/1.1\nConnection: close"))
        assert knocking.response().headers["connection"] == "close"
        assert knocking.is_closed()


def test_head_has_no_body(door: OpenDoor) -> None:
    with door.knock() as knocking:
        knocking.send(request("HEAD / HTTP/1.1"))
        answer = knocking.response(no_body=True)
        assert answer.headers["content-length"] == "7"
        knocking.send(request("GET / HTTP/1.1"))
        assert knocking.response().body == b"hello /"
        knocking.send(request("HEAD /flood HTTP/1.1"))  # which never ends
        assert knocking.response(no_body=True).headers["content-type"].startswith("text/event-stream")
        knocking.send(request("GET / HTTP/1.1"))
        assert knocking.response().body == b"hello /"
    assert door.ask("HEAD /nowhere HTTP/1.1").status == 404
    assert door.ask("HEAD / HTTP/1.1", host="evil.example").status == 421


def test_http_1_0(door: OpenDoor) -> None:
    with door.knock() as knocking:
        knocking.send(request("GET / HTTP/1.0"))
        assert knocking.response().body == b"hello /"
        assert knocking.is_closed()


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.0"])
def test_another_http(door: OpenDoor, version: str) -> None:
    answer = door.ask(f"GET / HTTP/{version}")
    assert (answer.status, answer.error["code"]) == (505, "http_version")
    assert version in answer.error["message"] and answer.error["type"] == "invalid_request_error"
    with door.knock() as knocking:
        knocking.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert knocking.response().status == 505


def test_chunked_body(door: OpenDoor) -> None:
    with door.knock() as knocking:
        knocking.send(request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked"))
        for piece in (b"4\r\nabcd\r\n", b"3;x=y\r\nefg\r\n", b"0\r\n\r\n"):
            knocking.send(piece)
            time.sleep(0.02)
        assert json.loads(knocking.response().body) == {"length": 7, "start": "abcdefg"}
        knocking.send(request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked") + b"zz\r\n")
        answer = knocking.response()
        assert answer.status == 400 and "body" in answer.error["message"]
        assert "'zz" in answer.error["message"] and "bytearray" not in answer.error["message"]
        assert knocking.is_closed()


def test_asked_whether_to_go_on(door: OpenDoor) -> None:
    with door.knock() as knocking:
        knocking.send(request("POST /echo HTTP/1.1\nExpect: 100-continue\nContent-Length: 5"))
        assert knocking.head()[0] == 100
        knocking.send(b"hello")
        assert json.loads(knocking.response().body)["length"] == 5
    with door.knock() as knocking:
        knocking.send(
            request(f"POST /echo HTTP/1.1\nExpect: 100-continue\nContent-Length: {MAX_BODY_BYTES + 1}")
        )
        assert knocking.head()[0] == 413


def test_no_such_path_and_no_such_method(door: OpenDoor) -> None:
    assert door.ask("GET /v1/nothing HTTP/1.1").error["code"] == "not_found"
    answer = door.ask("GET /echo HTTP/1.1")
    assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert answer.error["code"] == "method_not_allowed"
    assert door.ask("OPTIONS /v1/hello HTTP/1.1").status == 405
    # With a body that nobody reads: the answer arrives all the same.
    assert door.ask("POST /v1/nothing HTTP/1.1", b"x" * 3_000_000).status == 404


def test_errors_of_handlers(door: OpenDoor, caplog: pytest.LogCaptureFixture) -> None:
    answer = door.ask("GET /refuse HTTP/1.1")
    assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (429, "7", "busy")
    answer = door.ask("GET /local HTTP/1.1")
    assert (answer.status, answer.error["message"]) == (500, "the model is in pieces: put it together")
    assert not caplog.records
    answer = door.ask("GET /bug HTTP/1.1")
    assert answer.status == 500 and b"secret" not in answer.body
    assert any("bug" in record.getMessage() for record in caplog.records)
    with door.knock() as knocking:  # too late for a status: the client must see that something is missing
        knocking.send(request("GET /late-bug HTTP/1.1"))
        knocking.until(b"data: one\n\n\r\n")
        assert knocking.is_closed()


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET http://[oops/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET ftp://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request(door: OpenDoor, said: bytes) -> None:
    with door.knock() as knocking:
        knocking.send(said)
        answer = knocking.response()
        assert 400 <= answer.status < 500 and answer.error["type"] == "invalid_request_error"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert knocking.is_closed()


def test_http_2_is_not_offered(door: OpenDoor) -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
    answer = door.ask(f"GET / HTTP/1.1\n{upgrade}")
    assert (answer.status, answer.body) == (200, b"hello /")


def test_a_head_is_bounded(door: OpenDoor) -> None:
    assert door.ask(f"GET / HTTP/1.1\nCookie: {'x' * 20_000}").status == 200
    with door.knock() as knocking:
        knocking.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000)
        assert knocking.response().status == 431
    with door.knock() as knocking:
        knocking.send(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert knocking.response().status == 431


# --- bounds ---


def test_a_body_is_bounded_while_it_comes(door: OpenDoor) -> None:
    assert json.loads(door.ask("POST /echo HTTP/1.1", b"x" * 1_000_000).body)["length"] == 1_000_000
    assert door.ask(f"POST /echo HTTP/1.1\nContent-Length: {MAX_BODY_BYTES + 1}").status == 413
    with door.knock() as knocking:  # and one that announces nothing
        knocking.send(request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked"))
        piece = b"x" * 65536
        for _ in range(MAX_BODY_BYTES // len(piece) + 2):
            knocking.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        answer = knocking.response()
        assert answer.status == 413 and answer.error["code"] == "body_too_large"
    assert door.door._behind.bodies.n_bytes == 0


def test_bodies_are_bounded_together(door: OpenDoor, shop: Shop) -> None:
    many = [door.knock() for _ in range(MAX_BODIES_BYTES // MAX_BODY_BYTES)]
    try:
        for each in many:
            each.send(request("POST /wait HTTP/1.1", b"x" * MAX_BODY_BYTES))
        door.until(lambda: shop.waiting == len(many))
        answer = door.ask("POST /echo HTTP/1.1", b"x")
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
    finally:
        for each in many:
            each.socket.close()
    door.until(lambda: door.door._behind.bodies.n_bytes == 0)
    assert door.ask("POST /echo HTTP/1.1", b"x").status == 200


def test_slow_clients(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "connection.HEAD_SECONDS",
        "connection.KEEP_ALIVE_SECONDS",
        "exchange.BODY_SECONDS",
        "wire.SEND_SECONDS",
    ):
        monkeypatch.setattr(f"node.http.{name}", 0.3)
    with OpenDoor(shop.routes()) as door:
        with door.knock() as silent, door.knock() as dripping, door.knock() as body, door.knock() as deaf:
            deaf.send(request("GET /flood HTTP/1.1"))
            dripping.send(b"GET / HTTP/1.1\r\nHost: loc")
            body.send(request("POST /echo HTTP/1.1\nContent-Length: 100") + b"x")
            assert silent.is_closed()
            answer = dripping.response()
            assert answer.status == 408 and dripping.is_closed()
            answer = body.response()
            assert answer.status == 408 and "body" in answer.error["message"]
            door.until(lambda: shop.waiting == 0)
        with door.knock() as knocking:
            knocking.send(request("GET / HTTP/1.1"))
            assert knocking.response().status == 200
            assert knocking.is_closed()


def test_drops_of_a_head_do_not_extend_its_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.http.connection.HEAD_SECONDS", 0.5)
    monkeypatch.setattr("node.http.wire.LINGER_SECONDS", 0.5)
    with OpenDoor(shop.routes()) as door, door.knock() as knocking:
        begun = time.monotonic()
        with pytest.raises(OSError):
            knocking.send(b"GET / HTTP/1.1\r\n")
            while time.monotonic() < begun + 8:
                knocking.send(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() < begun + 7


def test_connections_are_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_CONNECTIONS", 4)
    with OpenDoor(shop.routes()) as door:
        idle, *busy = [door.knock() for _ in range(4)]
        idle.send(request("GET / HTTP/1.1"))
        assert idle.response().status == 200
        for each in busy:
            each.send(request("GET /wait HTTP/1.1"))
        door.until(lambda: shop.waiting == 3)
        with door.knock() as knocking:  # the idle one makes room
            knocking.send(request("GET /wait HTTP/1.1"))
            assert idle.is_closed()
            door.until(lambda: shop.waiting == 4)
            answer = door.ask("GET / HTTP/1.1")
            assert answer.status == 503 and answer.error["code"] == "busy"
            assert door.door.connections == door.door.most_connections == 4
        for each in busy:
            each.socket.close()
        door.until(lambda: door.door.connections == 0)
        assert door.ask("GET / HTTP/1.1").status == 200
        idle.socket.close()


# --- leaving and ending ---


@pytest.mark.parametrize("path", ["wait", "stream", "flood"])
@pytest.mark.parametrize("pipelined", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_who_leaves_is_noticed_at_once(door: OpenDoor, shop: Shop, path: str, pipelined: bytes) -> None:
    before = len(shop.left)
    knocking = door.knock()
    knocking.send(request(f"GET /{path} HTTP/1.1") + pipelined)
    door.until(lambda: shop.waiting == 1)
    knocking.socket.close()
    door.until(lambda: shop.waiting == 0)  # else it waits for ever
    assert shop.left[before:] == [path]
    door.until(lambda: door.door.connections == 0)


def test_who_sends_endlessly_ahead_is_cut_off(door: OpenDoor, shop: Shop) -> None:
    with door.knock() as knocking:
        knocking.send(request("GET /wait HTTP/1.1"))
        door.until(lambda: shop.waiting == 1)
        with pytest.raises(OSError):
            for _ in range(1000):
                knocking.send(b"x" * 65536)
    door.until(lambda: shop.waiting == 0)


def test_it_ends_in_time_with_all_kinds_of_clients(shop: Shop) -> None:
    with OpenDoor(shop.routes()) as door:
        names = ("new", "idle", "half", "uploading", "waiting", "streaming", "deaf")
        clients = {name: door.knock() for name in names}
        clients["idle"].send(request("GET / HTTP/1.1"))
        assert clients["idle"].response().status == 200
        clients["half"].send(b"GET / HT")
        clients["uploading"].send(request("POST /echo HTTP/1.1\nContent-Length: 100") + b"x")
        clients["waiting"].send(request("GET /wait HTTP/1.1"))
        clients["streaming"].send(request("GET /stream HTTP/1.1"))
        clients["streaming"].until(b"data: one\n\n\r\n")
        clients["deaf"].send(request("GET /flood HTTP/1.1"))
        door.until(lambda: shop.waiting == 3)
        time.sleep(0.2)  # until the deaf one's buffers are full
        door.end()
        assert door.ended_in < END_SECONDS
        assert shop.waiting == 0
        answer = clients["waiting"].response()
        assert answer.status == 503 and answer.error["code"] == "ending"
        assert clients["uploading"].response().status == 503
        assert clients["streaming"].chunk() == b"data: ending\n\n"
        assert clients["streaming"].chunk() == b""
        for name in ("new", "idle", "half"):
            assert clients[name].is_closed()
        for each in clients.values():
            each.socket.close()
        with pytest.raises(OSError):
            door.knock()


def test_a_bug_in_a_connection_is_not_the_end(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Connection, seconds: float) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "_head", broken)
        with door.knock() as knocking:
            assert knocking.is_closed()
    door.until(lambda: "bug" in caplog.text)
    assert door.ask("GET / HTTP/1.1").status == 200


def test_a_door_that_is_cancelled_while_it_opens_ends() -> None:
    """The node is interrupted as it starts: what is shielded for orderly ends must not wait for ever."""

    async def main() -> bool:
        with trio.move_on_after(60, shield=True) as guard:
            with trio.CancelScope() as scope:
                scope.cancel()
                await HttpDoor(DoorSettings(("127.0.0.1", 0))).run()
        return guard.cancelled_caught

    # In a thread that may be left behind: the fault this is about is a task that no cancelling ends.
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(trio.run(main)), daemon=True)
    thread.start()
    thread.join(60)
    assert ended == [False]
