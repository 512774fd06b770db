"""What can go wrong on the plane, seen by its users. All of it is a peer's doing or the network's."""

from __future__ import annotations

from routing.errors import PeerError


class ConnectFailed(PeerError):
    """No connection: nobody answered in time, or the handshake was refused."""


class NoAnswer(ConnectFailed):
    """Nobody answered in time."""


class WrongPeer(ConnectFailed):
    """Somebody answered, but not the peer that was asked for, or without a valid identity."""


class StreamClosed(PeerError):
    """The stream or its connection ended: by the peer, by us, or by silence."""


class TooMuchUnderWay(StreamClosed):
    """This side gave the stream up: unfinished messages of its peer, or of all, held too much memory."""


class Stalled(StreamClosed):
    """This side gave the stream up: the peer neither went on with a message nor took one."""


class MessageTooLarge(PeerError):
    """The peer announced a message longer than its protocol allows; the stream was reset."""
