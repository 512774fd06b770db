"""Fetching what a home set lacks, and nothing else: `panal home fetch`.

No trunk is opened and nothing is computed. It goes on as long as somebody gives something, and for a while
after: peers may still be on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import trio

from node.config import NodeConfig
from node.decode.live_backbone import COVER_SECONDS, REACH_SECONDS, call_shapes
from node.engine import library as llama
from node.home.call_bits import cells_of
from node.home.fetch import FetchProgress, FetchResult, fetch_cells, unrelayed
from node.home.home_set import HomeSet
from node.home.opening import HomeChoice, OpenHome, open_home
from node.importing import Progress
from node.model.store import Store
from node.serve.opening import open_trunk
from node.sizes import size_text
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import Watching
from routing.errors import LocalError
from routing.routes import Kind
from routing.table import HolderTable

PATIENCE_SECONDS = REACH_SECONDS
"""Without anything coming before it is given up, while peers are being looked for or dialed: so long a way to
one may take, by a relay. Else it is COVER_SECONDS, as for a backbone."""

AGAIN_SECONDS = 0.5
"""Between looks for peers that have come, after a round in which nobody gave more."""


@dataclass(frozen=True)
class HomeFetched:
    """What came of it.

    Attributes:
        cells, n_bytes: that have come.
        by_peer: bytes that each peer sent.
        lacking: what is in no file here still.
        reasons: why peers gave nothing more, by their id.
    """

    choice: HomeChoice
    cells: int
    n_bytes: int
    by_peer: dict[str, int]
    lacking: HomeSet
    reasons: dict[str, str]

    @property
    def lacking_bytes(self) -> int:
        return self.lacking.n_bytes(self.choice.shapes)

    def line(self) -> str:
        """What is lacking and why, for people; "" if nothing is."""
        if not self.lacking:
            return ""
        why = "; ".join(f"{peer[-8:]}: {reason}" for peer, reason in self.reasons.items())
        return (
            f"{size_text(self.lacking_bytes)} of the home set ({self.lacking.count()} experts) "
            "came from nobody: " + (why or "no connected peer holds them")
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "complete": not self.lacking,
            "experts": self.cells,
            "bytes": self.n_bytes,
            "by_peer": self.by_peer,
            "lacking_bytes": self.lacking_bytes,
            "reasons": self.reasons,
            "home": replace(self.choice, lacking=self.lacking).as_dict(),
        }


async def fetch_now(
    config: NodeConfig,
    *,
    progress: Progress = lambda what, done, total: None,
    on_progress: Callable[[FetchProgress], None] = lambda progress: None,
) -> HomeFetched:
    """Fetch all that the config's home set lacks. May be cancelled; what came is kept.

    Raises:
        LocalError: the config asks for nothing at home, another process fetches, or the disk is full.
    """
    wanted = config.require_backbone()
    if not wanted.home and wanted.home_memory is None:
        raise LocalError(
            f'{config.path}: wants nothing at home; home_memory = "4 GiB" in [backbone] is memory for it'
        )
    library = llama.load(config.engine.library)
    store = Store(config.store)
    stored = await trio.to_thread.run_sync(open_trunk, library, store, wanted.model, progress)
    with await trio.to_thread.run_sync(open_home, library, store, stored, config, progress) as home:
        if not home.choice.lacking:
            return HomeFetched(home.choice, 0, 0, {}, HomeSet(), {})
        if not home.can_fetch:
            raise LocalError(
                f"{stored.folder}: another process fetches into it (panal generate or home fetch); "
                "end that one first"
            )
        return await _fetch(home, config, on_progress)


async def _fetch(
    home: OpenHome, config: NodeConfig, on_progress: Callable[[FetchProgress], None]
) -> HomeFetched:
    stored, fetched = home.stored, home.fetched
    assert fetched is not None
    table = HolderTable(stored.model_id, call_shapes(stored.manifest))
    node = SwarmNode(
        Place.of(config),
        Role(serves=False, wanted_model=stored.model_id),
        watching=Watching(connected=table.connected, lost=table.disconnected),
    )
    lacking = cells_of(stored.manifest, home.choice.lacking.experts())
    all_cells = sum(bits.bit_count() for bits in lacking.values())
    all_bytes = fetched.bytes_of(lacking)
    cells, by_peer, reasons = 0, dict[str, int](), dict[str, str]()

    def say(so_far: FetchProgress) -> None:
        before = sum(by_peer.values())
        on_progress(
            replace(
                so_far,
                cells=cells + so_far.cells,
                n_bytes=before + so_far.n_bytes,
                all_cells=all_cells,
                all_bytes=all_bytes,
            )
        )

    def take(result: FetchResult) -> None:
        nonlocal cells
        cells += result.cells
        for peer, n_bytes in result.by_peer.items():
            by_peer[peer] = by_peer.get(peer, 0) + n_bytes
        reasons.update(result.given_up | result.dropped)

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            last = trio.current_time()
            while True:
                result = await fetch_cells(
                    fetched,
                    lacking,
                    holders=table.holders,
                    connection_to=unrelayed(node.links),
                    on_progress=say,
                )
                take(result)
                if result.cells:
                    last = trio.current_time()
                may_come = node.is_looking or any(
                    node.links.find(peer_id) is None for peer_id in node.links.wanted
                )
                patience = PATIENCE_SECONDS if may_come else COVER_SECONDS
                if not result.missing or trio.current_time() - last >= patience:
                    break
                await trio.sleep(AGAIN_SECONDS)
            for peer_id in table.peers():
                link = node.links.link(peer_id)
                if link is not None and link.route.kind is Kind.RELAYED:
                    reasons.setdefault(peer_id, "is reached by a relay only, which is not used for this")
            reasons |= {peer: why for peer, why in node.failures().items() if peer not in reasons}
            nursery.cancel_scope.cancel()
    finally:
        node.close()
    left = await trio.to_thread.run_sync(home.lacks, home.choice.wanted)
    return HomeFetched(home.choice, cells, sum(by_peer.values()), by_peer, left, reasons if left else {})
