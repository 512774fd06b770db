"""The partner that is a node which runs already."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from node.chat.events import EventReader, Refused, refusal_in
from node.device.running_node import RunningNode
from routing.errors import LocalError

CHAT_PATH, HEALTH_PATH = "/v1/chat/completions", "/health"
CONNECT_SECONDS = 5.0
"""To this machine; the event loop may be busy for one or two."""
POLL_SECONDS = 0.5
"""Between looks at a model that is being opened."""
READ_BYTES = 1 << 16
MOST_ERROR_BYTES = 1 << 20


class HttpPartner:
    """A node that runs here, by its API."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self.model = ""

    @property
    def where(self) -> str:
        return f"the node at {self._running.address}"

    async def ready(self, report: Callable[[str], None]) -> None:
        """Wait until it has opened its model.

        Args:
            report: told what it waits for.

        Raises:
            LocalError: it has none, or does not answer.
        """
        while True:
            status, told = await trio.to_thread.run_sync(self._health, abandon_on_cancel=True)
            self.model = str(told.get("model") or "")
            if status == 200 or (self.model and told.get("status") != "loading"):
                return
            if not self.model:
                raise LocalError(f"{self.where} runs no model: name one in [backbone] of its config")
            report(str(told.get("why") or "opening the model"))
            await trio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def ask(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """As `Partner` says."""
        exchange = _Exchange(self._running)
        try:
            await trio.to_thread.run_sync(exchange.send, body, abandon_on_cancel=True)
            yield _chunks(exchange)
        finally:
            exchange.close()

    def _health(self) -> tuple[int, dict[str, Any]]:
        connection = _connection(self._running, CONNECT_SECONDS)
        try:
            connection.request("GET", HEALTH_PATH, headers=self._running.key_headers())
            answer = connection.getresponse()
            told = json.loads(answer.read(MOST_ERROR_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise self._running.silent(error) from None
        except (ValueError, RecursionError):
            told = None
        finally:
            connection.close()
        if not isinstance(told, dict) or answer.status not in (200, 503):
            raise LocalError(f"{self.where} does not tell how its model is: {answer.status} {answer.reason}")
        return answer.status, told


class _Exchange:
    """One request and what comes of it; on threads, as http.client blocks."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._connection = _connection(running, CONNECT_SECONDS)
        self._socket: socket.socket | None = None
        self._answer: http.client.HTTPResponse | None = None
        self._closed = False

    def send(self, body: Mapping[str, Any]) -> None:
        """Ask; comes back when the answer begins, which takes as long as the prompt does."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            if self._closed:
                self.close()
            self._socket.settimeout(None)
            data = json.dumps(body).encode()
            self._connection.request("POST", CHAT_PATH, data, headers | self._running.key_headers())
            self._answer = answer = self._connection.getresponse()
            if answer.status != 200:
                raise refusal_in(
                    answer.read(MOST_ERROR_BYTES), f"the node refuses: {answer.status} {answer.reason}"
                )
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None

    def read(self) -> bytes:
        """What has come; b"" at the end."""
        assert self._answer is not None
        try:
            return self._answer.read1(READ_BYTES)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # The last two: another thread closed it meanwhile.
            raise self._lost(error) from None

    def close(self) -> None:
        """Hang up: the node gives the answer up, and whoever reads here comes back."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _lost(self, error: Exception) -> Refused:
        return Refused(str(self._running.silent(error)))


async def _chunks(exchange: _Exchange) -> AsyncIterator[dict[str, Any]]:
    reader = EventReader()
    while data := await trio.to_thread.run_sync(exchange.read, abandon_on_cancel=True):
        for chunk in reader.feed(data):
            yield chunk


def _connection(running: RunningNode, seconds: float) -> http.client.HTTPConnection:
    host, port = running.place()
    return http.client.HTTPConnection(host, port, timeout=seconds)
