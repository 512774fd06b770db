"""Expert servers whose answers look right and are not: what only an audit finds."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from node.engine.kernels import Kernels
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import messages
from routing.wire.codecs import Float32Array
from routing.wire.experts import ExpertsAnswer, ExpertsRequest, Refusal
from tests.model_parts import ModelParts
from tests.served import handlers_of, listening

Lie = Callable[[Float32Array], Float32Array]


def scaled(y: Float32Array) -> Float32Array:
    """All of it, a hundredth larger."""
    return y * np.float32(1.01)


def garbage(y: Float32Array) -> Float32Array:
    """Nothing was computed; the size is right."""
    rows = np.random.default_rng(5).standard_normal(y.shape).astype(np.float32)
    return rows * np.float32(np.abs(y).mean())


def stale() -> Lie:
    """What was right for a call before this one."""
    before: dict[tuple[int, ...], Float32Array] = {}

    def lie(y: Float32Array) -> Float32Array:
        old = before.get(y.shape)
        before[y.shape] = y
        return y if old is None else old

    return lie


class LyingServer(ExpertServer):
    """Computes as it should, and says something else.

    Attributes:
        lie: what becomes of an answer; None while it is honest.
        lies: how many there were.
        seen: all that it was asked.
    """

    lie: Lie | None = None
    lies = 0

    def __init__(self, cells: Cells, kernels: Kernels, *, name: str) -> None:
        super().__init__(cells, kernels, name=name)
        self.seen: list[ExpertsRequest] = []

    async def _reply(self, message: bytes, stream: Stream, *more: object) -> ExpertsAnswer | Refusal:
        request = messages.decode_message(message)
        assert isinstance(request, ExpertsRequest)
        self.seen.append(request)
        reply = await super()._reply(message, stream, *more)
        if self.lie is None or not isinstance(reply, ExpertsAnswer):
            return reply
        self.lies += 1
        return dataclasses.replace(reply, y=self.lie(reply.y))


@asynccontextmanager
async def lying(
    model: ModelParts, cells: Cells, lie: Lie | None = None
) -> AsyncIterator[tuple[LyingServer, Endpoint]]:
    """A server of these cells that may lie, with kernels of its own."""
    kernels = Kernels(model.library, threads=1)
    server = LyingServer(cells, kernels, name="liar")
    server.lie = lie
    try:
        async with listening(handlers_of(server)) as endpoint:
            yield server, endpoint
    finally:
        server.close()
        kernels.close()
