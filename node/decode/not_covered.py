"""What is said when nobody holds some experts: which, whom was asked, why not, and what to do about it. Pure.

1. One line. Equal layers are told together, each peer once and by the end of its id.
2. The advice follows the reasons: who answers from another swarm is not helped by being started again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.dispatch.errors import in_whole_runs, name_experts
from routing.errors import PeerError

NAMED_LAYERS = 4
"""Runs of layers named in one line."""

NAMED_PEERS = 8
"""Peers named there: adverts may tell of thousands."""

SHOWN_OF_ID = 8
"""Characters of a peer id that are shown: its end, as the beginning is the same for all."""

PENDING = "not answered yet"
"""The reason of a peer that is still being dialed."""

_ID = re.compile(r"(/p2p/)?\b(12D3KooW[1-9A-HJ-NP-Za-km-z]{44})\b")

_OTHER_SWARM = re.compile(
    r"another swarm|member of this swarm|member certificate|malformed membership|a member:"
)
_WRONG_ID = re.compile(r"answered instead of|asked for \S+, \S+ answered")


class NotCovered(PeerError):
    """Experts that no connected peer holds."""


@dataclass(frozen=True)
class Asked:
    """Whom a node has asked for experts, in vain.

    Attributes:
        failures: peers that are not connected, by address or id, with the reason.
        strangers: connected peers by id, with what they serve instead.
        lan: whether nodes of this network are listened for.
        configured: whether the config names any peer.
        run_lengths: experts that must be at one peer together, of each layer that is missed (combine stable).
        in_parts: whether some that are missed are held, but not the whole of their runs.
    """

    failures: Mapping[str, str]
    strangers: Mapping[str, Sequence[str]]
    model_id: str
    lan: bool
    configured: bool
    run_lengths: Sequence[int] = ()
    in_parts: bool = False


def describe(missing: Mapping[int, Sequence[int]], asked: Asked) -> str:
    """The whole line.

    Args:
        missing: experts by layer.
    """
    told = [_name_peer(label, reason) for label, reason in asked.failures.items()]
    told += [
        f"{short(peer)} {', '.join(serves)}, asked is {asked.model_id[:12]}"
        if serves
        else f"{short(peer)} serves nothing"
        for peer, serves in asked.strangers.items()
    ]
    if len(told) > NAMED_PEERS:
        told[NAMED_PEERS:] = [f"and {len(told) - NAMED_PEERS} more"]
    if not told and not asked.configured:
        heard = "no node was heard on this network" if asked.lan else "LAN discovery is off"
        told = [f"[swarm] peers is empty and {heard}"]
    because = f" ({'; '.join(told)})" if told else ""
    named = f"{name_layers(missing)}{in_whole_runs(asked.run_lengths)}"
    return f"no connected peer holds {named}{because}: {_advice(asked)}"


def name_layers(missing: Mapping[int, Sequence[int]]) -> str:
    """`layers 0-3: experts 0-7; layer 4: expert 3`; of many, the first and how many layers more."""
    runs: list[tuple[int, int, list[int]]] = []
    for layer, experts in sorted(missing.items()):
        if runs and runs[-1][1] == layer - 1 and runs[-1][2] == list(experts):
            runs[-1] = (runs[-1][0], layer, runs[-1][2])
        else:
            runs.append((layer, layer, list(experts)))
    named = [
        f"{f'layer {first}' if first == last else f'layers {first}-{last}'}: {name_experts(experts)}"
        for first, last, experts in runs[:NAMED_LAYERS]
    ]
    rest = sum(last - first + 1 for first, last, _ in runs[NAMED_LAYERS:])
    return "; ".join(named) + (f" and {rest} more layer{'' if rest == 1 else 's'}" if rest else "")


def short(text: str) -> str:
    """A text with the peer ids in it shortened; `/p2p/...` at the end of an address is left out."""
    return _ID.sub(lambda found: "" if found[1] else f"…{found[2][-SHOWN_OF_ID:]}", text)


def _name_peer(label: str, reason: str) -> str:
    """A peer by its address, if known, and the end of its id; then the reason, without either again."""
    found = _ID.search(label)
    peer_id = found[2] if found else ""
    address = label[: found.start()] if found else label
    said = reason.removeprefix(f"dialing {label}: ").removeprefix(f"{label}: ")
    said = _once(said.removeprefix(peer_id).removeprefix(": ").strip())
    if address and address in said:
        address = ""
    if peer_id and short(peer_id) in (said := short(said)):
        peer_id = ""  # `...abcd1234 answered instead of ...`
    who = f"{address} ({short(peer_id)})" if address and peer_id else address or short(peer_id)
    return f"{who}: {said}" if who else said


def _once(said: str) -> str:
    """Of what several dials tell, who the peer is instead only once: it is the same at each address."""
    kept: list[str] = []
    for part in said.split("; "):
        for kind in (_OTHER_SWARM, _WRONG_ID):
            if kind.search(part) and any(map(kind.search, kept)):
                break
        else:
            kept.append(part)
    return "; ".join(kept)


def _advice(asked: Asked) -> str:
    """What to do, for each kind of reason once."""
    reasons = list(asked.failures.values())
    found = []
    foreign = [reason for reason in reasons if _OTHER_SWARM.search(reason)]
    wrong = [reason for reason in reasons if _WRONG_ID.search(reason)]
    if foreign:
        found.append("compare `panal swarm show` here and there, and join theirs with `panal swarm join`")
    if wrong:
        found.append("copy its address again, as `panal run` prints it there")
    if not reasons and not asked.strangers and not asked.configured:
        found.append("put an address that `panal run` prints on a serving node into [swarm] peers")
    elif len(reasons) > len(foreign) + len(wrong) or not found:
        found.append("start them or add their address")
    if asked.in_parts:
        found.append("some of these runs are there in parts: serve them whole, or use combine = rows or sum")
    return "; ".join(found)
