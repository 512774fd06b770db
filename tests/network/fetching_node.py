"""A node that fetches all cells of a model while it calls experts, and prints a line of JSON.

`python -m tests.network.fetching_node ADDRESS FOLDER`; FOLDER holds manifest.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import trio

from node.home.call_bits import cells_of
from node.home.fetch import FetchResult, fetch_cells
from node.home.fetched import FetchedCells
from node.model.manifest import decode_manifest
from routing.dispatch.holders import Holder, LayerHolders
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.wire.codecs import Codec
from routing.wire.experts import Combine, ExpertsRequest

SETTLE_SECONDS = 3.0  # what warming the windows up takes (routing.quic.warmup)
CALLS = 40


async def main(address: PeerAddress, folder: Path) -> None:
    manifest = decode_manifest((folder / "manifest.json").read_bytes())
    call = manifest.calls[0]
    request = ExpertsRequest(
        model_id=bytes.fromhex(manifest.model_id()),
        layer=call.layer,
        call_index=0,
        call_id=1,
        x=np.full((2, call.n_in), 0.1, np.float32),
        counts=np.full(2, 4, np.uint16),
        experts=np.tile(np.arange(4, dtype=np.uint16), 2),
        weights=np.full(8, 0.25, np.float32),
        n_out=call.n_out,
        codec=Codec.F32,
        codec_back=Codec.F32,
        combine=Combine.ROWS,
        deadline_ms=10_000,
    )
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=("0.0.0.0", 0), accept=False)
        await nursery.start(endpoint.run)
        connection = await endpoint.connect(address)
        peer = QuicExpertPeer(connection)
        await trio.sleep(SETTLE_SECONDS)
        took: list[float] = []

        async def calls() -> None:
            while True:
                begun = time.perf_counter()
                await peer.call(request)
                took.append(time.perf_counter() - begun)

        async def alone() -> None:
            with trio.CancelScope() as scope:
                nursery.start_soon(stop_after, scope)
                await calls()

        async def stop_after(scope: trio.CancelScope) -> None:
            while len(took) < CALLS:
                await trio.sleep(0.01)
            scope.cancel()

        await alone()
        before, took = took, []
        every = {each.layer: range(each.n_experts) for each in manifest.calls}
        with FetchedCells(folder, manifest) as into:
            result: FetchResult | None = None
            begun = time.perf_counter()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as beside:
                    beside.start_soon(calls)
                    result = await fetch_cells(
                        into,
                        cells_of(manifest, every),
                        holders=lambda layer, index: LayerHolders(
                            layer, (Holder.of(connection.peer_id, range(call.n_experts)),)
                        ),
                        connection_to=lambda peer_id: connection,
                    )
                    seconds = time.perf_counter() - begun
                    scope.cancel()
            assert result is not None
            print(
                json.dumps(
                    {
                        "cells": result.cells,
                        "missing": len(result.missing),
                        "bytes": into.n_bytes,
                        "seconds": seconds,
                        "alone": statistics.median(before),
                        "beside": statistics.median(took),
                        "calls": len(took),
                    }
                )
            )
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, PeerAddress.parse(sys.argv[1]), Path(sys.argv[2]))
