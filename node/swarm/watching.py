"""Who is told what happens in the swarm: command line, tables, tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relay.reachability import Reachability
from routing.advert_rows import Offer
from routing.routes import Route
from routing.wire.holdings import Holdings


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Watching:
    """Called on the event loop; none may wait.

    Attributes:
        connected: (peer id, what it serves), once it is in use.
        lost: (peer id, reason in words).
        routed: (peer id, route), when the way to a peer is chosen or changes.
        heard: each change of the table of adverts.
        gone: peers whose adverts have ended without a farewell.
        reached: each verdict on this node's own reachability.
    """

    connected: Callable[[str, Holdings], None] = _nothing
    lost: Callable[[str, str], None] = _nothing
    routed: Callable[[str, Route], None] = _nothing
    heard: Callable[[Offer], None] = _nothing
    gone: Callable[[str], None] = _nothing
    reached: Callable[[Reachability], None] = _nothing


NOBODY = Watching()
