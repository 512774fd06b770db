"""What was broken by hand once: the door, the gateway's first look at a request, a node's own files."""

from __future__ import annotations

import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from node.cli.pause import _told
from node.device.folder import NodeFolder
from node.device.pause_file import LAST_TIME, read_pause
from node.device.pause_rules import PauseRules
from node.device.running_node import RunningNode
from node.device.schedule import Schedule
from node.gateway.bodies import ChatBody, CompletionBody, decode
from node.gateway.prompts import chat_prompt, completion_prompts
from node.gateway.requests import chat_wanted, completion_wanted
from node.gateway.speaker import Speaker
from node.http.refusals import Refusal
from routing.errors import LocalError
from tests.http_shop import Shop
from tests.open_door import OpenDoor, request
from tests.open_door import Response as Answer


class Held:
    """What a handler has in its hands."""


# --- the door ---


@pytest.fixture(scope="module")
def held() -> list[weakref.ref[Held]]:
    return []


@pytest.fixture(scope="module")
def door(held: list[weakref.ref[Held]]) -> Iterator[OpenDoor]:
    async def refuse(request: Request) -> Response:
        something = Held()
        held.append(weakref.ref(something))
        async with trio.open_nursery():  # as answers of several choices are refused: in a group
            try:
                raise LocalError("no")
            except LocalError as error:
                raise Refusal(400, "no, thank you") from error

    with OpenDoor([*Shop().routes(), Route("/held", refuse)]) as opened:
        yield opened


def test_what_was_refused_is_let_go_of(door: OpenDoor, held: list[weakref.ref[Held]]) -> None:
    """A request's megabytes must not wait for Python to look for cycles."""
    gc.disable()
    try:
        assert door.ask("GET /held HTTP/1.1").status == 400
        door.until(lambda: held[-1]() is None)
    finally:
        gc.enable()


def test_bodies_in_crumbs(door: OpenDoor) -> None:
    crumbs = b"1\r\nx\r\n" * 20_000
    with door.knock() as knocking:
        knocking.send(request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked") + crumbs)
        answer = knocking.response()
    assert answer.status == 400 and "crumbs" in answer.error["message"]
    few = b"1\r\nx\r\n" * 1000 + b"10000\r\n" + b"y" * 65536 + b"\r\n" + b"100\r\n" + b"z" * 256 + b"\r\n"
    with door.knock() as knocking:
        knocking.send(request("POST /echo HTTP/1.1\nTransfer-Encoding: chunked") + few + b"0\r\n\r\n")
        assert knocking.response().body.startswith(b'{"length":66792')


def test_what_proxies_read_in_two_ways(door: OpenDoor) -> None:
    def told(head: str) -> Answer:
        with door.knock() as knocking:
            knocking.send(request(head) + b"0\r\n\r\n")
            return knocking.response()

    both = told("POST /echo HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked")
    assert both.status == 400 and both.error["code"] == "bad_header"
    for name, first, second in (
        ("Origin", "http://localhost", "http://evil.example"),
        ("Authorization", "Bearer one", "Bearer two"),
        ("Sec-Fetch-Site", "same-origin", "cross-site"),
    ):
        assert told(f"GET /v1/hello HTTP/1.1\n{name}: {first}\n{name}: {second}").status == 400


def test_heads_that_never_end_give_way(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half requests took every place for ten seconds, so that nobody else was let in."""
    monkeypatch.setattr("node.http.door.MAX_CONNECTIONS", 4)
    door.until(lambda: door.door.connections == 0)  # of tests before
    with ExitStack() as ends:
        slow = [ends.enter_context(door.knock()) for _ in range(4)]

        def begun() -> int:
            return sum(each.head_since is not None for each in door.door._open)

        for number, each in enumerate(slow, 1):  # one by one: the first has been coming longest
            each.send(b"GET / HTTP/1.1\r\nHost: loc")
            door.until(lambda number=number: begun() == number)  # type: ignore[misc]
        assert door.ask("GET / HTTP/1.1").status == 200
        assert slow[0].is_closed()
        slow[3].send(b"alhost\r\n\r\n")
        assert slow[3].response().status == 200


# --- the gateway, before anything is computed ---


class NoTokenizer:
    """Whoever asks it has lost: texts that fit no context are not to be read."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        raise AssertionError("it was read")


class Small:
    """As much of a speaker as is looked at."""

    n_ctx = 512
    n_vocab = 1000
    tokenizer = NoTokenizer()
    chat = object()


@pytest.mark.parametrize("role", [["user"], {"a": 1}, 5, None, True])
def test_roles_that_are_no_text(role: object) -> None:
    body = ChatBody(messages=[{"role": role, "content": "x"}])
    with pytest.raises(Refusal) as refused:
        chat_wanted(body)
    assert refused.value.status == 400 and refused.value.param == "messages[0].role"


def test_what_fits_no_context_is_not_read() -> None:
    speaker = cast(Speaker, Small())
    bodies: list[Any] = ["a" * 200_000, ["b", "a" * 200_000], [0] * 513, [-1] * 100_000]
    for prompt in bodies[:1] + bodies[2:]:
        wanted = completion_wanted(CompletionBody(prompt=prompt))
        with pytest.raises(Refusal) as refused:
            trio.run(completion_prompts, speaker, wanted)
        assert refused.value.code == "context_length_exceeded"
    chat = chat_wanted(ChatBody(messages=[{"role": "user", "content": "a" * 70_000}] * 2))
    with pytest.raises(Refusal, match="at least 546 tokens"):
        trio.run(chat_prompt, speaker, chat)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"\xff"}',
        b'{"prompt":[1,' + b"9" * 5000 + b"]}",
        b'{"prompt":"a","temperature":NaN}',
        b'{"prompt":"a","temperature":1e999}',
        b'{"prompt":"a","logit_bias":{"' + b"9" * 5000 + b'":1}}',
        b'{"prompt":"a"}x',
        b"",
    ],
)
def test_json_that_is_none(data: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        decode(data, CompletionBody)
    assert refused.value.status == 400 and len(refused.value.message) < 200


# --- a node's own files ---


@pytest.mark.parametrize("times", ["0,1e308", "1e308,null", "-1e308,null", "0,-5", f"0,{LAST_TIME:.0f}"])
def test_times_of_a_pause_that_no_clock_shows(tmp_path: Path, times: str) -> None:
    since, _, until = times.partition(",")
    path = tmp_path / "pause.json"
    path.write_text(f'{{"since": {since}, "until": {until}}}')
    pause = read_pause(path)
    assert pause is not None and pause.until is None


def test_the_last_time_can_be_shown(tmp_path: Path) -> None:
    from datetime import datetime

    path = tmp_path / "pause.json"
    path.write_text(f'{{"since": 0, "until": {LAST_TIME - 86400}}}')
    rules = PauseRules(Schedule(()), idle_only=False, now=1e9, wall=datetime.fromtimestamp)
    rules.hand = read_pause(path)
    assert "by hand until 4147" in rules.look(1e9).text


def test_a_pipe_for_a_pause(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pause.json")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(read_pause(tmp_path / "pause.json")), daemon=True)
    thread.start()
    thread.join(5)
    assert found and found[0] is not None


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:{port}",
        "http://evil.invalid:{port}",
        "http://a b:{port}",
        "http://xn--\u202e:{port}",
        f"http://{'a' * 70}:{{port}}",
        "http://127.0.0.1",
        "http://127.0.0.1:99999",
        "https://127.0.0.1:{port}",
        "http://[::1",
        "",
    ],
)
def test_the_token_goes_to_addresses_alone(tmp_path: Path, address: str) -> None:
    (tmp_path / "http-token").write_text("0123456789abcdef")
    (tmp_path / "http-token").chmod(0o600)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0.05)
        where = address.format(port=listening.getsockname()[1])
        node = RunningNode(NodeFolder(tmp_path), where, 1, "0")
        with pytest.raises(LocalError, match="is no address; start the node again"):
            node.post("/api/pause", {})
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize(
    "answer", [{}, [], 5, None, {"pause": 5}, {"pause": {"paused": True}}, {"pause": []}]
)
def test_a_pause_told_otherwise(answer: object) -> None:
    with pytest.raises(LocalError, match="otherwise than this panal reads it"):
        _told(answer, "http://127.0.0.1:1")
    assert _told({"pause": None}, "")["paused"] is False
