"""The partner that is a node in this very process: its API's routes are called without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from starlette.routing import Router

from node.app.answering import AnsweringPart
from node.chat.events import EventReader, Refused, refusal_in
from node.gateway.app import make_gateway
from node.http.caller import SCOPE_KEY, Caller
from node.http.exchange import refusal_of

CHAT_PATH = "/v1/chat/completions"

Message = MutableMapping[str, Any]


class InsidePartner:
    """A node's answers, within its process."""

    def __init__(self, answering: AnsweringPart) -> None:
        self._application = Router(routes=make_gateway(answering.standing))
        self.model = answering.model
        self.where = "a node that runs for this chat"

    @asynccontextmanager
    async def ask(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """As `Partner` says."""
        send, receive = trio.open_memory_channel[Message](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._respond, msgspec.json.encode(body), send)
            yield _chunks(receive)
            nursery.cancel_scope.cancel()

    async def _respond(self, body: bytes, messages: trio.MemorySendChannel[Message]) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT_PATH,
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            SCOPE_KEY: Caller("here"),
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async with messages:
            try:
                await self._application(scope, receive, messages.send)
            except Exception as error:  # noqa: BLE001 - as the HTTP door does it
                refusal = msgspec.json.encode(refusal_of(error).as_dict())
                await messages.send({"type": "http.response.start", "status": 500})
                await messages.send({"type": "http.response.body", "body": refusal})


async def _chunks(messages: trio.MemoryReceiveChannel[Message]) -> AsyncIterator[dict[str, Any]]:
    reader = EventReader()
    status, told = 0, b""
    async for message in messages:
        status = message.get("status", status)
        data = message.get("body", b"")
        if status != 200:
            told += data
            continue
        for chunk in reader.feed(data):
            yield chunk
    if status != 200:
        raise refusal_in(told, "no answer came") if told else Refused("no answer came")
