"""The other nodes in the status."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from node.status.facts.runs import Runs


class Route(Struct, frozen=True):
    """How a peer is reached.

    Attributes:
        kind: and reason: why this and nothing better.
        via: the relay's peer id, "" without one.
        transport: what the QUIC packets travel in.
    """

    kind: Literal["direct", "punched", "relayed"]
    reason: str
    via: str
    transport: Literal["udp", "tcp"]


class Held(Struct, frozen=True):
    """What a peer says it serves of a model."""

    model: str
    cells: int
    experts: Runs


class PeerCalls(Struct, frozen=True):
    """Calls since this node started, or since this peer was first met.

    Attributes:
        made: that this node made and the peer answered; failed: that it did not, or not well.
        late: answers that were not there when they should have been.
        served: that the peer made and this node answered.
    """

    made: int = 0
    failed: int = 0
    late: int = 0
    served: int = 0


class Peer(Struct, frozen=True):
    """Another node.

    Attributes:
        name: what its owner calls it, "" if nothing.
        version: of its panal, "" if it did not say.
        state: "online": connected with this node. "heard": its advert lives, but the two are not connected.
            "offline": it was connected and is not, said farewell, or does not answer although it is wanted.
        connected: state is "online".
        reason: why it is offline, "" otherwise.
        route, rtt_ms, loss, since: of the connection, null without one. loss: share of the datagrams sent to
            it that were lost, 0 to 1. since: when it was connected.
        address: "host:port" where it is, or was; of a relayed one the relay's peer id; "" if unknown.
        last_seen: when it was last heard of; of one that is online, to within ten seconds. null: never.
        reach: its own verdict; relays: it relays for others.
        holds: what it serves.
        load_ms: what a call would wait there, as it says; null if it did not say.
        credit: credits that it owes by receipts of both sides, negative: that this node owes it; null where
            everything is free, and where nothing was ever signed.
        unusable: why this node's model cannot ask it, "" if it can, or if that is not known.
    """

    id: str
    short_id: str
    name: str
    version: str
    state: Literal["online", "heard", "offline"]
    connected: bool
    reason: str
    route: Route | None
    address: str
    rtt_ms: float | None
    loss: float | None
    since: float | None
    last_seen: float | None
    reach: Literal["unknown", "public", "private"]
    relays: bool
    holds: list[Held]
    calls: PeerCalls
    load_ms: int | None
    credit: float | None
    unusable: str
