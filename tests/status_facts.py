"""A status for tests, with something in every field; a test says only what differs."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np

from node.status import facts
from tests.adverts import identity

AT = 1_800_000_000.0
MODEL = "a1b2c3d4e5f60718" * 4


def peer(who: str = "attic", **fields: Any) -> facts.Peer:
    """A connected peer."""
    base: dict[str, Any] = {
        "id": str(identity(who).peer_id),
        "short_id": facts.short_id(identity(who).peer_id),
        "name": who,
        "version": "0.1.0",
        "state": "online",
        "connected": True,
        "reason": "",
        "route": facts.Route("punched", "both NATs keep one port for all destinations", "", "udp"),
        "address": "198.51.100.3:51022",
        "rtt_ms": 41.3,
        "loss": 0.0021,
        "since": AT - 3600,
        "last_seen": AT,
        "reach": "private",
        "relays": False,
        "holds": [facts.Held(MODEL, 16, [(0, 3, [(0, 3)])])],
        "calls": facts.PeerCalls(912, 1, 7, 40),
        "load_ms": 3,
        "credit": None,
        "unusable": "",
    }
    return facts.Peer(**(base | fields))


def offline(who: str, **fields: Any) -> facts.Peer:
    """A peer that is gone."""
    gone: dict[str, Any] = {
        "state": "offline", "connected": False, "reason": "no sign of life for 4 PINGs", "route": None,
        "rtt_ms": None, "loss": None, "since": None, "last_seen": AT - 200, "load_ms": None, "holds": [],
    }  # fmt: skip
    return peer(who, **(gone | fields))


def node(**fields: Any) -> facts.Node:
    """This node, paused."""
    own = identity("kitchen").peer_id
    base: dict[str, Any] = {
        "name": "kitchen",
        "peer_id": str(own),
        "short_id": facts.short_id(own),
        "version": "0.1.0",
        "started_at": AT - 3600,
        "uptime_seconds": 3600,
        "swarm": facts.Swarm("panal", "0f" * 32, False),
        "addresses": [f"/ip4/192.168.1.7/udp/4190/quic-v1/p2p/{own}"],
        "reach": facts.Reach(
            verdict="public",
            reason="uninvited packets arrive: 2 peers had some sent",
            evidence=[f"stranger at 198.51.100.77, asked by {own}, to 203.0.113.9:4190: arrived"],
            mapping="independent",
            filtering="none",
            udp=True,
            port_kept=True,
            seen_at=["203.0.113.9:4190"],
        ),
        "relay": facts.Relay(
            facts.RelayServing(
                [f"/ip4/203.0.113.9/tcp/4190/p2p/{own}"], 3, 128, 1, 128, 17, 48_213_377, {"X": 2}
            ),
            ["/ip4/198.51.100.9/tcp/4190/p2p/" + str(identity("relay").peer_id)],
        ),
        "state": "paused",
        "pause": facts.Pause(["hand"], "by hand", AT - 60, None, True),
        "serves": [facts.Served(MODEL, "small", "qwen3moe", 16, 3_221_225_472, [(0, 3, [(0, 3)])])],
        "memory": facts.Memory(4_100_000_000, 310_000_000, 3_780_000_000),
        "load": facts.Load(12, 0.34, 8),
        "traffic": facts.Traffic(152_331.5, 48_113.0, 9_812_334_112, 2_311_998_120),
        "work": facts.Work(18_233, 4, 301_222, 512.7, 120, 62_914_560),
    }
    return facts.Node(**(base | fields))


def model(**fields: Any) -> facts.Model:
    """4 layers of 8 experts, of which 4 cells are missing."""
    counts = np.zeros((4, 8), np.uint8)
    counts[:, :4] = 2
    counts[:3, 4:] = 1
    base: dict[str, Any] = {
        "id": MODEL,
        "short_id": MODEL[:12],
        "name": "small",
        "architecture": "qwen3moe",
        "here": ["serves", "backbone"],
        "layers": [0, 1, 2, 3],
        "experts": 8,
        "expert_bytes": 12_884_901_888,
        "nodes": 3,
        "replicas": base64.b64encode(counts.tobytes()).decode(),
        "wanted_replicas": facts.WANTED_REPLICAS,
        "scarcity": None,
        "home": [],
        "missing": [(3, 3, [(4, 7)])],
        "missing_cells": 4,
    }
    return facts.Model(**(base | fields))


def audits(**fields: Any) -> facts.Audits:
    """One peer is as it should be; another was found out."""
    attic, liar = str(identity("attic").peer_id), str(identity("old laptop").peer_id)
    base: dict[str, Any] = {
        "share": 0.05, "checked": 412, "agreed": 409, "unsettled": 2, "convicted": 1, "same_bytes": 371,
        "waiting": 1, "missed": 3, "canaries": 64,
        "peers": [
            facts.AuditedPeer(liar, "", 40, 38, 0, False, 1, AT + 590, 0.0, 0.0),
            facts.AuditedPeer(attic, "90af3e51c27b6d08", 372, 371, 1, True, 0, None, 96.2, 0.4),
        ],
        "peers_left_out": 0,
        "evidence": [
            facts.FalseAnswer(
                AT - 10, liar, MODEL, 3, 0, 12, "home", 1.98, 0.021, "differs from what was computed here",
                None,
            )
        ],
    }  # fmt: skip
    return facts.Audits(**(base | fields))


def status(**fields: Any) -> facts.Status:
    """All of it."""
    attic = str(identity("attic").peer_id)
    trips = facts.Trips(
        66, 3120, 24.375, 9_812_332, 8_112_331, 4.9, 0.31, 120, 61, 3, 1, 2, 0, "", 431_200, {attic: 431_200}
    )
    base: dict[str, Any] = {
        "version": facts.VERSION,
        "at": AT,
        "node": node(),
        "peers": [peer(), offline("old laptop")],
        "peers_left_out": 0,
        "models": [model()],
        "answers": [
            facts.Answer(41, AT - 30, MODEL, 412, 380, 128, "end", 0.0, 0.412, 6.1, 20.98, trips, "")
        ],
        "gateway": facts.Gateway(
            MODEL, True, "", 8192, 2, 1, 8, 0, 64, 5120, 41, 3, 0, 0, 18_230, 9_112, 5_230, 31.4
        ),
        "market": facts.Market(
            "scarcity",
            "balanced",
            2_500_000,
            0,
            431_200,
            5_000_000,
            None,
            [facts.Asking(MODEL, 1_800_000_000_123, AT + 1200, 28, 120, 154.3, 310)],
            [facts.Credit(attic, 2_500_000, 31_200, 0, 200_000_000, "", "", "", "", 500_000)],
            0,
            audits(),
        ),
        "warnings": [
            facts.Warning("paused", "info", "this node serves nothing now", "panal resume ends it", AT)
        ],
    }
    return facts.Status(**(base | fields))


def as_json(told: facts.Status) -> Any:
    """As a program gets it."""
    return msgspec.json.decode(msgspec.json.encode(told))
