"""What peers are called in tables: name and the end of the id, where the running node knows the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from routing.wire.text import sanitise

if TYPE_CHECKING:
    from node.config import NodeConfig

NAME_BYTES = 24
"""Of a name: a table has other columns."""

ID_CHARS = 8
"""Of an id, from its end: as many as commands take."""


def peer_labels(config: NodeConfig) -> Callable[[str], str]:
    """By peer id. Without a running node, or for peers that it does not know now, the end of the id alone."""
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running

    names: dict[str, str] = {}
    running = find_running(NodeFolder.of(config), config.http.key_file)
    told = None if running is None else running.get("/api/status")
    peers = told.get("peers") if isinstance(told, dict) else None
    for each in peers if isinstance(peers, list) else ():
        names[str(each["id"])] = sanitise(str(each["name"]), NAME_BYTES)

    def label(peer_id: str) -> str:
        short, name = peer_id[-ID_CHARS:], names.get(peer_id, "")
        return f"{name} ({short})" if name else short

    return label
