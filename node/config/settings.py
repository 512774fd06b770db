"""What a config comes to: paths resolved, addresses parsed. Data alone; `meaning` makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from market.credits import MICRO as MICRO
from node.config.shape import (
    DEFAULT_SHARE_RATE,
    Backend,
    Combine,
    Draft,
    MarketMode,
    Prefer,
    RelayTable,
    Wire,
)
from node.device.schedule import ALWAYS, Schedule
from node.ranges import Ranges
from node.sizes import MemoryBudget
from routing.control_address import ControlAddress
from routing.errors import LocalError
from routing.membership import Swarm
from routing.multiaddr import ListenAddress, PeerAddress

MODEL_ID = re.compile(
    r"[0-9a-f]{6,64}", re.ASCII
)  # BLAKE3 in hex, or as little as the store takes (MIN_PREFIX)


class ConfigError(LocalError):
    """A config that cannot be used; names the file, the key and what is allowed."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """What a config or a command line calls a model. Exactly one of the two is set.

    Attributes:
        path: a GGUF or slice file.
        model_id: 6 to 64 hex digits, the beginning of the id of a model in the store.
    """

    path: Path | None = None
    model_id: str | None = None

    @classmethod
    def parse(cls, text: str, base: Path) -> ModelRef:
        """Hex digits are a model id, everything else a path relative to `base` ("./cafe0123" too)."""
        if MODEL_ID.fullmatch(text):
            return cls(model_id=text)
        return cls(path=resolve_path(text, base))

    def __str__(self) -> str:
        return str(self.path or self.model_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConfig:
    """[swarm]: where this node listens and whom it knows.

    Attributes:
        listen: the node's one UDP socket, for listening and for dialing.
        peers: QUIC addresses of nodes to begin with; each names its peer id.
        control_peers: the same for TCP and WebSocket: nodes, relays and DHT servers of any libp2p.
        backend: which QUIC core drives the connections.
        swarm: the one this node is in.
        member: the file of its member certificate; None in an open swarm.
        lan: whether nodes on the same network are looked for and told of this one.
        control: where the control plane listens for TCP; None: it only dials.
        control_is_chosen: the file says where, so no other port will do.
        advert_seconds: how long one advert of this node lives.
        share_cells: whether peers may copy the cells that this node serves.
        share_rate: bytes a second that it sends of them at most.
    """

    listen: ListenAddress
    peers: tuple[PeerAddress, ...]
    control_peers: tuple[ControlAddress, ...]
    backend: Backend
    swarm: Swarm
    member: Path | None
    lan: bool
    control: tuple[str, int] | None
    advert_seconds: int
    share_cells: bool = True
    share_rate: int = DEFAULT_SHARE_RATE
    control_is_chosen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """[relay]: what this node does for those who cannot be reached, and where it turns to itself.

    Attributes:
        table: the limits and switches as written.
        websocket: where WebSockets are accepted, (host, port); None: nowhere.
        certificate, certificate_key: PEM files of a WebSocket listener that stands alone; None behind
            a proxy.
        ca: PEM file of the authority that signed a relay's certificate; None: the system's.
        announce: addresses under which the relay is reached besides its own, as a proxy's.
    """

    table: RelayTable
    websocket: tuple[str, int] | None
    certificate: Path | None
    certificate_key: Path | None
    ca: Path | None
    announce: tuple[ControlAddress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """[engine]: which llama.cpp, and how much of this machine.

    Attributes:
        library: another llama.cpp build than the wheel's, or None.
        threads: of a computation.
    """

    library: Path | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeConfig:
    """One [[backbone.home]]: cells this node computes for itself.

    Attributes:
        experts: None means all of these layers.
    """

    layers: Ranges
    experts: Ranges | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """[http]: where the status page and the API are.

    Attributes:
        listen: (host, port); None: nowhere.
        is_chosen: the file says where, so no other port will do.
        hosts: names it answers to, besides those of loopback and the address itself.
        key_file: holds the key that every request must show; always there beyond loopback.
    """

    listen: tuple[str, int] | None
    is_chosen: bool
    hosts: tuple[str, ...]
    key_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """[backbone]: the model whose trunk runs here.

    Attributes:
        model: the whole model, or one in the store.
        combine: how answers are put together.
        wire: how hidden states travel; auto: in the smallest way that the model passed `panal verify` with.
        context: tokens of KV cache; None: what the model was trained with, at most 4096.
        ubatch: tokens llama.cpp computes in one graph.
        deadline: seconds a call to an expert server may take.
        draft: who guesses the next tokens, so that one pass yields several; auto: whoever it pays with.
        draft_model: a small model with the same vocabulary that guesses; whole, by path or id.
        exact: passes are made so that guessing changes no token (node.decode.exactness).
        home_memory: for cells that are computed here instead of by others, which ones the plan says.
        home: the same, cell by cell; not both.
        sessions: answers under way together, each with a KV cache of its own (`exact`).
        queue: requests that may wait for their turn.
        prefix_cache: what a prompt has in common with earlier ones is not computed again.
    """

    model: ModelRef
    combine: Combine
    wire: Wire
    context: int | None
    ubatch: int
    deadline: float
    draft: Draft
    draft_model: ModelRef | None
    exact: bool
    home_memory: MemoryBudget | None
    home: tuple[HomeConfig, ...]
    sessions: int = 8
    queue: int = 64
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One [[serve]]: cells this node computes for others.

    Attributes:
        model: a GGUF file, a slice file, or a model in the store.
        layers: None means every layer that the file holds.
        experts: None means every expert that the file holds.
        memory: the node chooses itself what to serve within it (node.device.serving_choice).
    """

    model: ModelRef
    layers: Ranges | None
    experts: Ranges | None
    memory: MemoryBudget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """[device]: what stays its owner's.

    Attributes:
        schedule: when it serves.
        idle_only: it serves only while nobody else uses it (node.device.device_use).
    """

    schedule: Schedule = ALWAYS
    idle_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketConfig:
    """[market]: what cells cost, how far others are trusted, what an answer may cost. Amounts are in
    micro-credits, prices in per cent of a cell's base price (market.price).

    Attributes:
        mode: "free" makes nothing of all this; "fixed" asks `price`, "scarcity" what the swarm's need says.
        floor, cap: bounds of a scarcity price.
        prefer: whom a backbone asks among servers that hold the same.
        budget_answer, budget_day: what may be spent; None: as much as it takes.
        credit_line: the most that one peer, which has provided or paid before, may owe.
        newcomers: a day's credit for all peers together that have not.
        second: what a second of waiting is worth, for "balanced".
        audit: share of calls that are run again elsewhere.
        vouch: it tells peers that it has receipts with whom it paid besides.
        uplink: bits a second that this device can send; None: that limits nothing.
    """

    mode: MarketMode = "free"
    price: int = 100
    floor: int = 25
    cap: int = 1600
    prefer: Prefer = "fast"
    budget_answer: int | None = None
    budget_day: int | None = None
    credit_line: int = 1000 * MICRO
    newcomers: int = 200 * MICRO
    second: int = 10 * MICRO
    audit: float = 0.05
    vouch: bool = True
    uplink: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether there is no market: nobody asks, nobody pays, nothing is written down."""
        return self.mode == "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A whole config.

    Attributes:
        path: the file it came from, for messages.
        name: what the node calls itself, or None.
        store: folder of trunks and manifests; nodes on one machine may share it.
        identity_path: the node's private key; every node has its own.
    """

    path: Path
    name: str | None
    store: Path
    identity_path: Path
    swarm: SwarmConfig
    relay: RelayConfig
    engine: EngineConfig
    http: HttpConfig
    backbone: BackboneConfig | None
    serve: tuple[ServeConfig, ...]
    device: DeviceConfig = DeviceConfig()
    market: MarketConfig = MarketConfig()

    def require_backbone(self) -> BackboneConfig:
        """The [backbone] table, or a ConfigError that says how to write one."""
        if self.backbone is None:
            raise ConfigError(
                f'{self.path}: has no [backbone]; add one with model = "FILE.gguf" to run a model from here'
            )
        return self.backbone

    def require_serve(self) -> tuple[ServeConfig, ...]:
        """The [[serve]] tables, or a ConfigError that says how to write one."""
        if not self.serve:
            raise ConfigError(
                f'{self.path}: serves nothing; add a [[serve]] with model = "FILE.gguf" to serve its '
                "experts, or [relay] serve = true to help others meet"
            )
        return self.serve


def resolve_path(text: str, base: Path) -> Path:
    if "\0" in text:
        raise ConfigError(f"{text!r} is not a path: it holds a NUL")
    try:
        return base / Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{text}: no home folder is known for ~; write the whole path") from None
