"""The status as Prometheus reads it: text exposition format 0.0.4. Pure.

Names and units by its conventions: base units (seconds, bytes), `_total` for what only grows, `_info` with
value 1 for words. What is known of each peer is told of MAX_PEERS at most, by peer id; names are not in here.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and .../practices/naming/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from market.credits import MICRO
from node.status.facts import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_PEERS = 256
"""Peers with series of their own, those that are connected: as many as a backbone keeps. Each series costs
whoever scrapes them memory for hours."""

Labels = Mapping[str, str]
_Value = int | float


@dataclass
class Family:
    """A metric and its samples.

    Attributes:
        name: without the prefix.
        kind: as Prometheus calls it.
        text: one line of help.
        samples: (labels, value).
    """

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    samples: list[tuple[Labels, _Value]] = field(default_factory=list)

    def add(self, value: _Value | None, **labels: str) -> Family:
        """One more sample; what is not known is left out."""
        if value is not None:
            self.samples.append((labels, value))
        return self


def exposition(status: Status, *, connections: int | None = None) -> str:
    """The whole text.

    Args:
        connections: open ones of the HTTP door.
    """
    families = [*_node(status), *_network(status), *_work(status), *_peers(status), *_models(status)]
    families += [*_gateway(status), *_market(status)]
    if connections is not None:
        families.append(_gauge("http_connections", "Open HTTP connections.", connections))
    return "".join(_lines(family) for family in families if family.samples)


def _gauge(name: str, text: str, value: _Value | None, **labels: str) -> Family:
    return Family(name, "gauge", text).add(value, **labels)


def _counter(name: str, text: str, value: _Value | None, **labels: str) -> Family:
    return Family(f"{name}_total", "counter", text).add(value, **labels)


def _node(status: Status) -> Iterable[Family]:
    node = status.node
    yield _gauge(
        "node_info", "This node: its peer id and version.", 1, peer_id=node.peer_id, version=node.version
    )
    yield _gauge("start_time_seconds", "When the node started, unix time.", node.started_at)
    yield _gauge(
        "serving", "1 while it serves, 0 while it is paused or has nothing.", int(node.state == "serving")
    )
    yield _gauge("paused", "1 while it is paused.", int(node.state == "paused"))
    memory = Family("memory_bytes", "gauge", "Memory of the process in RAM, by kind.")
    yield memory.add(node.memory.anonymous_bytes, kind="anonymous").add(
        node.memory.mapped_bytes, kind="mapped"
    )
    yield _gauge("resident_memory_bytes", "Memory of the process in RAM, all of it.", node.memory.rss_bytes)
    yield _gauge("cpu_usage_ratio", "Share of all cores that the process uses, 0 to 1.", node.load.cpu)
    wait = None if node.load.wait_ms is None else node.load.wait_ms / 1000
    yield _gauge("call_wait_seconds", "What a call for experts that arrives now would wait.", wait)
    warnings = Family("warnings", "gauge", "Warnings shown now, by level.")
    for level in ("error", "warning", "info"):
        warnings.add(sum(each.level == level for each in status.warnings), level=level)
    yield warnings


def _network(status: Status) -> Iterable[Family]:
    node = status.node
    yield _counter("sent_bytes", "Bytes sent over QUIC, everything included.", node.traffic.sent_bytes)
    yield _counter("received_bytes", "Bytes received over QUIC.", node.traffic.received_bytes)
    reach = Family("reachability", "gauge", "1 for the verdict on how this node can be reached.")
    for verdict in ("unknown", "public", "private"):
        reach.add(int(node.reach.verdict == verdict), verdict=verdict)
    yield reach
    yield _gauge("relays_used", "Relays through which others reach this node.", len(node.relay.using))
    serving = node.relay.serving
    if serving is not None:
        yield _gauge(
            "relay_reservations", "Peers that can be reached through this relay.", serving.reservations
        )
        yield _gauge("relay_circuits", "Connections that pass through this relay.", serving.circuits)
        yield _counter("relay_circuits_opened", "Circuits opened.", serving.circuits_opened)
        yield _counter("relay_bytes", "Bytes relayed, both ways together.", serving.relayed_bytes)
        refused = Family("relay_refused_total", "counter", "Requests refused, by status.")
        for name, count in sorted(serving.refused.items()):
            refused.add(count, status=name)
        yield refused


def _work(status: Status) -> Iterable[Family]:
    work = status.node.work
    cells = Family("served_cells", "gauge", "Cells this node has on offer, by model.")
    sizes = Family("served_bytes", "gauge", "Bytes of weights this node has on offer, by model.")
    for each in status.node.serves:
        cells.add(each.cells, model=each.model)
        sizes.add(each.bytes, model=each.model)
    yield cells
    yield sizes
    yield _counter("calls_served", "Calls for experts answered.", work.calls)
    yield _counter("calls_refused", "Calls for experts refused.", work.refused)
    yield _counter("pairs_computed", "(token, expert) pairs computed for others.", work.pairs)
    yield _counter("compute_seconds", "Seconds spent in experts for others.", work.compute_seconds)
    yield _counter("chunks_sent", "Chunks of weights sent.", work.chunks)
    yield _counter("chunk_bytes_sent", "Bytes of weights sent.", work.chunk_bytes)


def _peers(status: Status) -> Iterable[Family]:
    states = Family("peers", "gauge", "Peers, by state.")
    for state in ("online", "heard", "offline"):
        states.add(sum(peer.state == state for peer in status.peers), state=state)
    yield states
    routes = Family("connected_peers", "gauge", "Connected peers, by kind of route.")
    connected = [peer for peer in status.peers if peer.connected]
    for kind in ("direct", "punched", "relayed"):
        routes.add(sum(peer.route is not None and peer.route.kind == kind for peer in connected), route=kind)
    yield routes
    rtt = Family("peer_rtt_seconds", "gauge", "Smoothed round trip to a connected peer.")
    loss = Family("peer_loss_ratio", "gauge", "Share of datagrams to a connected peer that got lost, lately.")
    calls = Family("peer_calls_total", "counter", "Calls to and from a connected peer, by outcome.")
    for peer in connected[:MAX_PEERS]:
        rtt.add(None if peer.rtt_ms is None else peer.rtt_ms / 1000, peer_id=peer.id)
        loss.add(peer.loss, peer_id=peer.id)
        for outcome in ("made", "failed", "late", "served"):
            calls.add(getattr(peer.calls, outcome), peer_id=peer.id, outcome=outcome)
    yield rtt
    yield loss
    yield calls


def _models(status: Status) -> Iterable[Family]:
    own = [model for model in status.models if model.here]
    nodes = Family("model_nodes", "gauge", "Live nodes that serve any of a model.")
    missing = Family("model_missing_cells", "gauge", "Cells that nobody serves and that are not at home.")
    for model in own:
        nodes.add(model.nodes, model=model.id)
        missing.add(model.missing_cells, model=model.id)
    yield nodes
    yield missing


def _gateway(status: Status) -> Iterable[Family]:
    gateway = status.gateway
    if gateway is None:
        return
    yield _gauge("gateway_ready", "1 while the API answers.", int(gateway.ready))
    yield _gauge("gateway_active", "Answers being made.", gateway.active)
    yield _gauge("gateway_waiting", "Requests that wait.", gateway.waiting)
    answers = Family("gateway_answers_total", "counter", "Answers that ended, by outcome.")
    for outcome in ("answered", "left", "failed"):
        answers.add(getattr(gateway, outcome), outcome=outcome)
    yield answers
    yield _counter("gateway_refused", "Requests for which there was no room.", gateway.refused)
    yield _counter("gateway_prompt_tokens", "Tokens of prompts.", gateway.prompt_tokens)
    yield _counter("gateway_cached_tokens", "Of these, known from before.", gateway.cached_tokens)
    yield _counter("gateway_tokens", "Tokens chosen.", gateway.tokens)


def _market(status: Status) -> Iterable[Family]:
    market = status.market
    if market is None:
        return
    yield _gauge("market_owed_credits", "What others owe this node, by signed receipts.", market.owed / MICRO)
    yield _gauge(
        "market_owes_credits", "What this node owes others, by signed receipts.", market.owes / MICRO
    )
    spent = market.spent_today / MICRO
    yield _gauge("market_spent_today_credits", "Spent by the backbone since midnight UTC.", spent)
    price = Family("market_price_credits", "gauge", "Mean price of a pair that this node asks, by model.")
    for each in market.asks:
        price.add(each.mean / MICRO, model=each.model)
    yield price


def _lines(family: Family) -> str:
    name = f"panal_{family.name}"
    lines = [f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}"]
    for labels, value in family.samples:
        told = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        lines.append(f"{name}{{{told}}} {value!r}" if told else f"{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
