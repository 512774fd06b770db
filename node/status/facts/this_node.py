"""This node's own part of the status."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from node.status.facts.runs import Runs


class Swarm(Struct, frozen=True):
    """The swarm this node is in.

    Attributes:
        id: 64 hexadecimal digits.
        private: only members are let in.
    """

    name: str
    id: str
    private: bool


class Reach(Struct, frozen=True):
    """How this node can be reached, by evidence (relay.reachability).

    Attributes:
        verdict: whether datagrams arrive that it did not ask for; "private" on loopback.
        reason: why, in one line; evidence: what it rests on, a line each.
        mapping, filtering: what a NAT or firewall does.
        udp: whether UDP gets out at all; None while no peer is connected that could tell.
        port_kept: the NAT keeps this node's own port.
        seen_at: where peers see this node, "host:port", the best first.
    """

    verdict: Literal["unknown", "public", "private"] = "unknown"
    reason: str = ""
    evidence: list[str] = []
    mapping: Literal["unknown", "none", "independent", "dependent"] = "unknown"
    filtering: Literal["unknown", "none", "address", "port"] = "unknown"
    udp: bool | None = None
    port_kept: bool | None = None
    seen_at: list[str] = []


class RelayServing(Struct, frozen=True):
    """What this node does as a relay.

    Attributes:
        addresses: where it takes connections as one.
        reservations: peers that can be reached through it now; max_reservations: at most.
        circuits: connections that pass through it now; max_circuits: at most.
        circuits_opened, relayed_bytes: since the start.
        refused: requests since the start, by the name of the status that was told.
    """

    addresses: list[str]
    reservations: int
    max_reservations: int
    circuits: int
    max_circuits: int
    circuits_opened: int
    relayed_bytes: int
    refused: dict[str, int]


class Relay(Struct, frozen=True):
    """Attributes:
    serving: null if it is no relay.
    using: relays through which others reach this node, as multiaddrs.
    """

    serving: RelayServing | None = None
    using: list[str] = []


class Pause(Struct, frozen=True):
    """Why nothing is served now (node.device.pausing).

    Attributes:
        reasons: all that hold: "hand", "schedule", "in_use", "battery"; a later version may have more.
        text: the same in words.
        since: when it began; until: when it is known to end, null if it is not.
        by_hand: resuming changes something.
    """

    reasons: list[str]
    text: str
    since: float
    until: float | None
    by_hand: bool


class Served(Struct, frozen=True):
    """What this node serves of a model; what it has on offer, if it is paused.

    Attributes:
        model: 64 hexadecimal digits.
        name: of the file it came from, "" if unknown.
        cells: how many; experts: which.
        bytes: of weights, mapped from files.
        budget_bytes: what the node may choose to serve, null where the owner has chosen.
        lacking_bytes: chosen as well, and still to be fetched.
        why: the last choice in words, "" where the owner has chosen.
    """

    model: str
    name: str
    architecture: str
    cells: int
    bytes: int
    experts: Runs
    budget_bytes: int | None = None
    lacking_bytes: int = 0
    why: str = ""


class Memory(Struct, frozen=True):
    """Of this process, as the system counts it.

    Attributes:
        rss_bytes: in RAM now: the sum of the other two and shared memory.
        anonymous_bytes: its own: caches, buffers, Python.
        mapped_bytes: of mapped files: weights that were touched. The system takes them back when others need
            the room.
    """

    rss_bytes: int | None = None
    anonymous_bytes: int | None = None
    mapped_bytes: int | None = None


class Load(Struct, frozen=True):
    """How busy it is.

    Attributes:
        wait_ms: what a call for experts that arrives now would wait.
        cpu: share of all cores that this process used lately, 0 to 1.
        cores: how many there are.
    """

    wait_ms: int | None = None
    cpu: float | None = None
    cores: int = 1


class Traffic(Struct, frozen=True):
    """Over the QUIC plane, everything included.

    Attributes:
        up, down: bytes a second, lately.
        sent_bytes, received_bytes: since the start.
    """

    up: float = 0.0
    down: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


class Work(Struct, frozen=True):
    """What this node has done for others since it started.

    Attributes:
        calls: for experts that were answered; refused: that were not.
        pairs: (token, expert) pairs computed; compute_seconds: what they took.
        chunks, chunk_bytes: of weights sent to those who copy cells.
    """

    calls: int = 0
    refused: int = 0
    pairs: int = 0
    compute_seconds: float = 0.0
    chunks: int = 0
    chunk_bytes: int = 0


class Node(Struct, frozen=True):
    """This node.

    Attributes:
        name: what its owner calls it, "" if nothing.
        version: of panal.
        addresses: where others reach it, as multiaddrs with its peer id.
        state: "nothing": it has nothing to serve; "paused" goes before that.
        pause: null unless state is "paused".
    """

    name: str
    peer_id: str
    short_id: str
    version: str
    started_at: float
    uptime_seconds: int
    swarm: Swarm
    addresses: list[str]
    reach: Reach
    relay: Relay
    state: Literal["serving", "paused", "nothing"]
    pause: Pause | None
    serves: list[Served]
    memory: Memory
    load: Load
    traffic: Traffic
    work: Work
