"""The parts of a running node that its status is read off. They appear one by one while it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from node.decode.continuous.decoder import Decoder
from node.decode.live_backbone import LiveBackbone
from node.model.store import Store
from node.serve.server import ExpertServer
from node.status.market_facts import MarketSource
from node.swarm.node import SwarmNode


class Given(Protocol):
    """Counts of weights that were sent to others."""

    chunks: int
    sent_bytes: int
    refused: int


class Giver(Protocol):
    """Sends weights to others (node.serve.cell_server, node.share)."""

    @property
    def counts(self) -> Given: ...


class PauseFacts(Protocol):
    """node.device.pause_rules.PauseState."""

    @property
    def paused(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def text(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def until(self) -> float | None: ...
    @property
    def by_hand(self) -> bool: ...
    def as_dict(self) -> dict[str, Any]: ...


class Pauser(Protocol):
    """node.device.pausing.Pausing."""

    @property
    def state(self) -> PauseFacts: ...
    def pause(self, seconds: float | None = None) -> PauseFacts: ...
    def resume(self) -> PauseFacts: ...


class Chosen(Protocol):
    """What a node chose to serve of a model (node.device.chosen_serving.ChosenFacts)."""

    @property
    def model_id(self) -> str: ...
    @property
    def budget(self) -> int: ...
    @property
    def lacking_bytes(self) -> int: ...
    @property
    def why(self) -> str: ...


class Door(Protocol):
    """node.http.door.HttpDoor."""

    @property
    def connections(self) -> int: ...


@dataclass
class Sources:
    """Set as the parts come and go; None, or empty, is what a node does not have, or not yet.

    Attributes:
        node: its place in the swarm; nothing is told before it is there.
        name: the node's, "" if it has none.
        store: the models of this device.
        server: what serves experts.
        givers: who sends weights.
        live, decoder: its backbone.
        model_id: of the backbone that is configured, loaded or not; "" without one.
        why_not: why it does not answer now; "" if it does.
        pauser: who decides whether it serves.
        chosen: what it chose to serve itself.
        door: the HTTP listener.
        market: None where everything is free.
        started_at: unix time.
    """

    node: SwarmNode | None = None
    name: str = ""
    store: Store | None = None
    server: ExpertServer | None = None
    givers: Sequence[Giver] = ()
    live: LiveBackbone | None = None
    decoder: Decoder | None = None
    has_backbone: bool = False
    model_id: str = ""
    why_not: Callable[[], str] = str
    pauser: Pauser | None = None
    chosen: Callable[[], Sequence[Chosen]] = tuple
    door: Door | None = None
    market: MarketSource | None = None
    started_at: float = field(default_factory=time.time)
