"""Nodes of this process that share a model, honestly or not, and a model whose experts are several chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from node.config import ModelRef
from node.engine.library import Library
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.store import Store
from node.ranges import Ranges
from node.share.getting import Got, Wanted, get_model
from node.share.giving import share_model
from node.share.sending import Answer, Sender, SentCounts
from node.share.share_list import Share
from node.share.sharing import Sharing
from node.swarm.place import Place
from routing.errors import PeerError
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import cells as cells_wire
from routing.wire import holdings, model_files
from routing.wire.experts import Refusal
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION
from scripts.bench.engine_model import Shape, make
from tests.served import address_of, listening

SHAPE = Shape(
    layers=2, embd=512, ff=768, experts=4, used=2, heads=4, kv_heads=4, head_size=128, vocab=1024, context=256
)
"""Experts of 765 KB, three chunks each: 6 MB of them, and a trunk of 3 MB."""

FAST = 1e9  # bytes a second: as if there were no bound


def make_model(library: Library, folder: Path) -> Path:
    """The model's file."""
    path = folder / "wide.gguf"
    make(library, SHAPE, path)
    return path


def with_metadata(source: Path, target: Path, changed: Mapping[str, GGUFValue]) -> Path:
    """The same tensors, other metadata: the same model."""
    model = open_model(source)
    with MappedModel(model) as mapped:
        tensors = [
            TensorToWrite(name, tensor.shape, tensor.type, bytes(mapped.tensor_view(name)))
            for name, tensor in model.tensors.items()
        ]
        write_gguf(target, {**model.metadata, **changed}, tensors)
    return target


def share(library: Library, store: Store, path: Path, name: str | None = None) -> Share:
    return share_model(library, store, ModelRef(path=path), name, lambda what, done, total: None)


Lie = Callable[[Any, bytes], bytes]
"""(request, the right answer) -> what is sent."""


class LyingSender(Sender):
    """Changes what it sends."""

    def __init__(self, lie: Lie, *, rate: float = FAST) -> None:
        super().__init__(rate=rate)
        self._lie = lie

    async def serve(
        self,
        stream: Stream,
        counts: SentCounts,
        max_request: int,
        admit: Callable[[bytes, str], Answer | Refusal],
    ) -> None:
        decode = (
            cells_wire.decode_message
            if max_request == cells_wire.REQUEST_BYTES
            else model_files.decode_message
        )

        def admit_and_lie(message: bytes, refused: str) -> Answer | Refusal:
            admitted = admit(message, refused)
            if isinstance(admitted, Refusal):
                return admitted
            request = decode(message)

            async def read() -> bytes:
                return self._lie(request, bytes(await admitted.read()))

            return Answer(admitted.header, admitted.length, read)

        await super().serve(stream, counts, max_request, admit_and_lie)


@asynccontextmanager
async def giving(
    store: Store, *, rate: float = FAST, lie: Lie | None = None, identity: Identity | None = None
) -> AsyncIterator[tuple[Sharing, Endpoint]]:
    """A node that gives what its store's share list names."""
    sharing = Sharing(store, rate=rate)
    if lie is not None:
        liar = LyingSender(lie, rate=rate)
        sharing.cells._sender = sharing.models._sender = liar
    try:
        handlers = {**sharing.handlers, holdings.PROTOCOL_ID: _serves_nothing}
        async with listening(handlers, identity) as endpoint:
            yield sharing, endpoint
    finally:
        sharing.close()


async def _serves_nothing(stream: Stream) -> None:
    told = holdings.encode_holdings(Holdings([VERSION], "giver", [], [], [], 1))
    while True:
        try:
            message = await stream.receive_message(holdings.MAX_REQUEST_BYTES)
        except (StreamClosed, PeerError):
            return
        holdings.decode_request(message, peer=stream.peer_id)
        await stream.send_message(told)


async def get(endpoints: list[Endpoint], store: Store, what: str, folder: Path, **changed: Any) -> Got:
    """Fetch from these; by default trunk and all cells."""
    fields: dict[str, Any] = {"trunk": True, "cells": True, "layers": None, "experts": None}
    for name in ("layers", "experts"):
        if isinstance(changed.get(name), str):
            changed[name] = Ranges.parse(changed[name])
    on_progress = changed.pop("on_progress", lambda done, total, peers: None)
    progress = changed.pop("progress", lambda what, done, total: None)
    wanted = Wanted(what, folder=folder, **{**fields, **changed})
    place = Place.among([address_of(each) for each in endpoints], identity=Identity.generate())
    return await get_model(place, store, None, wanted, progress=progress, on_progress=on_progress)
