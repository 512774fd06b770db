"""Commands find the node that runs in a folder, and ask it over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.device.folder import NodeFolder
from node.device.lock import NodeLock
from node.device.running_node import NodeSilent, RunningNode, find_running
from routing.errors import LocalError
from routing.private_file import write_private


class Door(BaseHTTPRequestHandler):
    """Answers with what it was asked; /no refuses, /odd is no JSON."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: Any) -> None:
        told: dict[str, Any] = {
            "path": self.path,
            "body": body,
            "token": self.headers["X-Panal-Token"],
            "key": self.headers["Authorization"],
        }
        if self.path == "/no":
            told = {"error": {"message": "not\nwith this"}}
        data = b"<html>" if self.path == "/odd" else json.dumps(told).encode()
        self.send_response(403 if self.path == "/no" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    folder = NodeFolder(tmp_path)
    write_private(folder.http_token, b"t0ken\n", "token")
    return folder


def note(folder: NodeFolder, address: str, pid: int) -> None:
    folder.http.write_text(json.dumps({"address": address, "pid": pid, "version": "0.2.0"}))


def running(folder: NodeFolder, address: str) -> RunningNode:
    return RunningNode(folder, address, 1, "")


def test_asking(folder: NodeFolder, address: str) -> None:
    node = running(folder, address)
    assert node.get("/api/status") == {"path": "/api/status", "body": None, "token": None, "key": None}
    told = node.post("/api/pause", {"seconds": 5})
    assert told == {"path": "/api/pause", "body": {"seconds": 5}, "token": "t0ken", "key": None}


def test_a_node_that_wants_a_key(folder: NodeFolder, address: str, tmp_path: Path) -> None:
    write_private(tmp_path / "keys", b"# mine\n\nanna aaaaaaaaaaaaaaaaaaaa\n", "keys")
    node = RunningNode(folder, address, 1, "", tmp_path / "keys")
    assert node.get("/x")["key"] == "Bearer aaaaaaaaaaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("path", "told"),
    [("/no", "refuses GET /no: 403 not with this"), ("/odd", "answers to /odd is no JSON")],
)
def test_answers_that_are_none(folder: NodeFolder, address: str, path: str, told: str) -> None:
    with pytest.raises(LocalError) as caught:
        running(folder, address).get(path)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_nobody_answers(folder: NodeFolder) -> None:
    with pytest.raises(NodeSilent, match="does not answer: Connection refused"):
        running(folder, "http://127.0.0.1:9").get("/")
    for address in ("", "ftp://x", "http://", "http://[::1", "http://127.0.0.1:99999"):
        with pytest.raises(LocalError):
            running(folder, address).get("/")


def test_a_token_that_others_can_read_is_not_used(folder: NodeFolder, address: str) -> None:
    folder.http_token.chmod(0o644)
    with pytest.raises(LocalError, match="open to other users"):
        running(folder, address).post("/", {})


def test_who_is_found(folder: NodeFolder, address: str) -> None:
    import os

    assert find_running(folder) is None, "nobody has the lock"
    note(folder, address, os.getpid())
    assert find_running(folder) is None, "a killed node's note"
    with NodeLock.take(folder):
        found = find_running(folder)
        assert found is not None and found.address == address and found.version == "0.2.0"
        note(folder, address, os.getpid() + 1)
        assert find_running(folder) is None, "that of the one before"
        folder.http.write_text("{")
        assert find_running(folder) is None
