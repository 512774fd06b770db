"""An HTTP door on a thread of its own, and raw sockets to knock at it."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import trio
from starlette.routing import BaseRoute

from node.http.door import HttpDoor
from node.http.listening import DoorSettings

END_SECONDS = 15.0
"""A command promises 3; the machine may be busy."""

WAIT_SECONDS = 30.0
"""For a byte that must come; the machine may be busy."""


class OpenDoor:
    """Runs a door; `with OpenDoor(routes) as door`.

    Attributes:
        ended_in: seconds from being cancelled to its end.
        beside: what else runs in its nursery.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        settings: DoorSettings | None = None,
        beside: Callable[[], Any] | None = None,
    ) -> None:
        self.door = HttpDoor(settings or DoorSettings(("127.0.0.1", 0)))
        self.door.mount(routes)
        self._beside = beside
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self.ended_in = -1.0

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.door.run)
                if self._beside is not None:
                    nursery.start_soon(self._beside)
                self._ready.set()

    def end(self) -> None:
        """Cancel it and wait for its end."""
        if self._thread.is_alive():
            begun = time.monotonic()
            assert self._token is not None
            self._token.run_sync_soon(self._scope.cancel)
            self._thread.join(WAIT_SECONDS)
            assert not self._thread.is_alive()
            self.ended_in = time.monotonic() - begun

    def __enter__(self) -> OpenDoor:
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def knock(self) -> Knocking:
        """A new connection."""
        return Knocking((self.door.host, self.door.port))

    def ask(self, head: str, body: bytes = b"", *, host: str | None = "localhost") -> Response:
        """One request on a connection of its own; `head` is its line and headers without the Host."""
        return ask((self.door.host, self.door.port), head, body, host=host)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to become true."""
        until(condition)


def ask(place: tuple[str, int], head: str, body: bytes = b"", *, host: str | None = "localhost") -> Response:
    """One request on a connection of its own; `head` is its line and headers without the Host."""
    with Knocking(place) as knocking:
        knocking.send(request(head, body, host=host))
        return knocking.response(no_body=head.startswith("HEAD"))


def until(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.01)


def request(head: str, body: bytes = b"", *, host: str | None = "localhost") -> bytes:
    """The bytes of a request."""
    lines = head.split("\n")
    if host is not None:
        lines.insert(1, f"Host: {host}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass(frozen=True)
class Response:
    """What came back.

    Attributes:
        headers: names in lower case.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error, whose shape is checked."""
        found = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        assert isinstance(found["message"], str) and "\n" not in found["message"]
        assert isinstance(found, dict)
        return found


class Knocking:
    """A raw connection."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.socket = socket.create_connection(place, timeout=WAIT_SECONDS)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, mark: bytes) -> bytes:
        """Bytes up to and with a mark."""
        while mark not in self._buffer:
            data = self.socket.recv(65536)
            assert data, f"closed before {mark!r}: {self._buffer!r}"
            self._buffer += data
        found, self._buffer = (
            self._buffer[: (end := self._buffer.index(mark) + len(mark))],
            self._buffer[end:],
        )
        return found

    def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self.socket.recv(65536)
            assert data, "closed in the middle"
            self._buffer += data
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def rest(self) -> bytes:
        """All until the other end closes."""
        found, self._buffer = self._buffer, b""
        while data := self.socket.recv(65536):
            found += data
        return found

    def is_closed(self) -> bool:
        """Whether the other end closes without another byte."""
        try:
            return not self._buffer and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def head(self) -> tuple[int, dict[str, str]]:
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", lines[0])
        assert found is not None, lines[0]
        headers = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return int(found[1]), headers

    def response(self, *, no_body: bool = False) -> Response:
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if no_body or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Response(status, headers, body)

    def chunk(self) -> bytes:
        """One chunk; b"" is the last."""
        size = int(self.until(b"\r\n"), 16)
        return self.exactly(size + 2)[:-2]

    def __enter__(self) -> Knocking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
