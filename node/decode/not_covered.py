"""What is said when nobody holds some experts: which, whom was asked, why not, and what to do about it. Pure.

1. One line. Equal layers are told together, each peer once and by the end of its id.
2. The advice follows the reasons: who answers from another swarm is not helped by being started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing import not_reached
from routing.dispatch.errors import in_whole_runs, name_experts
from routing.errors import PeerError
from routing.not_reached import COMPARE_SWARMS, COPY_ADDRESS, is_another_peer, is_of_another_swarm, short

NAMED_LAYERS = 4
"""Runs of layers named in one line."""

NAMED_PEERS = 8
"""Peers named there: adverts may tell of thousands."""

PENDING = "not answered yet"
"""The reason of a peer that is still being dialed."""


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
    told = [not_reached.describe(label, reason) for label, reason in asked.failures.items()]
    told += [f"{short(peer)} {_instead(serves, asked.model_id)}" for peer, serves in asked.strangers.items()]
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


def _instead(serves: Sequence[str], model_id: str) -> str:
    """What a connected peer serves instead, or why it cannot be asked."""
    if not serves:
        return "serves nothing"
    told = ", ".join(serves)
    return f"{told}, not {model_id[:12]}" if serves[0].startswith("serves ") else told


def _advice(asked: Asked) -> str:
    """What to do, for each kind of reason once."""
    reasons = list(asked.failures.values())
    found = []
    foreign = [reason for reason in reasons if is_of_another_swarm(reason)]
    wrong = [reason for reason in reasons if is_another_peer(reason)]
    if foreign:
        found.append(COMPARE_SWARMS)
    if wrong:
        found.append(COPY_ADDRESS)
    if not reasons and not asked.strangers and not asked.configured:
        found.append("put an address that `panal run` prints on a serving node into [swarm] peers")
    elif len(reasons) > len(foreign) + len(wrong) or not found:
        found.append("start them or add their address")
    if asked.in_parts:
        found.append("some of these runs are there in parts: serve them whole, or use combine = rows or sum")
    return "; ".join(found)
