"""An expert server on a real QUIC socket of this process, and a client to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio

from node.engine.kernels import Kernels
from node.model.held import HeldExperts, hold
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.wire import holdings, messages
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine, ExpertsRequest
from tests.model_parts import ModelParts


def run(test: Callable[..., Awaitable[None]], *arguments: Any, seconds: float = 20) -> None:
    """trio.run with a bound on its time."""

    async def bounded() -> None:
        with trio.fail_after(seconds):
            await test(*arguments)

    trio.run(bounded)


def cells_of(model: ModelParts, experts: Sequence[range], layers: Sequence[int] | None = None) -> Cells:
    """Cells of a model: these runs of experts, in all layers or in some."""
    cells = Cells()
    for run_of_experts in experts:
        held: dict[tuple[int, str], HeldExperts] = {}
        for call in model.manifest.calls:
            if layers is None or call.layer in layers:
                held[call.layer, call.group] = hold(model.mapped, call, run_of_experts)
        cells.add(model.stored.model_id, model.manifest, held)
    return cells


def handlers_of(server: ExpertServer) -> dict[str, Handler]:
    return {messages.PROTOCOL_ID: server.serve_experts, holdings.PROTOCOL_ID: server.serve_slices}


@asynccontextmanager
async def listening(
    handlers: dict[str, Handler], identity: Identity | None = None, port: int = 0
) -> AsyncIterator[Endpoint]:
    """An endpoint on loopback."""
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(identity or Identity.generate(), listen=("127.0.0.1", port), handlers=handlers)
        await nursery.start(endpoint.run)
        yield endpoint
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(
    model: ModelParts, cells: Cells, name: str = "test"
) -> AsyncIterator[tuple[ExpertServer, Endpoint]]:
    """A server of these cells, with kernels of its own."""
    kernels = Kernels(model.library, threads=1)
    server = ExpertServer(cells, kernels, name=name)
    try:
        async with listening(handlers_of(server)) as endpoint:
            yield server, endpoint
    finally:
        server.close()
        kernels.close()


def address_of(endpoint: Endpoint) -> PeerAddress:
    return PeerAddress(*endpoint.local_address, endpoint.identity.peer_id)


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[Connection]:
    """A client's connection to it."""
    async with listening({}) as client:
        yield await client.connect(address_of(endpoint))


def request(
    model: ModelParts, layer: int = 0, *, rows: int = 3, experts: Sequence[int] = (0, 1), **changed: Any
) -> ExpertsRequest:
    """A right request: each row to all of `experts`; fields may be changed."""
    call = model.manifest.call(layer, 0)
    assert call is not None
    rng = np.random.default_rng(rows)
    x: Float32Array = rng.standard_normal((rows, call.n_in)).astype(np.float32)
    fields: dict[str, Any] = {
        "model_id": bytes.fromhex(model.stored.model_id),
        "layer": layer,
        "call_index": 0,
        "call_id": 7,
        "x": x,
        "counts": np.full(rows, len(experts), np.uint16),
        "experts": np.tile(np.array(experts, np.uint16), rows),
        "weights": rng.uniform(0.1, 1, rows * len(experts)).astype(np.float32),
        "n_out": call.n_out,
        "codec": Codec.F32,
        "codec_back": Codec.F32,
        "combine": Combine.ROWS,
        "deadline_ms": 10_000,
    }
    return ExpertsRequest(**{**fields, **changed})
