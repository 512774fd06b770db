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


class Watchers:
    """Several who watch the same, some of whom come later."""

    def __init__(self, first: Watching) -> None:
        self._all = [first]
        self.watching = Watching(
            connected=lambda *said: self._tell("connected", *said),
            lost=lambda *said: self._tell("lost", *said),
            routed=lambda *said: self._tell("routed", *said),
            heard=lambda *said: self._tell("heard", *said),
            gone=lambda *said: self._tell("gone", *said),
            reached=lambda *said: self._tell("reached", *said),
        )

    def add(self, watching: Watching) -> None:
        """One more, who hears what comes from now on."""
        self._all.append(watching)

    def remove(self, watching: Watching) -> None:
        """It hears nothing more."""
        self._all.remove(watching)

    def _tell(self, what: str, *said: object) -> None:
        for each in tuple(self._all):
            getattr(each, what)(*said)
