"""A node's own files: what no other node may use at the same time.

They lie in the folder of its identity key. Nodes on one machine may share a store (trunks are large), but an
identity is one node's alone; so the lock, the pause and the way to the running process are where the key is.
With a default config both are the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.config import NodeConfig


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """Where a node's own files are. Nothing is made or read here."""

    root: Path

    @classmethod
    def of(cls, config: NodeConfig) -> NodeFolder:
        """As a config says."""
        return cls(config.identity_path.absolute().parent)

    @property
    def lock(self) -> Path:
        """Held by the process that is the node (node.device.lock)."""
        return self.root / "node.lock"

    @property
    def http(self) -> Path:
        """Where the running node answers: JSON with address, pid, version."""
        return self.root / "http.json"

    @property
    def http_token(self) -> Path:
        """What must be shown to change something; mode 0600."""
        return self.root / "http-token"

    @property
    def pause(self) -> Path:
        """The pause by hand, which outlives the process."""
        return self.root / "pause.json"

    @property
    def log(self) -> Path:
        """The end of its log, as JSON lines."""
        return self.root / "panal.log"

    @property
    def market(self) -> Path:
        """What it owes and is owed: receipts, as a database; mode 0600. None where nothing is priced."""
        return self.root / "market.db"

    @property
    def quotes(self) -> Path:
        """What it has asked for its work: callers may pay by that after a restart too; mode 0600."""
        return self.root / "quotes.bin"

    @property
    def served(self) -> Path:
        """What callers have signed for lately, by cell: it chooses by that what it serves; mode 0600."""
        return self.root / "served.bin"

    @property
    def market_lock(self) -> Path:
        """Held by the process that writes the former (node.market.books_lock)."""
        return self.root / "market.lock"

    @property
    def audit(self) -> Path:
        """What was found of peers whose calls were run again, as a database."""
        return self.root / "audit.db"

    @property
    def spent(self) -> Path:
        """What it has paid others, by day; mode 0600."""
        return self.root / "spent.json"

    @property
    def serving(self) -> Path:
        """What it chose to serve, so that it does so again when it starts anew."""
        return self.root / "serving.json"
