"""A node's status as tables for a terminal. Pure: facts in, texts out.

What a node tells has been made printable where it was taken in; it is made so once more here, since whatever
listens where a node should may have answered.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from market.credits import MICRO, credits_text
from node.sizes import size_text
from node.status.facts import Gateway, Market, Model, Node, Peer, Status
from node.status.facts.runs import runs_in_words
from routing.wire.text import sanitise

TEXT_BYTES = 400
"""Of a cell of a table."""

ERROR_CHARS = 60
"""Of why an answer ended, in a table that has other columns."""

SHOWN_ADDRESSES = 4
"""Addresses and relays in the overview; --json has all."""


@dataclass(frozen=True)
class Table:
    """Rows of texts.

    Attributes:
        title: above it, "" for none.
        header: one title a column; all empty: names and values.
        rows: as many texts each.
        spare: columns that may be left out where the terminal is narrow, the first to go first.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[int, ...] = ()


def overview(status: Status) -> list[Table]:
    """What `panal status` shows."""
    tables = [_facts("", _node_rows(status))]
    if status.gateway is not None:
        tables.append(_facts("api", _gateway_rows(status.gateway)))
    if status.market is not None:
        tables.append(_facts("market", _market_rows(status.market)))
    if status.answers:
        tables.append(_answers(status))
    if status.warnings:
        rows = [(each.level, f"{each.what}: {each.advice}") for each in status.warnings]
        tables.append(_facts("warnings", rows))
    return tables


def peers_table(status: Status) -> list[Table]:
    """What `panal peers` shows."""
    header: tuple[str, ...] = (
        "name", "id", "state", "route", "rtt", "loss", "seen", "cells", "calls", "failed", "served",
        "address", "version",
    )  # fmt: skip
    rows = [_peer_row(peer, status.at) for peer in status.peers]
    if status.market is not None:
        header += ("owes",)
        rows = [(*row, _owes(peer)) for row, peer in zip(rows, status.peers, strict=True)]
    title = peers_in_words(status)
    tables = [Table(title, header, tuple(map(_clean, rows)), spare=(12, 9, 10, 11, 5, 8, 6, 7, 3))]
    reasons = [(peer.name or peer.short_id, peer.reason) for peer in status.peers if peer.reason]
    if reasons:
        tables.append(_facts("offline", reasons))
    return tables


def _owes(peer: Peer) -> str:
    if not peer.credit:
        return "-"
    amount = credits_text(round(abs(peer.credit) * MICRO))
    return amount if peer.credit > 0 else f"we owe {amount}"


def models_table(status: Status) -> list[Table]:
    """What `panal models` shows of a running node."""
    header = ("name", "id", "architecture", "here", "nodes", "cells", "replicas", "missing", "experts")
    rows = [_model_row(model) for model in status.models]
    tables = [Table("", header, tuple(map(_clean, rows)), spare=(2, 8, 3, 7))]
    lacking = [(m.name or m.short_id, runs_in_words(m.missing)) for m in status.models if m.missing_cells]
    if lacking:
        tables.append(_facts("missing", lacking))
    return tables


def peers_in_words(status: Status) -> str:
    """ "3 online (2 direct, 1 relayed), 12 heard, 1 offline"."""
    online = [peer for peer in status.peers if peer.state == "online"]
    kinds = [peer.route.kind for peer in online if peer.route is not None]
    routes = ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("direct", "punched", "relayed") if kind in kinds
    )
    heard = sum(peer.state == "heard" for peer in status.peers)
    offline = sum(peer.state == "offline" for peer in status.peers)
    more = f", {status.peers_left_out} more" if status.peers_left_out else ""
    return f"{len(online)} online{f' ({routes})' if routes else ''}, {heard} heard, {offline} offline{more}"


# --- the node ---


def _node_rows(status: Status) -> list[tuple[str, str]]:
    node = status.node
    rows = [
        ("node", f"{node.name or node.short_id}, panal {node.version}, up {duration(node.uptime_seconds)}"),
        ("peer id", node.peer_id),
        ("swarm", f"{node.swarm.name}, {'private' if node.swarm.private else 'open'}"),
        ("state", _state(node, status.at)),
        ("reach", f"{node.reach.verdict}: {node.reach.reason}"),
    ]
    rows += [("address", each) for each in node.addresses[:SHOWN_ADDRESSES]]
    rows += [("through", each) for each in node.relay.using[:SHOWN_ADDRESSES]]
    if node.relay.serving is not None:
        relay = node.relay.serving
        rows.append(
            (
                "relay",
                f"{relay.reservations} of {relay.max_reservations} reservations, {relay.circuits} of "
                f"{relay.max_circuits} circuits, {size(relay.relayed_bytes)} relayed",
            )
        )
    for held in node.serves:
        what = f"{held.name or held.model[:12]}: {held.cells:,} cells, {size(held.bytes)}"
        rows.append(("serves", f"{what}: {runs_in_words(held.experts)}"))
    rows += [
        ("memory", _memory(node)),
        ("load", _load(node)),
        (
            "traffic",
            f"{size(node.traffic.up)}/s up, {size(node.traffic.down)}/s down; sent "
            f"{size(node.traffic.sent_bytes)}, received {size(node.traffic.received_bytes)}",
        ),
        ("calls", f"{node.work.calls:,} answered, {node.work.refused:,} refused"),
        ("peers", peers_in_words(status)),
    ]
    return rows


def _state(node: Node, at: float) -> str:
    if node.pause is None:
        return {"serving": "serving", "paused": "paused"}.get(node.state, "has nothing to serve")
    until = "" if node.pause.until is None else f", {duration(node.pause.until - at)} left"
    return f"paused {node.pause.text}{until}"


def _memory(node: Node) -> str:
    memory = node.memory
    if memory.rss_bytes is None:
        return "-"
    parts = [f"{size(memory.rss_bytes)} in RAM"]
    if memory.anonymous_bytes is not None and memory.mapped_bytes is not None:
        parts.append(f"{size(memory.anonymous_bytes)} its own, {size(memory.mapped_bytes)} of mapped files")
    return ": ".join(parts)


def _load(node: Node) -> str:
    load = node.load
    parts = [] if load.wait_ms is None else [f"a call waits {load.wait_ms} ms"]
    if load.cpu is not None:
        parts.append(f"{load.cpu:.0%} of {load.cores} cores")
    return ", ".join(parts) or "-"


def _gateway_rows(gateway: Gateway) -> list[tuple[str, str]]:
    return [
        ("state", "ready" if gateway.ready else gateway.reason or "not ready"),
        ("now", f"{gateway.active} of {gateway.slots} at work, {gateway.waiting} of {gateway.queue} waiting"),
        (
            "so far",
            f"{gateway.answered:,} answers, {gateway.failed:,} failed, {gateway.refused:,} turned away; "
            f"{gateway.tokens:,} tokens, {gateway.tokens_per_second:.1f}/s lately",
        ),
    ]


def _market_rows(market: Market) -> list[tuple[str, str]]:
    rows = [
        ("mode", f"{market.mode}; prefers {market.prefer}"),
        ("owed to this node", credits_text(market.owed)),
        ("this node owes", credits_text(market.owes)),
    ]
    if market.spent_today or market.budget_day is not None:
        of = "" if market.budget_day is None else f" of {credits_text(market.budget_day)}"
        rows.append(("spent today", f"{credits_text(market.spent_today)}{of}"))
    for each in market.asks:
        price = f"{each.lowest:,} to {each.highest:,} micro-credits, {each.mean:,.1f} on average"
        rows.append(("asks a pair", f"{price} ({each.model[:12]}, {each.cells:,} cells)"))
    if holders := market.holders_answered + market.holders_silent + market.holders_heard:
        told = f"{market.holders_answered:,} of {holders:,} answer, {market.holders_silent:,} do not"
        rows.append(("other holders", f"{told}, {market.holders_heard:,} not asked yet"))
    if market.audits is not None:
        out = sum(each.until is not None for each in market.audits.peers)
        told = f"{market.audits.checked:,} calls run again, {market.audits.agreed:,} agreed"
        rows.append(("audits", told + (f"; not asked: {out:,} (panal market audits)" if out else "")))
    return rows


def _answers(status: Status) -> Table:
    header: tuple[str, ...] = (
        "ago", "tokens", "tokens/s", "prompt", "cached", "trips/token", "bytes", "stopped",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            duration(status.at - each.at),
            f"{each.tokens:,}",
            f"{each.tokens_per_second:.1f}",
            f"{each.prompt_tokens:,}",
            f"{each.cached_tokens:,}",
            f"{each.trips.trips_per_token:.2f}",
            size(each.trips.sent_bytes + each.trips.received_bytes),
            each.stopped if not each.error else f"{each.stopped}: {_start(each.error)}",
        )
        for each in status.answers[:10]
    ]
    if any(each.trips.cost for each in status.answers[:10]):
        header += ("cost",)
        rows = [
            (*row, credits_text(each.trips.cost)) for row, each in zip(rows, status.answers[:10], strict=True)
        ]
    return Table("last answers", header, tuple(map(_clean, rows)), spare=(4, 6, 3, 5))


# --- peers and models ---


def _peer_row(peer: Peer, at: float) -> tuple[str, ...]:
    route = ""
    if peer.route is not None:
        over = "" if peer.route.transport == "udp" else f"/{peer.route.transport}"
        route = f"{peer.route.kind}{over}"
    seen = "never" if peer.last_seen is None else f"{duration(at - peer.last_seen)} ago"
    return (
        peer.name or "-",
        peer.short_id,
        peer.state,
        route or "-",
        "-" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms",
        "-" if peer.loss is None else f"{peer.loss:.1%}",
        "now" if peer.connected else seen,
        f"{sum(held.cells for held in peer.holds):,}",
        f"{peer.calls.made:,}",
        f"{peer.calls.failed:,}",
        f"{peer.calls.served:,}",
        peer.address or "-",
        peer.version or "-",
    )


def _model_row(model: Model) -> tuple[str, ...]:
    counts = base64.b64decode(model.replicas)
    cells = len(counts)
    lowest, mean = (min(counts), sum(counts) / cells) if cells else (0, 0.0)
    return (
        model.name or "-",
        model.short_id,
        model.architecture or "-",
        ", ".join(model.here) or "-",
        f"{model.nodes:,}",
        f"{len(model.layers)} x {model.experts}",
        f"{lowest} to {max(counts, default=0)}, mean {mean:.1f}",
        f"{model.missing_cells:,}",
        "-" if model.expert_bytes is None else size(model.expert_bytes),
    )


# --- texts ---


def size(count: float) -> str:
    """Bytes as people read them."""
    return size_text(round(count))


def duration(seconds: float) -> str:
    """Seconds as people read them, in one or two units."""
    left = max(int(seconds), 0)
    if left < 60:
        return f"{left} s"
    if left < 3600:
        return f"{left // 60} min"
    if left < 86400:
        return f"{left // 3600} h {left % 3600 // 60} min"
    return f"{left // 86400} d {left % 86400 // 3600} h"


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table(title, ("", ""), tuple(map(_clean, rows)))


def _start(text: str) -> str:
    """Of an error, what a column has room for; the page and --json have all."""
    return text if len(text) <= ERROR_CHARS else text[: ERROR_CHARS - 1].rstrip() + "\u2026"


def _clean(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(sanitise(each, TEXT_BYTES) for each in row)
