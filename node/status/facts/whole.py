"""The whole status, and its warnings."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from node.status.facts.answers import Answer, Gateway
from node.status.facts.market import Market
from node.status.facts.models import Model
from node.status.facts.peers import Peer
from node.status.facts.this_node import Node

WarningCode = Literal[
    "clone",
    "clock",
    "unreachable",
    "udp-blocked",
    "alone",
    "peer",
    "missing-cells",
    "relay-full",
    "disk-full",
    "paused",
    "membership",
    "credit",
    "convicted",
]
"""What a warning is about. A later version may have more."""


class Warning(Struct, frozen=True):
    """Something the owner may have to do something about.

    Attributes:
        level: "error": something does not work; "warning": it may not; "info": the owner wanted it so.
        what: one line; advice: what to do, one line.
        since: when it was first so.
    """

    code: WarningCode
    level: Literal["error", "warning", "info"]
    what: str
    advice: str
    since: float


class Status(Struct, frozen=True):
    """The whole answer.

    Attributes:
        version: `VERSION`.
        at: when these facts were gathered.
        peers: online first, then heard, then offline; within these by name and id.
        peers_left_out: how many more there are than are told.
        models: this node's own first.
        answers: the newest first.
        warnings: the gravest first.
        market: null where everything is free.
    """

    version: int
    at: float
    node: Node
    peers: list[Peer]
    peers_left_out: int
    models: list[Model]
    answers: list[Answer]
    gateway: Gateway | None
    warnings: list[Warning]
    market: Market | None = None
