"""The two roots of every error a person can meet: what we did wrong, and what a peer did wrong.

The text of either is one line that says what, where and what to do; the command line prints it
as it stands. Anything else that escapes is a bug.
"""

from __future__ import annotations


class PanalError(Exception):
    """Base of both roots. `str()` of it is one line for a person."""


class LocalError(PanalError):
    """This node, its config, its files or its user: exit code 2."""


class PeerError(PanalError):
    """A peer sent or did something it may not, or went away. Names the peer.

    Attributes:
        peer: the peer's id as text, or its address while the id is unknown; "" if not yet known.
    """

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class HeldBack(PeerError):
    """A peer was not tried at all addresses that it has, for a limit of this side: it says nothing of the
    peer."""
