"""A backbone with its swarm: the place where engine, dispatch and QUIC plane are put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from node.decode.backbone import Backbone
from node.decode.expert_port import SwarmPort
from node.engine.expert_holes import ExpertPort
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.model.manifest import Manifest
from node.model.store import StoredModel
from node.serve.cells import Cells
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import Watching
from routing.dispatch.call import WireSettings
from routing.dispatch.errors import name_experts
from routing.errors import PeerError
from routing.table import CallShape, HolderTable
from routing.wire.codecs import CODEC_NAMES, Codec
from routing.wire.experts import Combine
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION

T = TypeVar("T")

COVER_SECONDS = 5.0
"""How long a backbone waits for configured peers to connect before it says what is missing."""

REACH_SECONDS = 20.0
"""The same while peers are known to hold what is missing and are still being reached, perhaps by a relay:
TCP, two handshakes and a circuit are some twelve round trips."""

COVER_GRACE = 0.3
"""How long it waits for all of them first: peers that answer at once should take part in the first pass."""

COVER_POLL = 0.01

NAMED_LAYERS = 4
"""Layers named in one line about missing experts."""


NAMED_FAILURES = 8
"""Peers named there that do not answer: adverts may tell of thousands."""


class NotCovered(PeerError):
    """Experts that no connected peer holds."""


@dataclass(frozen=True)
class BackboneSettings:
    """What a backbone is to be.

    Attributes:
        context: tokens of KV cache; None for what the model was trained with, `DEFAULT_CONTEXT` at most.
        ubatch: rows of a graph.
        deadline: seconds for a call's answer.
    """

    threads: int
    combine: Combine = Combine.ROWS
    wire: Codec = Codec.F32
    context: int | None = None
    ubatch: int = 512
    deadline: float = 30.0


class LiveBackbone:
    """A backbone whose peers are being kept connected."""

    def __init__(self, backbone: Backbone, port: SwarmPort, table: HolderTable, node: SwarmNode) -> None:
        self.backbone = backbone
        self.port = port
        self.table = table
        self.node = node
        self.links = node.links

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that makes passes, on a thread; cancelling ends its next wait for experts."""
        return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=False)

    async def covered(self, seconds: float = COVER_SECONDS) -> None:
        """Wait until every expert has a holder.

        Raises:
            NotCovered: names the layers, the experts and the peers that do not answer.
        """
        with trio.move_on_after(COVER_GRACE):
            await self.links.first_round()
        begun = trio.current_time()
        while self.table.missing():
            patience = max(seconds, REACH_SECONDS) if self._is_hopeful() else seconds
            if trio.current_time() - begun >= patience:
                break
            await trio.sleep(COVER_POLL)
        missing = self.table.missing()
        if not missing:
            return
        failures = [
            reason if label in reason else f"{label}: {reason}"
            for label, reason in self.node.failures().items()
        ]
        failures += [
            f"{peer} {', '.join(told) or 'serves nothing'}, asked is {self.backbone.stored.model_id[:12]}"
            for peer, told in self.table.strangers().items()
        ]
        named = [
            f"layer {layer}: {name_experts(experts)}"
            for layer, experts in list(missing.items())[:NAMED_LAYERS]
        ]
        more = f" and {len(missing) - NAMED_LAYERS} more layers" if len(missing) > NAMED_LAYERS else ""
        if len(failures) > NAMED_FAILURES:
            failures[NAMED_FAILURES:] = [f"and {len(failures) - NAMED_FAILURES} more"]
        because = f" ({'; '.join(failures)})" if failures else ""
        raise NotCovered(
            f"no connected peer holds {'; '.join(named)}{more}{because}: start them or add their address"
        )

    def routes(self) -> list[dict[str, object]]:
        """How each connected peer that holds experts of the model is reached, for people and programs."""
        found: list[dict[str, object]] = []
        strangers = self.table.strangers()
        for peer_id in self.table.peers():
            link = self.links.link(peer_id)
            if link is not None and peer_id not in strangers:
                route = link.route
                found.append(
                    {
                        "peer": peer_id,
                        "name": link.name,
                        "route": route.kind.value,
                        "transport": route.transport,
                        "via": route.via,
                        "reason": route.reason,
                        "rtt_ms": round(link.connection.rtt * 1000, 1),
                    }
                )
        return found

    def _is_hopeful(self) -> bool:
        """Whether a peer that says it holds experts of this model is on its way.

        So is one that has only just begun: it finds out how it can be reached, and then asks for relays.
        """
        failures = self.links.failures()
        for row in self.node.table.holders_of(self.backbone.stored.model_id):
            advert = row.advert
            undecided = advert.reach == "unknown" or (advert.reach == "private" and not advert.relays)
            if self.links.link(advert.peer_id) is None and (
                undecided or self.node.ways.label(advert.peer_id) not in failures
            ):
                return True
        return False


@asynccontextmanager
async def live_backbone(
    library: Library,
    stored: StoredModel,
    *,
    place: Place,
    settings: BackboneSettings,
    home: Cells | None = None,
    watch: Callable[[ExpertPort], ExpertPort] = lambda port: port,
) -> AsyncIterator[LiveBackbone]:
    """Open a backbone, dial its peers, and close everything in order afterwards.

    Args:
        place: in which swarm, and as whom.
        home: cells computed here instead of by peers.
        watch: wraps the port that the hook talks to; for comparisons.
    """
    manifest = stored.manifest
    table = HolderTable(
        stored.model_id, call_shapes(manifest), unusable=lambda told: why_unusable(told, settings)
    )
    kernels = Kernels(library, threads=settings.threads)
    cells = home or Cells()
    key = bytes.fromhex(stored.model_id)
    table.set_home(
        {
            (call.layer, call.index): held.experts()
            for call in manifest.calls
            if (held := cells.find(key, call.layer, call.index)) is not None
        }
    )
    role = Role(serves=False, wanted_model=stored.model_id)
    node = SwarmNode(place, role, watching=Watching(connected=table.connected, lost=table.disconnected))
    wire = WireSettings(settings.wire, settings.wire, settings.combine, settings.deadline)
    port = SwarmPort(
        stored.model_id, cells=cells, kernels=kernels, table=table, peers=node.links.find, settings=wire
    )
    backbone: Backbone | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            await nursery.start(port.run)
            backbone = await trio.to_thread.run_sync(
                lambda: Backbone(
                    library,
                    stored,
                    watch(port),
                    n_ctx=settings.context,
                    n_ubatch=settings.ubatch,
                    threads=settings.threads,
                )
            )
            yield LiveBackbone(backbone, port, table, node)
            nursery.cancel_scope.cancel()
    finally:
        node.close()
        if backbone is not None:
            backbone.close()
        kernels.close()


def call_shapes(manifest: Manifest) -> dict[tuple[int, int], CallShape]:
    """What the table needs to know of a model's calls."""
    cells = {call.layer: call.n_experts for call in manifest.calls if call.index == 0}
    return {(call.layer, call.index): CallShape(call.n_experts, cells[call.layer]) for call in manifest.calls}


def why_unusable(told: Holdings, settings: BackboneSettings) -> str:
    """Why a peer that says this cannot serve a backbone with these settings; "" if it can."""
    if VERSION not in told.versions:
        return f"speaks /panal/experts {', '.join(map(str, told.versions))}, not {VERSION}"
    codec = next(name for name, known in CODEC_NAMES.items() if known is settings.wire)
    if codec not in told.codecs:
        return f"does not speak {codec} (wire)"
    if settings.combine.name.lower() not in told.combines:
        return f"does not combine by {settings.combine.name.lower()}"
    if settings.ubatch > told.max_rows:
        return f"takes {told.max_rows} rows at once, ubatch is {settings.ubatch}"
    return ""
