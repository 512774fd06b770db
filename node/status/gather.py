"""From the running parts to one `Status`. Thin: what is remembered and decided is in the modules it uses."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.status.answers import AnswerRing
from node.status.concerns import Concerns, Observed
from node.status.coverage import Coverage
from node.status.facts import VERSION, Gateway, Market, Runs, Status, short_id
from node.status.model_facts import ModelFacts
from node.status.node_facts import NodeFacts
from node.status.peer_facts import PeerFacts
from node.status.sources import Sources
from node.swarm.node import SwarmNode
from routing.membership import BadCertificateBytes, MemberCertificate
from routing.wire.holdings import MAX_NAME_BYTES
from routing.wire.text import sanitise

DISK_SECONDS = 30.0
"""Between looks at how full the disk is; a network's may take its time."""

REASON_BYTES = 300
"""Of why the gateway does not answer: a line that names layers and peers."""


class Gatherer:
    """One for a node.

    Args:
        answers: those given lately.
    """

    def __init__(self, node: SwarmNode, sources: Sources, answers: AnswerRing) -> None:
        self._swarm_node = node
        self._sources = sources
        self._answers = answers
        coverage = Coverage()
        self._node = NodeFacts(node, sources)
        self._peers = PeerFacts(node, sources, coverage)
        self._models = ModelFacts(node, sources, coverage)
        self._concerns = Concerns()
        self._alone_since: float | None = sources.started_at
        self._disk_seen = -DISK_SECONDS
        self._free_bytes: int | None = None
        self._member_until = _member_until(node)

    def tick(self, now: float, clock: float) -> None:
        """Once a second, whether anybody asks or not.

        Args:
            now: unix time.
            clock: trio's, which does not go back.
        """
        self._node.tick(clock)
        self._peers.tick(now, clock)
        if self._swarm_node.endpoint.connections:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    def status(self, now: float, clock: float) -> Status:
        """Everything, as it is now."""
        market = None if self._sources.market is None else self._sources.market.facts(now)
        peers = self._peers.read(now, clock, market)
        models = self._models.read(clock)
        node = self._node.read(self._models.served(), now)
        return Status(
            version=VERSION,
            at=round(now, 1),
            node=node,
            peers=peers,
            peers_left_out=self._peers.left_out,
            models=models,
            answers=self._answers.told(),
            gateway=self._gateway(),
            warnings=self._concerns.told(node, models, self._observed(now, clock, market)),
            market=market,
        )

    def _observed(self, now: float, clock: float, market: Market | None) -> Observed:
        node = self._swarm_node
        if clock - self._disk_seen >= DISK_SECONDS:
            self._disk_seen = clock
            self._free_bytes = _free_bytes(self._store_folder())
        return Observed(
            now=now,
            alone_since=self._alone_since,
            clones=node.table.clones(),
            clock_offsets=node.prober.clock_offsets,
            failures=node.failures(),
            free_bytes=self._free_bytes,
            store=str(self._store_folder() or ""),
            member_until=self._member_until,
            listens_to_others=not node.whereabouts.is_loopback,
            refusing=self._by_label(self._refusing()),
            refused_here=self._by_label(self._refused_here(market)),
            market=market,
            asking=[node.ways.label(peer_id) for peer_id in self._asking()],
            label=node.ways.label,
            paused=self._paused,
        )

    def _paused(self, model_id: str, missing: Runs) -> Mapping[str, int]:
        found = self._peers.paused.holders(model_id, missing)
        return {self._called(peer_id): count for peer_id, count in found.items()}

    def _called(self, peer_id: str) -> str:
        """A peer by its name and the end of its id."""
        row = self._swarm_node.table.get(peer_id)
        name = "" if row is None else sanitise(row.advert.name, MAX_NAME_BYTES)
        return f"{name} ({short_id(peer_id)})" if name else self._swarm_node.ways.label(peer_id)

    def _refusing(self) -> Mapping[str, str]:
        live = self._sources.live
        return {} if live is None else live.port.unpaid.told()

    def _refused_here(self, market: Market | None) -> Mapping[str, str]:
        return (
            {}
            if market is None
            else {each.peer: each.refused_here for each in market.credits if each.refused_here}
        )

    def _asking(self) -> Sequence[str]:
        """Holders of the backbone's model with prices, where none are paid."""
        live = self._sources.live
        if live is None or self._sources.market is not None:
            return ()
        model_id = live.backbone.stored.model_id
        rows = self._swarm_node.table.holders_of(model_id)
        return sorted(row.advert.peer_id for row in rows if row.advert.quote(model_id) is not None)

    def _by_label(self, told: Mapping[str, str]) -> dict[str, str]:
        label = self._swarm_node.ways.label
        return {label(peer_id): sanitise(why, REASON_BYTES) for peer_id, why in told.items()}

    def _store_folder(self) -> Path | None:
        store = self._sources.store
        return None if store is None else store.root

    def _gateway(self) -> Gateway | None:
        sources, decoder = self._sources, self._sources.decoder
        if not sources.has_backbone:
            return None
        reason = sanitise(sources.why_not(), REASON_BYTES)
        if decoder is None:
            return Gateway(
                model=sources.model_id, ready=False, reason=reason or "the model is being loaded", context=0,
                active=0, reading=0, slots=0, waiting=0, queue=0, kept_tokens=0, answered=0, left=0, failed=0,
                refused=0, prompt_tokens=0, cached_tokens=0, tokens=0, tokens_per_second=0.0,
            )  # fmt: skip
        stats = decoder.stats()
        return Gateway(
            model=sources.model_id,
            ready=not reason,
            reason=reason,
            context=decoder.n_ctx,
            active=stats.active,
            reading=stats.reading,
            slots=stats.slots,
            waiting=stats.waiting,
            queue=stats.queue,
            kept_tokens=stats.cached,
            answered=stats.answered,
            left=stats.left,
            failed=stats.failed,
            refused=stats.refused,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            tokens=stats.tokens,
            tokens_per_second=round(stats.tokens_per_second, 2),
        )


def _free_bytes(folder: Path | None) -> int | None:
    """Free on the disk of a folder, or of the first one above it that exists."""
    for each in () if folder is None else (folder, *folder.parents):
        try:
            return shutil.disk_usage(each).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _member_until(node: SwarmNode) -> float | None:
    certificate = node.membership.certificate
    if not certificate:
        return None
    try:
        return float(MemberCertificate.decode(certificate).not_after)
    except BadCertificateBytes:  # it was checked at the start
        return None
