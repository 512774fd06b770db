"""The status of a node among others in one process, over its HTTP door: what is told, to whom, how much."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio

from node.config.settings import DeviceConfig
from node.device.folder import NodeFolder
from node.device.pausing import Pausing
from node.http.door import HttpDoor
from node.http.listening import DoorSettings
from node.status import facts
from node.status.board import Sources, StatusBoard
from node.status.events import MAX_FOLLOWERS
from node.status.files import PageFile, read_folder
from node.status.routes import make_routes
from node.status.token import Token, read_token
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from tests.integration.test_swarm_node import MODEL, address, node, place, serving, until
from tests.metrics_text import read_metrics
from tests.served import run


@dataclass
class Watched:
    """A node whose status is watched."""

    node: SwarmNode
    board: StatusBoard
    door: HttpDoor
    http: httpx.AsyncClient
    token: Token
    folder: NodeFolder

    async def status(self) -> facts.Status:
        answer = await self.http.get("/api/status")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=facts.Status)


@asynccontextmanager
async def watched(
    where: Place, role: Role, folder: Path, page: dict[str, PageFile] | None = None
) -> AsyncIterator[Watched]:
    async with node(where, role) as made, trio.open_nursery() as nursery:
        files = NodeFolder(folder)
        board = StatusBoard(Sources(node=made, name="watched"))
        board.sources.pauser = pausing = Pausing(files, DeviceConfig(), lambda state: board.changed())
        door = board.sources.door = HttpDoor(DoorSettings(listen=("127.0.0.1", 0)))
        token = Token.load_or_create(files.http_token, made.identity.peer_id)
        door.mount(make_routes(board, token, page))
        for part in (door.run, board.run, pausing.run):
            await nursery.start(part)
        async with httpx.AsyncClient(base_url=door.url, timeout=10) as http:
            yield Watched(made, board, door, http, token, files)
        nursery.cancel_scope.cancel()


class Events:
    """Server-sent events, read as a browser does."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        """The next event's name and content."""
        name, data = "", ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data += line.removeprefix("data: ")
            elif not line and data:
                return name, json.loads(data)
        raise EOFError

    async def first(self, name: str) -> Any:
        """The content of the next event of a name."""
        with trio.fail_after(30):
            while True:
                told, content = await self.next()
                if told == name:
                    return content


@asynccontextmanager
async def following(http: httpx.AsyncClient) -> AsyncIterator[Events]:
    async with http.stream("GET", "/api/events") as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith(
            "text/event-stream"
        )
        yield Events(response)


def test_a_node_tells_of_itself_its_peers_and_their_models(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            node(place(relay=True), serving("boot")) as boot,
            node(place(address(boot)), serving("b")) as b,
            watched(place(address(boot)), serving("w"), tmp_path) as w,
        ):
            await until(lambda: len(w.node.table) == 3)
            with trio.fail_after(30):
                while True:
                    status = await w.status()
                    known = {peer.name: peer for peer in status.peers}
                    if known.get("boot") and known["boot"].connected and status.node.traffic.up:
                        break
                    await trio.sleep(0.2)
            assert status.node.peer_id == w.node.identity.peer_id and status.node.name == "watched"
            assert status.node.traffic.sent_bytes > 0 and status.node.memory.rss_bytes
            assert status.node.addresses == [w.node.address]
            first, second = known["boot"], known["b"]
            assert first.route is not None and first.route.kind == "direct" and first.route.reason
            assert first.rtt_ms is not None and first.version == status.node.version and first.relays
            host, port = boot.endpoint.local_address
            assert first.address == f"{host}:{port}"
            assert second.state in ("heard", "online") and second.holds[0].cells == 4
            (model,) = status.models
            assert model.id == MODEL and model.nodes == 2
            assert b.identity.peer_id == second.id

            told = read_metrics((await w.http.get("/metrics")).text)
            assert told["panal_peers"].value(state="online") >= 1
            assert told["panal_sent_bytes_total"].value() >= status.node.traffic.sent_bytes

    run(test)


def test_a_relay_tells_what_it_carries(tmp_path: Path) -> None:
    async def test() -> None:
        async with watched(place(relay=True), serving("relay"), tmp_path) as w:
            relay = (await w.status()).node.relay.serving
            assert relay is not None and relay.addresses == w.node.relay_addresses
            assert (relay.reservations, relay.max_reservations) == (0, w.node.place.relay.table.reservations)
            told = read_metrics((await w.http.get("/metrics")).text)
            assert told["panal_relay_circuits"].value() == 0

    run(test)


def test_whoever_follows_hears_of_all_that_changes(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            boot = await stack.enter_async_context(node(place(), serving("boot")))
            w = await stack.enter_async_context(watched(place(address(boot)), serving("w"), tmp_path))
            events = await stack.enter_async_context(following(w.http))
            name, whole = await events.next()
            assert name == "snapshot" and whole["version"] == facts.VERSION
            assert msgspec.convert(whole, facts.Status).node.name == "watched"
            uptime = whole["node"]["uptime_seconds"]
            assert (await events.first("node"))["uptime_seconds"] > uptime
            async with node(place(address(boot)), serving("late")) as late:
                for _ in range(20):
                    told = await events.first("peers")
                    if any(peer["id"] == late.identity.peer_id for peer in told["changed"]):
                        break
                else:
                    raise AssertionError("nothing was heard of the new node")

    run(test)


def test_followers_are_bounded_and_one_that_goes_makes_room(tmp_path: Path) -> None:
    async def test() -> None:
        async with watched(place(), serving(), tmp_path) as w, AsyncExitStack() as others:
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(base_url=w.door.url, limits=limits, timeout=10) as many:
                async with AsyncExitStack() as first:
                    await first.enter_async_context(following(many))
                    for _ in range(MAX_FOLLOWERS - 1):
                        await others.enter_async_context(following(many))
                    await until(lambda: w.board.followers == MAX_FOLLOWERS)
                    refused = await many.get("/api/events")
                    assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
                    assert "follow this node already" in refused.json()["error"]["message"]
                await until(lambda: w.board.followers < MAX_FOLLOWERS)
                async with following(many) as again:
                    assert (await again.next())[0] == "snapshot"
                await others.aclose()
            await until(lambda: w.board.followers == 0)

    run(test)


def test_a_follower_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with watched(place(), serving(), tmp_path) as w:
            deaf = socket.create_connection(("127.0.0.1", w.door.port))
            try:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                deaf.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await until(lambda: w.board.followers == 1)
                async with following(w.http) as events:
                    for _ in range(3):
                        await events.first("node")
            finally:
                deaf.close()
            await until(lambda: w.board.followers == 0)

    run(test)


def test_the_page_comes_with_its_cookie_and_can_be_kept(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<!doctype html><title>panal</title>")
    (page / "page.js").write_text("'use strict';")
    (page / "notes.py").write_text("secret = 1")
    (page / "deeper").mkdir()

    async def test() -> None:
        async with watched(place(), serving(), tmp_path, read_folder(page)) as w:
            index = await w.http.get("/")
            assert index.status_code == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
            assert index.headers["content-security-policy"].startswith("default-src 'self'")
            assert index.headers["cache-control"] == "no-cache"
            cookie = index.headers["set-cookie"]
            assert cookie.startswith(f"{w.token.cookie_name}={w.token.cookie_value};")
            for word in ("HttpOnly", "Path=/api", "SameSite=strict"):
                assert word in cookie
            again = await w.http.get("/", headers={"If-None-Match": index.headers["etag"]})
            assert again.status_code == 304 and not again.content and "set-cookie" in again.headers
            script = await w.http.get("/static/page.js")
            assert script.text == "'use strict';" and script.headers["etag"] != index.headers["etag"]
            assert "set-cookie" not in script.headers
            for name in ("notes.py", "deeper", "index.html.bak"):
                assert (await w.http.get(f"/static/{name}")).status_code == 404
            # with what the page got it may pause
            paused = await w.http.post("/api/pause", headers={"Origin": w.door.url})
            assert paused.status_code == 200 and paused.json()["pause"]["by_hand"] is True

    run(test)


def test_pausing_takes_the_token_or_the_pages_cookie(tmp_path: Path) -> None:
    async def test() -> None:
        async with watched(place(), serving(), tmp_path) as w, following(w.http) as events:
            own = {"Origin": w.door.url}
            secret = {"X-Panal-Token": read_token(w.folder.http_token)}
            cookie = {"Cookie": f"{w.token.cookie_name}={w.token.cookie_value}"}
            for headers in (
                {},
                own,
                {"X-Panal-Token": "0" * 64},
                {"X-Panal-Token": w.token.cookie_value},
                cookie,  # without an Origin
                cookie | {"Origin": "http://evil.example"},
                cookie | {"Origin": "http://127.0.0.1:1"},
                cookie | {"Origin": "null"},
                secret | {"Origin": "http://evil.example"},
                own | {"Cookie": f"{w.token.cookie_name}={'0' * 64}"},
            ):
                for path in ("/api/pause", "/api/resume"):
                    answer = await w.http.post(path, headers=headers)
                    assert answer.status_code == 403, headers
                    assert answer.json()["error"]["message"]
            assert (await w.status()).node.state == "nothing"

            answer = await w.http.post("/api/pause", headers=secret, json={"seconds": 3600})
            assert answer.status_code == 200 and answer.json()["state"] == "paused"
            assert answer.json()["pause"]["reasons"] == ["hand"]
            while (told := await events.first("node"))["state"] != "paused":
                pass
            assert told["pause"]["reasons"] == ["hand"] and told["pause"]["until"] > told["pause"]["since"]
            (warning,) = [each for each in (await w.status()).warnings if each.code == "paused"]
            assert "resume" in warning.advice

            answer = await w.http.post("/api/resume", headers=cookie | own)
            assert answer.status_code == 200 and answer.json() == {"state": "nothing", "pause": None}
            assert (await w.status()).node.pause is None

    run(test)


def test_requests_that_make_no_sense_are_refused_in_a_line(tmp_path: Path) -> None:
    async def test() -> None:
        async with watched(place(), serving(), tmp_path) as w:
            secret = {"X-Panal-Token": read_token(w.folder.http_token)}
            for body, status in (
                (b"{", 400),
                (b'{"seconds": 0}', 400),
                (b'{"seconds": -5}', 400),
                (b'{"seconds": 1e300}', 400),
                (b'{"seconds": "long"}', 400),
                (b"[]", 400),
                (b" " * 2000, 413),
                (b"null", 200),
            ):
                answer = await w.http.post("/api/pause", headers=secret, content=body)
                assert answer.status_code == status, (body, answer.text)
            w.board.sources.pauser = None
            assert (await w.http.post("/api/pause", headers=secret)).status_code == 409
            for path in (
                "/api/nothing",
                "/static/nothing.js",
                "/static/..%2frouter.py",
                "/static/../token.py",
            ):
                assert (await w.http.get(path)).status_code == 404
            assert (await w.http.get("/api/pause")).status_code == 405
            assert (await w.http.get("/api/status", headers={"Host": "evil.example"})).status_code == 421

    run(test)


def test_before_there_is_a_node_it_says_so() -> None:
    async def test() -> None:
        async with trio.open_nursery() as nursery:
            door = HttpDoor(DoorSettings(listen=("127.0.0.1", 0)))
            board = StatusBoard(Sources())
            door.mount(make_routes(board, Token("0" * 64, "12D3KooWx")))
            await nursery.start(door.run)
            await nursery.start(board.run)
            async with httpx.AsyncClient(base_url=door.url) as http:
                for path in ("/api/status", "/api/events", "/metrics"):
                    answer = await http.get(path)
                    assert answer.status_code == 503 and "still starting" in answer.json()["error"]["message"]
            nursery.cancel_scope.cancel()

    run(test)
