"""This node's own part of its status."""

from __future__ import annotations

from importlib.metadata import version

from node.status import process
from node.status.facts import (
    Node,
    Pause,
    Reach,
    Relay,
    RelayServing,
    Served,
    Swarm,
    Traffic,
    Work,
    short_id,
)
from node.status.rates import Rate
from node.status.sources import Sources
from node.swarm.node import SwarmNode
from routing.multiaddr import ListenAddress
from routing.wire.text import sanitise

TRAFFIC_SECONDS = 5.0
"""Over which rates of bytes are averaged: a token's bursts become one figure."""

MAX_EVIDENCE_LINES = 24
"""Of what the verdict on reachability rests on; a round brings some fifteen."""

LINE_BYTES = 300
"""Of a line of evidence: two peer ids and two addresses fit. Parts of it come from peers."""


class NodeFacts:
    """Reads them off. One for a node: it remembers the counters of before."""

    def __init__(self, node: SwarmNode, sources: Sources) -> None:
        self._node = node
        self._sources = sources
        self._up = Rate(TRAFFIC_SECONDS)
        self._down = Rate(TRAFFIC_SECONDS)
        self._processor = process.Processor()
        self._version = version("panal")

    def tick(self, clock: float) -> None:
        """Once a second, whether anybody asks or not, so that rates are of the last seconds.

        Args:
            clock: seconds that do not go back.
        """
        endpoint = self._node.endpoint
        self._up.note(endpoint.bytes_sent, clock)
        self._down.note(endpoint.bytes_received, clock)
        self._processor.tick(clock)

    def read(self, serves: list[Served], now: float) -> Node:
        """Everything.

        Args:
            serves: what it has on offer.
            now: unix time.
        """
        sources, node = self._sources, self._node
        server = sources.server
        paused = sources.pauser is not None and sources.pauser.state.paused
        return Node(
            name=sources.name,
            peer_id=node.identity.peer_id,
            short_id=short_id(node.identity.peer_id),
            version=self._version,
            started_at=round(sources.started_at, 1),
            uptime_seconds=max(int(now - sources.started_at), 0),
            swarm=_swarm(node),
            addresses=_addresses(node),
            reach=_reach(node),
            relay=_relay(node),
            state="paused" if paused else "serving" if serves else "nothing",
            pause=self._pause() if paused else None,
            serves=serves,
            memory=process.memory(),
            load=self._processor.load(None if server is None or not serves else server.load()),
            traffic=self._traffic(),
            work=self._work(),
        )

    def _pause(self) -> Pause | None:
        if self._sources.pauser is None:
            return None
        state = self._sources.pauser.state
        reasons = [str(reason) for reason in state.reasons]
        return Pause(reasons, state.text, round(state.since, 1), state.until, state.by_hand)

    def _traffic(self) -> Traffic:
        endpoint = self._node.endpoint
        return Traffic(
            up=round(self._up.per_second or 0.0, 1),
            down=round(self._down.per_second or 0.0, 1),
            sent_bytes=endpoint.bytes_sent,
            received_bytes=endpoint.bytes_received,
        )

    def _work(self) -> Work:
        server, given = self._sources.server, [giver.counts for giver in self._sources.givers]
        chunks, chunk_bytes = sum(each.chunks for each in given), sum(each.sent_bytes for each in given)
        if server is None:
            return Work(chunks=chunks, chunk_bytes=chunk_bytes)
        counts = server.counts
        return Work(
            calls=counts.calls,
            refused=counts.refused,
            pairs=counts.pairs,
            compute_seconds=round(counts.compute_seconds, 3),
            chunks=chunks,
            chunk_bytes=chunk_bytes,
        )


def _swarm(node: SwarmNode) -> Swarm:
    swarm = node.membership.swarm
    return Swarm(name=swarm.name, id=swarm.id.hex(), private=swarm.is_private)


def _addresses(node: SwarmNode) -> list[str]:
    outer = [ListenAddress(host, port) for host, port in node.prober.reachability.addresses]
    found = [f"{each}/p2p/{node.identity.peer_id}" for each in (node.whereabouts.inner, *outer)]
    return list(dict.fromkeys(found))


def _reach(node: SwarmNode) -> Reach:
    verdict = node.prober.reachability
    reach, reason = node.whereabouts.reach
    # that nobody answered is no news of UDP while nobody answers at all: they may be off
    is_silent = verdict.udp is False and not node.endpoint.connections
    return Reach(
        verdict=reach.value,
        reason=sanitise(reason, LINE_BYTES),
        evidence=[sanitise(line, LINE_BYTES) for line in verdict.evidence[:MAX_EVIDENCE_LINES]],
        mapping=verdict.mapping.value,
        filtering=verdict.filtering.value,
        udp=None if is_silent else verdict.udp,
        port_kept=verdict.port_kept,
        seen_at=[host_and_port(*address) for address in verdict.addresses],
    )


def _relay(node: SwarmNode) -> Relay:
    control = node.control
    if control is None:
        return Relay()
    using = [sanitise(str(each), LINE_BYTES) for each in control.reserved]
    if control.service is None:
        return Relay(using=using)
    done, table = control.service.statistics(), node.place.relay.table
    serving = RelayServing(
        addresses=node.relay_addresses,
        reservations=done.reservations,
        max_reservations=table.reservations,
        circuits=done.circuits,
        max_circuits=table.circuits,
        circuits_opened=done.circuits_opened,
        relayed_bytes=done.bytes_relayed,
        refused=done.refused,
    )
    return Relay(serving=serving, using=using)


def host_and_port(host: str, port: int) -> str:
    """As people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
