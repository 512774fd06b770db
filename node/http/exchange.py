"""One request and its response: ASGI on one side, h11 on the other.

While the application runs, a second task reads: first the body, then to notice that the client has gone,
which cancels the application. So whatever it does for a client ends when the client does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import h11
import trio
from starlette.exceptions import HTTPException

from node.http.caller import SCOPE_KEY, Caller
from node.http.guard import MAX_BODY_BYTES, Admitted, too_large
from node.http.refusals import Refusal
from node.http.response_headers import complete
from node.http.wire import ClientGone, Sendable, Wire, in_words
from routing.errors import PanalError

log = logging.getLogger("panal.http")

MAX_BODIES_BYTES = 64 << 20
"""Of all requests that are being handled, together."""

BODY_SECONDS = 20.0
BODY_RATE = 16 << 10
"""A body has BODY_SECONDS, and a second more for each BODY_RATE bytes of it: a slow line at its best."""

MOST_CRUMBS, CRUMB_BYTES = 4096, 64
"""So many pieces of a body may be smaller than that on average. Taking one costs as much time as sending the
whole body in one does."""

LAST_WORDS = "panal.last_words"
"""Where an application leaves the bytes that end its unfinished response when the node ends."""

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class Bodies:
    """The memory that requests' bodies take, of all connections."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Count bytes that have come.

        Raises:
            Refusal: there are too many.
        """
        if self.n_bytes + n_bytes > MAX_BODIES_BYTES:
            raise Refusal(
                503,
                "too many large requests at once: try again in a moment",
                code="busy",
                headers=[("Retry-After", "1")],
            )
        self.n_bytes += n_bytes


class Exchange:
    """One request. `run` it once.

    Args:
        client, server: (address, port) of both ends.
    """

    def __init__(
        self,
        wire: Wire,
        request: h11.Request,
        admitted: Admitted,
        application: Application,
        bodies: Bodies,
        *,
        client: tuple[str, int],
        server: tuple[str, int],
    ) -> None:
        self._wire = wire
        self._application = application
        self._bodies = bodies
        self._is_head = request.method == b"HEAD"
        self._scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": admitted.path,
            "raw_path": admitted.raw_path,
            "query_string": admitted.query,
            "root_path": "",
            "headers": list(request.headers),
            "client": client,
            "server": server,
            "app": application,
            SCOPE_KEY: Caller(client[0], admitted.key),
        }
        self._working = trio.CancelScope()
        self._head: Message | None = None
        self._started = self._finished = False
        self._gone = self._ending = False
        self._refusal: Refusal | None = None
        self._body: list[bytes] = []
        self._body_bytes = self._pieces = 0
        self._body_ended = self._body_given = False
        self._news = trio.Event()

    async def run(self) -> None:
        """Have the request answered, or turned down.

        Raises:
            ClientGone: nobody takes the answer.
        """
        if self._wire.http.they_are_waiting_for_100_continue:
            await self._wire.send(h11.InformationalResponse(status_code=100, headers=[]))
        try:
            if self._take_body():  # most have no body, or it came with the head
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    await self._work()
                    nursery.cancel_scope.cancel()
        finally:
            self._bodies.n_bytes -= self._body_bytes
        if self._gone or self._wire.is_broken:
            raise ClientGone
        await self._conclude()

    def end(self) -> None:
        """The node ends: stop the application."""
        self._ending = True
        self._working.cancel()

    # --- the two tasks ---

    async def _work(self) -> None:
        with self._working:
            try:
                await self._application(self._scope, self._receive, self._send)
            except Exception as error:  # noqa: BLE001 the task boundary: a handler's error becomes a response
                if not (self._gone or self._wire.is_broken):
                    self._refuse(refusal_of(error))

    async def _read(self) -> None:
        begun = trio.current_time()
        while not self._body_ended:
            deadline = begun + BODY_SECONDS + self._body_bytes / BODY_RATE
            with trio.move_on_at(deadline) as waiting:
                try:
                    if not await self._wire.read():
                        return self._leave()
                except ClientGone:
                    return self._leave()
            if waiting.cancelled_caught:
                return self._refuse(Refusal(408, "the request's body did not come in time", code="timeout"))
            if not self._take_body():
                return None
        await self._wire.watch()
        return self._leave()

    def _take_body(self) -> bool:
        """Take what has come of the body. False: it is refused, and so is the request."""
        try:
            while (event := self._wire.http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    if self._body_bytes + len(event.data) > MAX_BODY_BYTES:
                        raise too_large()
                    self._bodies.take(len(event.data))
                    self._body_bytes += len(event.data)
                    self._pieces += 1
                    if self._pieces > max(MOST_CRUMBS, self._body_bytes // CRUMB_BYTES):
                        raise Refusal(400, "the request's body comes in crumbs: send larger chunks")
                    self._body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._body_ended = True
                    break
            self._news.set()
        except h11.RemoteProtocolError as error:
            self._refuse(Refusal(400, f"the request's body is no HTTP: {in_words(error)}"))
            return False
        except Refusal as refusal:
            self._refuse(refusal)
            return False
        return True

    def _leave(self) -> None:
        self._gone = True
        self._working.cancel()

    def _refuse(self, refusal: Refusal) -> None:
        # Its traceback leads to this frame and to all that the handler held: a cycle, kept until Python looks
        # for those, which megabytes of text do not make it do.
        refusal.__traceback__ = refusal.__cause__ = refusal.__context__ = None
        self._refusal = refusal
        self._working.cancel()

    # --- ASGI ---

    async def _receive(self) -> Message:
        while not (self._body or self._body_ended):
            self._news = trio.Event()
            await self._news.wait()
        if self._body_given:  # nothing follows but the client's going, which cancels whoever waits here
            if not self._finished:
                await trio.sleep_forever()
            return {"type": "http.disconnect"}
        data, self._body = b"".join(self._body), []
        self._body_given = self._body_ended
        return {"type": "http.request", "body": data, "more_body": not self._body_ended}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if message["type"] != "http.response.body" or self._head is None or self._finished:
            raise RuntimeError(f"{message['type']} may not come now")
        events: list[Sendable] = []
        if not self._started:
            events.append(self._response(self._head["status"], self._head.get("headers", ())))
            self._started = True
        data = message.get("body", b"")
        if data and not self._is_head:
            events.append(h11.Data(data=bytes(data)))
        if self._is_head or not message.get("more_body", False):
            events.append(h11.EndOfMessage())
            self._finished = True
        try:
            await self._wire.send(*events)
        except ClientGone:
            self._leave()
            await trio.lowlevel.checkpoint()  # Cancelled, unless whoever sends is shielded
            raise
        if self._is_head and message.get("more_body", False):
            self._working.cancel()  # a stream without end has been told of by its head
            await trio.lowlevel.checkpoint()

    def _response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> h11.Response:
        # Whoever answers before it has read the body does not wait for the rest of it.
        closes = self._ending or not self._body_ended
        return h11.Response(status_code=status, headers=complete(headers, time.time(), closes=closes))

    # --- how it ends ---

    async def _conclude(self) -> None:
        """Send what is missing, or break off what cannot be finished."""
        if self._finished:
            return
        if self._started:
            words = self._scope.get(LAST_WORDS, b"") if self._ending else b""
            if not words or self._is_head:
                raise ClientGone  # without its end the client sees that the response is not whole
            await self._wire.send(h11.Data(data=words), h11.EndOfMessage())
            return
        if self._refusal is None and self._ending:
            self._refusal = Refusal(503, "this node is ending", code="ending")
        refusal = self._refusal or Refusal(500, "internal error: the request was not answered")
        await self._wire.send(*self._turned_down(refusal))

    def _turned_down(self, refusal: Refusal) -> list[Sendable]:
        body = refusal.body()
        headers = refusal_headers(refusal, body)
        events: list[Sendable] = [self._response(refusal.status, headers)]
        if not self._is_head:
            events.append(h11.Data(data=body))
        return [*events, h11.EndOfMessage()]


def refusal_headers(refusal: Refusal, body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of its response."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in refusal.headers),
    ]


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told of an error that a handler raised."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, Refusal)), error.exceptions[0])
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):  # starlette's router: no such path, or not by this method
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = {
            404: "there is nothing at this path",
            405: "this path is not asked for by this method",
        }.get(error.status_code, error.detail)
        return Refusal(error.status_code, message, code=code, headers=[*(error.headers or {}).items()])
    if isinstance(error, PanalError):
        return Refusal(500, str(error))
    log.error("a request failed: this is a bug", exc_info=error)
    return Refusal(500, "internal error: see the node's log")
