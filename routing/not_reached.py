"""What is said of a peer that is not reached: who it is, why, in few words, and what to do about it. Pure.

What a dial ends with is exact and long: it names the peer at each address. Here it is named once, by the end
of its id, and what several dials tell of it is said once.
"""

from __future__ import annotations

import re

SHOWN_OF_ID = 8
"""Characters of a peer id that are shown: its end, as the beginning is the same for all."""

COMPARE_SWARMS = "compare `panal swarm show` here and there, and join theirs with `panal swarm join`"
COPY_ADDRESS = "copy its address again, as `panal run` prints it there"
START = "is it on, and is its address right?"

_ID = re.compile(r"(/p2p/)?\b(12D3KooW[1-9A-HJ-NP-Za-km-z]{44})\b")

_DIALING = re.compile(r"\bdialing (?=/)")

_OTHER_SWARM = re.compile(
    r"another swarm|member of this swarm|member certificate|malformed membership|a member:"
)
_WRONG_ID = re.compile(r"answered instead of|asked for \S+, \S+ answered")


def short(text: str) -> str:
    """A text with the peer ids in it shortened; `/p2p/...` at the end of an address is left out."""
    return _ID.sub(lambda found: "" if found[1] else f"…{found[2][-SHOWN_OF_ID:]}", text)


def why(label: str, reason: str) -> str:
    """Why it is not reached, without saying again who it is.

    Args:
        label: how texts call it, an address or an id; reason: what trying it ended with.
    """
    found = _ID.search(label)
    peer_id = found[2] if found else ""
    said = reason.removeprefix(f"dialing {label}: ").removeprefix(f"{label}: ")
    said = said.removeprefix(f"{peer_id}: ").removeprefix(peer_id).strip() if peer_id else said
    return short(_DIALING.sub("", _once(said)))


def describe(label: str, reason: str) -> str:
    """A peer by its address, if known, and the end of its id; then the reason, without either again."""
    found = _ID.search(label)
    peer_id = short(found[2]) if found else ""
    address = label[: found.start()] if found else label
    said = why(label, reason)
    if address and address in said:
        address = ""
    if peer_id and peer_id in said:
        peer_id = ""  # `…abcd1234 answered instead of ...`
    who = f"{address} ({peer_id})" if address and peer_id else address or peer_id
    return f"{who}: {said}" if who else said


def is_of_another_swarm(reason: str) -> bool:
    """Whether the peer is there, but not in this swarm."""
    return _OTHER_SWARM.search(reason) is not None


def is_another_peer(reason: str) -> bool:
    """Whether somebody else answers where it should be."""
    return _WRONG_ID.search(reason) is not None


def advice(reason: str) -> str:
    """What to do about it."""
    if is_of_another_swarm(reason):
        return COMPARE_SWARMS
    return COPY_ADDRESS if is_another_peer(reason) else START


def _once(said: str) -> str:
    """Of what several dials tell, who the peer is instead only once: it is the same at each address."""
    kept: list[str] = []
    for part in said.split("; "):
        for tells in (is_of_another_swarm, is_another_peer):
            if tells(part) and any(map(tells, kept)):
                break
        else:
            kept.append(part)
    return "; ".join(kept)
