"""Routes of every kind to put behind a door, and what became of those who came."""

from __future__ import annotations

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from node.http.caller import caller_of
from node.http.event_stream import EventStream, Write
from node.http.refusals import Refusal
from routing.errors import LocalError


class Shop:
    """Routes, and what became of those who came."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.waiting = 0

    async def hello(self, request: Request) -> Response:
        return PlainTextResponse(f"hello {request.url.path}")

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        return JSONResponse({"length": len(body), "start": body[:20].decode("latin-1")})

    async def who(self, request: Request) -> Response:
        caller = caller_of(request.scope)
        return JSONResponse({"address": caller.address, "key": caller.key})

    async def wait(self, request: Request) -> Response:
        """Answers never; notes that its client has left."""
        await request.body()
        self.waiting += 1
        try:
            await trio.sleep_forever()
        finally:
            self.waiting -= 1
            self.left.append("wait")

    async def flood(self, request: Request) -> Response:
        """More than any socket takes."""
        return EventStream(self._flood)

    async def _flood(self, write: Write) -> None:
        self.waiting += 1
        try:
            while True:
                await write(b"x" * 65536)
        finally:
            self.waiting -= 1
            self.left.append("flood")

    async def stream(self, request: Request) -> Response:
        return EventStream(self._stream, last_words=b"data: ending\n\n")

    async def _stream(self, write: Write) -> None:
        self.waiting += 1
        try:
            await write(b"data: one\n\n")
            await trio.sleep_forever()
        finally:
            self.waiting -= 1
            self.left.append("stream")

    async def refuse(self, request: Request) -> Response:
        async with trio.open_nursery():  # as handlers that do several things at once raise it: in a group
            raise Refusal(429, "later", code="busy", headers=[("Retry-After", "7")])

    async def local(self, request: Request) -> Response:
        raise LocalError("the model is in pieces: put it together")

    async def bug(self, request: Request) -> Response:
        raise ZeroDivisionError("secret")

    async def late_bug(self, request: Request) -> Response:
        return EventStream(self._late_bug)

    async def _late_bug(self, write: Write) -> None:
        await write(b"data: one\n\n")
        raise ZeroDivisionError

    def routes(self) -> list[Route]:
        return [
            Route("/", self.hello),
            Route("/v1/hello", self.hello),
            Route("/echo", self.echo, methods=["POST"]),
            Route("/who", self.who),
            Route("/wait", self.wait, methods=["GET", "POST"]),
            Route("/flood", self.flood),
            Route("/stream", self.stream),
            Route("/refuse", self.refuse),
            Route("/local", self.local),
            Route("/bug", self.bug),
            Route("/late-bug", self.late_bug),
        ]
