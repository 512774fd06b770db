"""Where a peer is, as coarse as newcomers' credit is shared out: identities cost nothing, networks do."""

from __future__ import annotations

from collections.abc import Callable

from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.paths import is_carried
from routing.subnet import subnet_of

GONE = "gone"
"""Of all connections whose carrier has ended: they may have come from one machine."""

RELAY = "relay "
"""What a carried path's origin begins with if it is a relay's peer id (routing.quic.paths)."""


def neighbourhood_of(
    endpoint: Endpoint, connection: Connection | None, relay_ip: Callable[[str], str] = lambda relay: ""
) -> str:
    """A peer's network, or the relay it comes through; "" if that is this node's own network, or gone.

    Args:
        relay_ip: the address of a relay by its peer id, "" if unknown. Whoever comes through any relay of one
            network is in that: a machine can be as many relays as it has ports.
    """
    if connection is None:
        return ""
    path = endpoint.path_of(connection)
    origin = connection.first_address[0] if path is None else path.origin
    if path is None and is_carried(origin):
        return GONE
    if origin.startswith(RELAY):
        return _network(relay_ip(origin.removeprefix(RELAY))) or origin
    return _network(origin)


def _network(host: str) -> str:
    """ "" for this node's own; what is no address stands for itself."""
    try:
        return subnet_of(host)
    except ValueError:
        return host
