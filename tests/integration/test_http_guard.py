"""The HTTP door by raw sockets: where it stands, and who may ask."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.http import listening
from node.http.api_keys import ApiKeys
from node.http.door import HttpDoor
from node.http.listening import DoorSettings
from routing.errors import LocalError
from tests.http_shop import Shop
from tests.open_door import OpenDoor
from tests.swarm_process import free_port

KEY = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def door(shop: Shop) -> Iterator[OpenDoor]:
    with OpenDoor(shop.routes(), DoorSettings(("127.0.0.1", 0), hosts=("my.lan",))) as opened:
        yield opened


# --- who may ask ---


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:4190",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.8.9.1",
        "[::1]",
        "[::1]:99",
        "my.lan",
        "MY.LAN:80",
    ],
)
def test_hosts_it_answers_to(door: OpenDoor, host: str) -> None:
    assert door.ask("GET / HTTP/1.1", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4190",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.1.7",
        "[2001:db8::1]:4190",
        "0.0.0.0",
        "notmy.lan",
    ],
)
def test_rebinding_names_are_refused(door: OpenDoor, host: str) -> None:
    answer = door.ask("GET / HTTP/1.1", host=host)
    assert answer.status == 421 and answer.error["code"] == "unknown_host"


@pytest.mark.parametrize(
    "host", ["", "local host", "localhost:", "localhost:99999", "user@localhost", "[::1", "a/b"]
)
def test_what_is_no_host(door: OpenDoor, host: str) -> None:
    assert door.ask("GET / HTTP/1.1", host=host).status == 400
    assert door.ask("GET / HTTP/1.0", host=None).status == 400


def test_a_whole_url_as_target(door: OpenDoor) -> None:
    assert door.ask("GET http://localhost/v1/hello HTTP/1.1").body == b"hello /v1/hello"
    assert door.ask("GET http://localhost HTTP/1.1").body == b"hello /"
    assert door.ask("GET http://evil.example/v1/hello HTTP/1.1").status == 421


@pytest.mark.parametrize("path", ["/", "/v1/hello", "/echo"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:3000",
        "http://localhost.evil.example",
        "file://",
        "localhost",
    ],
)
def test_pages_of_others_are_refused(door: OpenDoor, path: str, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "PUT"):
        answer = door.ask(f"{method} {path} HTTP/1.1\nOrigin: {origin}\nAccess-Control-Request-Method: POST")
        assert answer.status == 403 and answer.error["code"] == "foreign_origin"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_of_ours_are_not(door: OpenDoor) -> None:
    for host in ("localhost:4190", "127.0.0.1:4190", "[::1]:4190", "my.lan"):
        for scheme in ("http", "https"):
            head = f"POST /echo HTTP/1.1\nOrigin: {scheme}://{host}"
            assert door.ask(head, b"{}", host=host).status == 200


def test_browsers_that_send_no_origin(door: OpenDoor) -> None:
    for site in ("cross-site", "same-site"):
        assert (
            door.ask(f"GET /v1/hello HTTP/1.1\nSec-Fetch-Site: {site}\nSec-Fetch-Mode: no-cors").status == 403
        )
        link = f"Sec-Fetch-Site: {site}\nSec-Fetch-Mode: navigate"
        assert door.ask(f"GET / HTTP/1.1\n{link}").status == 200
        assert door.ask(f"POST /echo HTTP/1.1\n{link}", b"{}").status == 403
    for site in ("same-origin", "none"):
        assert door.ask(f"GET /v1/hello HTTP/1.1\nSec-Fetch-Site: {site}\nSec-Fetch-Mode: cors").status == 200


def test_keys(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    path = tmp_path / "api.key"
    path.write_text(f"# of the house\nkitchen {KEY}\n\n{KEY}2\n")
    path.chmod(0o600)
    with OpenDoor(shop.routes(), DoorSettings(("127.0.0.1", 0), keys=ApiKeys.read(path))) as door:
        basic = base64.b64encode(f"whoever:{KEY}".encode()).decode()
        for shown, name in (
            (f"Bearer {KEY}", "kitchen"),
            (f"bearer {KEY}2", "key 4"),
            (f"Basic {basic}", "kitchen"),
        ):
            answer = door.ask(f"GET /who HTTP/1.1\nAuthorization: {shown}")
            assert json.loads(answer.body) == {"address": "127.0.0.1", "key": name}
        for shown in (
            "",
            "Bearer ",
            f"Bearer {KEY}3",
            f"Bearer {KEY[:-1]}",
            f"Token {KEY}",
            "Basic !!",
            "Basic eA==",
            KEY,
        ):
            answer = door.ask(f"GET /who HTTP/1.1\nAuthorization: {shown}")
            assert answer.status == 401 and answer.error["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert door.ask("GET / HTTP/1.1").status == 401
    assert KEY not in caplog.text and KEY not in repr(vars(door.door))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (KEY, 0o644, "open to other users"),
        ("short", 0o600, "16 to 256"),
        (f"a {KEY}\na {KEY}", 0o600, "a name of its own"),
        (f"a b {KEY}", 0o600, "KEY, or NAME KEY"),
        ("# nothing\n", 0o600, "holds 0 keys"),
        ("x" * 100_000, 0o600, "too large"),
    ],
)
def test_key_files_that_cannot_be_used(tmp_path: Path, text: str, mode: int, said: str) -> None:
    path = tmp_path / "api.key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(LocalError, match=said) as raised:
        ApiKeys.read(path)
    assert KEY not in str(raised.value)
    with pytest.raises(LocalError, match="openssl rand"):
        ApiKeys.read(tmp_path / "none")


# --- where it stands ---


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            LocalError, match=r"http\.listen: cannot listen at 127\.0\.0\.1:.*in use.*another port"
        ):
            HttpDoor(DoorSettings(("127.0.0.1", taken.getsockname()[1])))
    with pytest.raises(LocalError, match=r"http\.listen.*address of this machine"):
        HttpDoor(DoorSettings(("192.0.2.1", 0), keys=ApiKeys({"a": KEY})))


def test_the_first_free_port_where_none_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert range(4190, 4200) == listening.FIRST_PORTS
    ports = [free_port(), free_port(), free_port()]  # the true ones may be in use on this machine
    monkeypatch.setattr(listening, "FIRST_PORTS", ports)
    doors = [HttpDoor(DoorSettings(avoid=frozenset({ports[1]}))) for _ in range(3)]
    assert [door.port for door in doors[:2]] == [ports[0], ports[2]]
    assert doors[2].port not in (0, *ports), "any, where all are taken"
    for door in doors:
        door.close()


def test_our_control_plane_may_share_the_port_and_another_door_not() -> None:
    door = HttpDoor(DoorSettings(("127.0.0.1", 0)))
    with socket.socket() as control, socket.socket() as other:
        control.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        control.bind(("0.0.0.0", door.port))
        control.listen()
        with pytest.raises(LocalError):
            HttpDoor(DoorSettings(("127.0.0.1", door.port)))
        with pytest.raises(OSError):
            other.bind(("127.0.0.1", door.port))
    door.close()


def test_beyond_loopback_only_with_a_key() -> None:
    with pytest.raises(LocalError, match=r"http\.key_file"):
        HttpDoor(DoorSettings(("0.0.0.0", 0)))
    door = OpenDoor(Shop().routes(), DoorSettings(("0.0.0.0", 0), keys=ApiKeys({"a": KEY})))
    with door:
        assert door.door.url == f"http://127.0.0.1:{door.door.port}"
        assert door.ask(f"GET / HTTP/1.1\nAuthorization: Bearer {KEY}").status == 200
        assert door.ask("GET / HTTP/1.1").status == 401


def test_ipv6() -> None:
    try:
        door = OpenDoor(Shop().routes(), DoorSettings(("::1", 0)))
    except LocalError:
        pytest.skip("this machine has no IPv6 loopback")
    with door:
        assert door.door.url == f"http://[::1]:{door.door.port}"
        answer = door.ask("GET /who HTTP/1.1", host=door.door.address)
        assert json.loads(answer.body)["address"] == "::1"
