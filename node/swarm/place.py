"""What a node must know to take its place in a swarm; from a config, or for a handful of given peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.config import NodeConfig, RelayConfig, SwarmConfig
from node.config.shape import Backend, RelayTable
from routing.identity import Identity
from routing.membership import OPEN_SWARM
from routing.multiaddr import ListenAddress, PeerAddress


@dataclass(frozen=True)
class Place:
    """A node's place.

    Attributes:
        memory: file of remembered peers; None remembers nobody.
    """

    identity: Identity
    swarm: SwarmConfig
    relay: RelayConfig
    memory: Path | None

    @classmethod
    def of(cls, config: NodeConfig) -> Place:
        """As a config says; makes the identity if there is none.

        Raises:
            LocalError: the key file cannot be used.
        """
        identity = Identity.load_or_create(config.identity_path)
        memory = config.store / "peers" / f"{identity.peer_id}.sqlite"
        return cls(identity, config.swarm, config.relay, memory)

    @classmethod
    def among(cls, peers: Sequence[PeerAddress], *, identity: Identity, backend: Backend = "qh3") -> Place:
        """With these peers only: no control plane, nothing looked for and nothing remembered."""
        swarm = SwarmConfig(
            listen=ListenAddress("0.0.0.0", 0),
            peers=tuple(peers),
            control_peers=(),
            backend=backend,
            swarm=OPEN_SWARM,
            member=None,
            lan=False,
            control=None,
            advert_seconds=600,
        )
        relay = RelayConfig(
            table=RelayTable(use=False),
            websocket=None,
            certificate=None,
            certificate_key=None,
            ca=None,
            announce=(),
        )
        return cls(identity, swarm, relay, None)
