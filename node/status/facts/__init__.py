"""What `GET /api/status` tells: the facts of a node, as JSON (docs/status-api.md has the same by field).

1. `VERSION` grows when a field goes or changes its meaning. Fields are added without it: readers pass over
   what they do not know.
2. Times are unix seconds, sizes bytes, durations seconds unless a name says otherwise. What is not known is
   null, never 0.
3. Strings that a peer chose are printable, on one line and bounded by the time they are in here (gather).
4. No key, token, prompt or text of an answer is ever in here.

Pure: structures, and no more.
"""

from __future__ import annotations

from node.status.facts.answers import Answer, Gateway, Trips
from node.status.facts.market import Asking, AuditedPeer, Audits, Credit, FalseAnswer, Market
from node.status.facts.models import Model
from node.status.facts.peers import Held, Peer, PeerCalls, Route
from node.status.facts.runs import Runs
from node.status.facts.this_node import (
    Load,
    Memory,
    Node,
    Pause,
    Reach,
    Relay,
    RelayServing,
    Served,
    Swarm,
    Traffic,
    Work,
)
from node.status.facts.whole import Status, Warning, WarningCode

VERSION = 1
"""Of this format."""

SHORT_ID_CHARS = 8
"""The last ones of a peer id: all begin alike."""

WANTED_REPLICAS = 3
"""Live replicas at which a cell is not scarce: one may go and another be late, and it is still there."""

__all__ = [
    "SHORT_ID_CHARS",
    "VERSION",
    "WANTED_REPLICAS",
    "Answer",
    "Asking",
    "AuditedPeer",
    "Audits",
    "Credit",
    "FalseAnswer",
    "Gateway",
    "Held",
    "Load",
    "Market",
    "Memory",
    "Model",
    "Node",
    "Pause",
    "Peer",
    "PeerCalls",
    "Reach",
    "Relay",
    "RelayServing",
    "Route",
    "Runs",
    "Served",
    "Status",
    "Swarm",
    "Traffic",
    "Trips",
    "Warning",
    "WarningCode",
    "Work",
    "short_id",
]


def short_id(peer_id: str) -> str:
    """How people call a peer that has no name."""
    return peer_id[-SHORT_ID_CHARS:]
