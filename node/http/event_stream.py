"""Server-sent events whose source is cleaned up at once when the client goes.

Starlette's StreamingResponse iterates over a generator; if its task is cancelled while it sends, the
generator is left to the garbage collector, and so is what it holds. Here the source is a coroutine that
writes: what it holds, it holds in its own `with`, and cancelling ends it in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from node.http.exchange import LAST_WORDS

Write = Callable[[bytes], Awaitable[None]]
"""Sends bytes of the stream; returns when the system has taken them."""


class EventStream(Response):
    """A `text/event-stream` response.

    Args:
        source: writes the events; the stream ends when it returns. If it raises before it has written, the
            client gets that as a response of its own. Until then it may set headers, too.
        last_words: what ends the stream if the node ends first.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: Callable[[Write], Awaitable[None]],
        *,
        headers: Mapping[str, str] | None = None,
        last_words: bytes = b"",
    ) -> None:
        self.status_code = 200
        self.background = None
        self._source = source
        self._last_words = last_words
        # A proxy must not hold events back.
        self.init_headers({"X-Accel-Buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[LAST_WORDS] = self._last_words
        began = False

        async def begin() -> None:
            nonlocal began
            if not began:
                began = True
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )

        async def write(data: bytes) -> None:
            await begin()
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await self._source(write)
        await begin()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
