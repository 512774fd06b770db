"""Bytes per token and layer, as the wire counts them: a real backbone over real servers on loopback.

Each server is an `ExpertServer` behind a UDP relay that counts what passes. Experts are dealt out at random,
evenly, anew for every layer, by a seed; for stable whole runs of them. Passes have one token. Two counts are
taken of the same calls:

    messages    requests and answers with the lengths before them, from the calls' own CallStats
    link        datagrams in both directions with their IPv4 and UDP headers, from the relays: QUIC's packets,
                acknowledgements and all; what PINGs take meanwhile is measured and left out
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from node.decode.backbone import Backbone
from node.decode.expert_port import SwarmPort
from node.decode.live_backbone import call_shapes
from node.engine.context import Row
from node.engine.expert_holes import ExpertInputs
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.model.gguf.map import MappedModel
from node.model.held import hold
from node.model.manifest import Manifest
from node.model.store import StoredModel
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from routing.dispatch.call import WireSettings
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.table import HolderTable
from routing.wire import messages
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine
from routing.wire.holdings import Holdings
from scripts.bench.wire_relay import CountingRelay, idle_rates, relayed, settled, totals

SEED = 4190
WARM_PASSES = 4  # before anything is counted: streams are opened, graphs built


@dataclass(frozen=True)
class Step:
    """One way to ask."""

    combine: Combine
    codec: Codec

    @property
    def whole_runs(self) -> bool:
        return self.combine is Combine.STABLE

    @property
    def name(self) -> str:
        return f"{self.combine.name.lower()} {self.codec.name.lower()}"


STEPS = (
    Step(Combine.ROWS, Codec.F32),
    *(Step(Combine.SUM, codec) for codec in Codec),
    *(Step(Combine.STABLE, codec) for codec in Codec),
)


@dataclass(frozen=True)
class Count:
    """What one step took over one number of servers.

    Attributes:
        step, servers: which.
        asked: for each call, the experts that each server that was asked computed.
        out, back: bytes of all messages.
        datagrams, on_link: in both directions.
    """

    step: str
    servers: int
    asked: tuple[tuple[tuple[int, ...], ...], ...]
    out: int
    back: int
    datagrams: float
    on_link: float

    @property
    def calls(self) -> int:
        return len(self.asked)

    @property
    def servers_asked(self) -> float:
        return sum(map(len, self.asked)) / self.calls

    @property
    def message_bytes(self) -> float:
        """Per token and layer."""
        return (self.out + self.back) / self.calls

    @property
    def link_bytes(self) -> float:
        """Per token and layer."""
        return self.on_link / self.calls


def raw_baseline(n_in: int, n_out: int, n_used: int) -> int:
    """Bytes per token and layer of the naive protocol: each expert alone gets the f32 row and returns one.

    No headers, no ids: nothing but numbers.
    """
    return n_used * 4 * (n_in + n_out)


def deal(manifest: Manifest, servers: int, *, whole_runs: bool = False) -> list[dict[int, list[int]]]:
    """For each server its experts by layer: evenly at random, one by one or in whole runs."""
    rng = np.random.default_rng([SEED, servers])
    dealt: list[dict[int, list[int]]] = [{} for _ in range(servers)]
    for call in manifest.calls:
        length = call.run_length if whole_runs else 1
        pieces = [range(i, min(i + length, call.n_experts)) for i in range(0, call.n_experts, length)]
        for number, share in enumerate(np.array_split(rng.permutation(len(pieces)), servers)):
            dealt[number][call.layer] = sorted(expert for piece in share for expert in pieces[piece])
    return dealt


async def count(
    library: Library,
    stored: StoredModel,
    mapped: MappedModel,
    *,
    servers: int,
    tokens: int,
    steps: Sequence[Step] = STEPS,
) -> list[Count]:
    """Run the same tokens by every step over so many servers."""
    found: list[Count] = []
    for whole_runs in (False, True):
        chosen = [step for step in steps if step.whole_runs is whole_runs]
        if chosen:
            dealt = deal(stored.manifest, servers, whole_runs=whole_runs)
            found += await _count_over(library, stored, mapped, dealt, chosen, tokens)
    return found


async def _count_over(
    library: Library,
    stored: StoredModel,
    mapped: MappedModel,
    dealt: list[dict[int, list[int]]],
    steps: Sequence[Step],
    tokens: int,
) -> list[Count]:
    async with AsyncExitStack() as stack:
        relays: list[CountingRelay] = []
        peers: dict[str, QuicExpertPeer] = {}
        told: dict[str, Holdings] = {}
        client = await stack.enter_async_context(_listening({}))
        for share in dealt:
            kernels = Kernels(library, threads=1)
            stack.callback(kernels.close)
            server = ExpertServer(_cells(stored, mapped, share), kernels, name="bench")
            stack.callback(server.close)
            endpoint = await stack.enter_async_context(
                _listening({messages.PROTOCOL_ID: server.serve_experts})
            )
            relay = await stack.enter_async_context(relayed(endpoint.local_address))
            peer_id = endpoint.identity.peer_id
            peer = QuicExpertPeer(await client.connect(PeerAddress(*relay.address, peer_id)))
            relays.append(relay)
            peers[peer_id] = peer
            told[peer_id] = server.holdings
        await settled(relays)
        idle = await idle_rates(relays)
        found = []
        for step in steps:
            table = HolderTable(stored.model_id, call_shapes(stored.manifest, step.combine))
            for each, holdings in told.items():
                table.connected(each, holdings)
            port = SwarmPort(
                stored.model_id,
                cells=Cells(),
                kernels=kernels,
                table=table,
                peers=lambda peer_id: peers.get(peer_id),
                settings=WireSettings(step.codec, step.codec, step.combine),
            )
            found.append(await _count_step(library, stored, port, step, dealt, relays, idle, tokens))
        return found


async def _count_step(
    library: Library,
    stored: StoredModel,
    port: SwarmPort,
    step: Step,
    dealt: list[dict[int, list[int]]],
    relays: Sequence[CountingRelay],
    idle: tuple[float, float],
    tokens: int,
) -> Count:
    watched = _Watched(port)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.run)
        backbone = await trio.to_thread.run_sync(
            lambda: Backbone(library, stored, watched, n_ctx=256, n_ubatch=64, threads=1)
        )
        try:
            rng = np.random.default_rng(SEED)
            ids = [int(each) for each in rng.integers(0, backbone.model.n_vocab, WARM_PASSES + tokens)]
            await trio.to_thread.run_sync(_passes, backbone, ids[:WARM_PASSES], 0)
            watched.ids.clear()
            before = totals(relays)
            out, back, begun = port.ledger.bytes_out, port.ledger.bytes_back, trio.current_time()
            await trio.to_thread.run_sync(_passes, backbone, ids[WARM_PASSES:], WARM_PASSES)
            seconds = trio.current_time() - begun
            await trio.sleep(0.05)  # the last acknowledgements
            after = totals(relays)
        finally:
            backbone.close()
        nursery.cancel_scope.cancel()
    counted = [after[i] - before[i] - idle[i] * (seconds + 0.05) for i in range(2)]
    return Count(
        step.name,
        len(dealt),
        tuple(_by_server(layer, ids, dealt) for layer, ids in watched.ids),
        port.ledger.bytes_out - out,
        port.ledger.bytes_back - back,
        *counted,
    )


def _passes(backbone: Backbone, tokens: Sequence[int], start: int) -> None:
    for number, token in enumerate(tokens):
        backbone.compute([Row(token, start + number)])


def _by_server(
    layer: int, ids: Sequence[int], dealt: Sequence[dict[int, list[int]]]
) -> tuple[tuple[int, ...], ...]:
    mine = (tuple(expert for expert in ids if expert in share[layer]) for share in dealt)
    return tuple(experts for experts in mine if experts)


class _Watched:
    """A port that notes which experts the router chose before it passes the call on."""

    def __init__(self, inner: SwarmPort) -> None:
        self._inner = inner
        self.ids: list[tuple[int, list[int]]] = []

    def leave(self, inputs: ExpertInputs) -> Any:
        self.ids.append((inputs.call.layer, inputs.ids.reshape(-1).tolist()))
        return self._inner.leave(inputs)

    def enter(self, ticket: Any) -> Float32Array:
        return self._inner.enter(ticket)


def _cells(stored: StoredModel, mapped: MappedModel, share: dict[int, list[int]]) -> Cells:
    cells = Cells()
    for call in stored.manifest.calls:
        for expert in share[call.layer]:
            held = hold(mapped, call, range(expert, expert + 1))
            cells.add(stored.model_id, stored.manifest, {(call.layer, call.group): held})
    return cells


@asynccontextmanager
async def _listening(handlers: dict[str, Any]) -> AsyncIterator[Endpoint]:
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), handlers=handlers)
        await nursery.start(endpoint.run)
        yield endpoint
        nursery.cancel_scope.cancel()
