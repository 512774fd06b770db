"""A backbone with its swarm: the place where engine, dispatch and QUIC plane are put together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from node.decode.backbone import Backbone
from node.decode.drafting.choice import Guessers
from node.decode.drafting.experience import keep_acceptance, read_acceptance
from node.decode.expert_port import SwarmPort, combine_of
from node.decode.ledger import PassDone
from node.decode.not_covered import PENDING, Asked, NotCovered, describe
from node.decode.session import Session
from node.engine.expert_holes import ExpertPort
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.importing import Progress
from node.model.manifest import Manifest
from node.model.store import StoredModel
from node.serve.cells import Cells
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import Watching
from routing.dispatch.call import WireSettings
from routing.quic.endpoint import Handler
from routing.table import CallShape, HolderTable
from routing.wire.codecs import CODEC_NAMES, Codec
from routing.wire.experts import Combine
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION

T = TypeVar("T")

COVER_SECONDS = 3.0
"""How long a backbone waits at least before it says what is missing: peers of the same network are heard
within one or two, and a server that is just being started answers the third dial."""

REACH_SECONDS = 20.0
"""How long it waits at most while a way to a peer is being tried, perhaps by a relay: TCP, two handshakes and
a circuit are some twelve round trips."""

NEWS_SECONDS = 1.0
"""How long it waits for what the peer reached last may tell: its table of adverts, or what it serves."""

BEGUN_SECONDS = 12.0
"""A peer that began no longer ago is still finding out how it can be reached, and then asks for relays."""

COVER_GRACE = 0.3
"""How long it waits for all of them first: peers that answer at once should take part in the first pass."""

COVER_POLL = 0.01

HOPE_POLL = 0.1
"""Between looks at who may still come, which goes through all that adverts tell of."""

SAY_SECONDS = 1.0
"""Waiting that is over sooner is not announced."""


@dataclass(frozen=True)
class BackboneSettings:
    """What a backbone is to be.

    Attributes:
        context: tokens of KV cache; None for what the model was trained with, `DEFAULT_CONTEXT` at most.
        ubatch: rows of a graph.
        deadline: seconds for a call's answer.
        draft: who guesses: "auto", "off", "self", "ngram", "model".
        draft_model: the file of a small model that guesses.
        exact: guessing changes no token (node.decode.exactness).
    """

    threads: int
    combine: Combine = Combine.ROWS
    wire: Codec = Codec.F32
    context: int | None = None
    ubatch: int = 512
    deadline: float = 30.0
    draft: str = "off"
    draft_model: Path | None = None
    exact: bool = True


class LiveBackbone:
    """A backbone whose peers are being kept connected.

    Attributes:
        home_report: what is at home and why, for JSON; empty where nobody chose (node.decode.configured).
        serve_at_home: to be told of what the node itself serves, whenever it chooses that anew.
    """

    def __init__(
        self,
        backbone: Backbone,
        port: SwarmPort,
        table: HolderTable,
        node: SwarmNode,
        settings: BackboneSettings,
    ) -> None:
        self.settings = settings
        self.home_report: Callable[[], dict[str, Any]] = dict
        self.serve_at_home: Callable[[Cells], Awaitable[None]] = _not_at_home
        self.guessers = Guessers(
            draft=settings.draft,
            draft_model=settings.draft_model,
            exact=settings.exact,
            backbone=backbone,
            has_home=lambda: port.has_home,
            left_out=port.left_out,
            acceptance=read_acceptance(backbone.stored.folder),
        )
        self.backbone = backbone
        self.port = port
        self.table = table
        self.node = node
        self.links = node.links

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that makes passes, on a thread; cancelling ends its next wait for experts."""
        return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=False)

    def session(
        self,
        sequence: int = 0,
        *,
        on_pass: Callable[[PassDone], None] = lambda done: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Session:
        """A new session that guesses as the settings say. To be closed when its text is done."""
        return Session(
            self.backbone,
            sequence,
            guessing=self.guessers.make(sequence),
            exact=self.settings.exact,
            on_pass=on_pass,
            spent=self.port.ledger.spent,
            is_over=is_over,
        )

    async def covered(
        self, seconds: float = COVER_SECONDS, progress: Progress = lambda what, done, total: None
    ) -> None:
        """Wait until every expert has a holder, or nobody is left who may turn out to be one.

        Args:
            seconds: to wait at least.
            progress: told after SAY_SECONDS how far this is.

        Raises:
            NotCovered: names the layers, the experts and the peers that do not answer.
        """
        begun = last_hope = looked = trio.current_time()
        with trio.move_on_after(COVER_GRACE):
            await self.links.first_round()
        while self.table.missing():
            now = trio.current_time()
            if now - looked >= HOPE_POLL:
                looked = now
                if self.node.is_looking or any(map(self._is_on_its_way, self._sought())):
                    last_hope = now
                if now - begun >= SAY_SECONDS:
                    progress(self._so_far(), 0, 0)
            if now - begun >= (seconds if now - last_hope >= NEWS_SECONDS else max(seconds, REACH_SECONDS)):
                break
            await trio.sleep(COVER_POLL)
        lacking = self.lacking()
        if lacking is not None:
            raise lacking

    def lacking(self) -> NotCovered | None:
        """The experts that have no holder now, and whom this node has asked in vain; None if all have one."""
        missing = self.table.missing()
        if not missing:
            return None
        pending = {self.node.ways.label(each): PENDING for each in self._sought() if self._is_silent(each)}
        swarm = self.node.place.swarm
        asked = Asked(
            pending | self.node.failures(),
            self.table.strangers(),
            self.backbone.stored.model_id,
            lan=swarm.lan and not self.node.whereabouts.is_loopback,
            configured=bool(swarm.peers or swarm.control_peers),
            run_lengths=self.table.run_lengths(missing),
            in_parts=self.table.missing(whole_runs=False) != missing,
        )
        return NotCovered(describe(missing, asked))

    def routes(self) -> list[dict[str, object]]:
        """How each connected peer that holds experts of the model is reached, by their names, for people and
        programs."""
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
        return sorted(found, key=lambda each: (str(each["name"]), str(each["peer"])))

    def _sought(self) -> set[str]:
        """Peers that hold experts of this model, or may: those that are dialed and have told nothing yet."""
        model_id, table = self.backbone.stored.model_id, self.node.table
        untold = {peer_id for peer_id in self.links.wanted if table.get(peer_id) is None}
        return untold | {row.advert.peer_id for row in table.holders_of(model_id)}

    def _is_on_its_way(self, peer_id: str) -> bool:
        """Whether a peer may be connected soon."""
        if self.links.find(peer_id) is not None:
            return False
        if peer_id not in self.links.wanted or self.links.is_under_way(peer_id):
            return True  # the former has to wait for its turn (node.swarm.finding)
        row = self.node.table.get(peer_id)
        if row is None:
            return False
        undecided = row.advert.reach == "unknown" or (row.advert.reach == "private" and not row.advert.relays)
        return undecided and abs(time.time() - row.advert.issued_at) < BEGUN_SECONDS

    def _is_silent(self, peer_id: str) -> bool:
        return self.links.find(peer_id) is None and not self.links.reason(peer_id)

    def _so_far(self) -> str:
        sought = self._sought()
        if not sought:
            return "looking for experts: nobody who may hold them is known yet"
        reached = sum(self.links.find(peer_id) is not None for peer_id in sought)
        return f"looking for experts: {reached} of {len(sought)} peers reached"


class Market(Protocol):
    """What a backbone needs where cells have prices (node.market.part)."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Streams that the node serves for it, by protocol."""

    async def run(
        self, node: SwarmNode, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Settle with the node's peers, until cancelled."""

    def attached(self, live: LiveBackbone) -> AbstractAsyncContextManager[None]:
        """Price the backbone's answers meanwhile."""


@asynccontextmanager
async def live_backbone(
    library: Library,
    stored: StoredModel,
    *,
    place: Place,
    settings: BackboneSettings,
    home: Cells | None = None,
    watch: Callable[[ExpertPort], ExpertPort] = lambda port: port,
    market: Market | None = None,
) -> AsyncIterator[LiveBackbone]:
    """A backbone as a node of its own, that only asks: dial its peers, close everything in order afterwards.

    Args:
        place: in which swarm, and as whom.
        home: cells computed here instead of by peers.
        watch: wraps the port that the hook talks to; for comparisons.
        market: where cells have prices; None: everything is free.
    """
    handlers = {} if market is None else market.handlers
    node = SwarmNode(place, Role(serves=False, wanted_model=stored.model_id, handlers=handlers))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            if market is not None:
                await nursery.start(market.run, node)
            async with backbone_on(
                node, library, stored, settings=settings, home=home, watch=watch, market=market
            ) as live:
                yield live
            nursery.cancel_scope.cancel()
    finally:
        node.close()


@asynccontextmanager
async def backbone_on(
    node: SwarmNode,
    library: Library,
    stored: StoredModel,
    *,
    settings: BackboneSettings,
    home: Cells | None = None,
    watch: Callable[[ExpertPort], ExpertPort] = lambda port: port,
    market: Market | None = None,
) -> AsyncIterator[LiveBackbone]:
    """A backbone on a node that is running, which keeps its model's holders connected from now on.

    Args:
        market: which runs on the same node; None: everything is free.
    """
    table = HolderTable(
        stored.model_id,
        call_shapes(stored.manifest, settings.combine),
        unusable=lambda told: why_unusable(told, settings),
    )
    kernels = Kernels(library, threads=settings.threads)
    wire = WireSettings(settings.wire, settings.wire, settings.combine, settings.deadline)
    port = SwarmPort(
        stored.model_id,
        cells=home or Cells(),
        kernels=kernels,
        table=table,
        peers=node.links.find,
        settings=wire,
    )
    watching = Watching(connected=table.connected, lost=table.disconnected)
    node.watch(watching)
    node.want_model(stored.model_id)
    backbone: Backbone | None = None
    try:
        async with trio.open_nursery() as nursery:
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
            live = LiveBackbone(backbone, port, table, node, settings)
            async with nullcontext() if market is None else market.attached(live):
                yield live
            await trio.to_thread.run_sync(keep_acceptance, stored.folder, live.guessers.acceptance)
            nursery.cancel_scope.cancel()
    finally:
        node.unwatch(watching)
        if backbone is not None:
            backbone.close()
        kernels.close()


def call_shapes(manifest: Manifest, combine: Combine = Combine.ROWS) -> dict[tuple[int, int], CallShape]:
    """What the table needs to know of a model's calls."""
    cells = {call.layer: call.n_experts for call in manifest.calls if call.index == 0}
    shapes = {}
    for call in manifest.calls:
        run_length = call.run_length if combine_of(call, combine) is Combine.STABLE else 0
        shapes[call.layer, call.index] = CallShape(call.n_experts, cells[call.layer], run_length)
    return shapes


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


async def _not_at_home(_: Cells) -> None:
    """Nobody keeps a home set."""
