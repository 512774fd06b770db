"""How a dial that failed has ended, and what to do about that. The reason itself is the error's text."""

from __future__ import annotations

from enum import StrEnum

from routing.errors import LocalError, PeerError
from routing.libp2p.noise import WrongIdentity
from routing.quic.errors import ConnectFailed, NoAnswer, WrongPeer
from routing.quic.tls import OTHER_PEER


class End(StrEnum):
    """How it ended."""

    SILENCE = "silence"
    """Nothing came back, or nothing is there."""
    OTHER_PEER = "other peer"
    """Somebody answered who is not the one asked for."""
    OTHER_SWARM = "other swarm"
    """Who answered and this node are not of one swarm."""
    REFUSAL = "refusal"
    """An answer all the same: the peer does not take this node."""
    OURS = "ours"
    """Nothing was sent."""


ADVICE = {
    End.SILENCE: "see whether it runs and its address is still right",
    End.OTHER_PEER: "copy the address again: `panal run` prints it there",
    End.OTHER_SWARM: (
        "`panal swarm show -c FILE` tells a node's swarm, `panal swarm join` takes this node into another"
    ),
    End.REFUSAL: "it runs; ask whoever runs it what its log says",
    End.OURS: "put that right here: nothing was sent",
}


def end_of(error: PeerError | LocalError) -> End:
    """What the error of a dial, over UDP or TCP, says about how it ended."""
    match error:
        case LocalError():
            return End.OURS
        case WrongIdentity():
            return End.OTHER_PEER
        case WrongPeer():
            return End.OTHER_PEER if OTHER_PEER in str(error) else End.OTHER_SWARM
        case NoAnswer():
            return End.SILENCE
        case ConnectFailed():
            return End.REFUSAL
    return End.SILENCE
