"""What `panal run` shows when it is up: one screen for people, one line of JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.wire.holdings import Slice

MAX_RUNS = 6
"""Runs of layers that are named of a slice; its page and `panal status` have them all."""


@dataclass(frozen=True)
class Screen:
    """What there is to show.

    Attributes:
        address: with the peer id: what others put into their peers.
        swarm: its name; `private`: it has a key.
        only_here: it listens where only this machine reaches it; `on_lan`: nodes of its network find it.
        chooses: amounts of memory within which it chooses itself what to serve.
        relay: where it takes connections as a relay.
        reach: how others reach it, in words; "" if it is not known yet.
        url: of its page and API; "" without.
        model: what the API calls the backbone's model; "" without one.
        paused: why it does not serve now, and what to do; "" if it does.
        market: what it asks and pays by, in words; "" where everything is free.
        config: the file; None for a node without one.
    """

    name: str
    peer_id: str
    address: str
    swarm: str
    private: bool
    slices: Sequence[Slice]
    cells: int
    only_here: bool = False
    on_lan: bool = True
    chooses: Sequence[str] = ()
    relay: Sequence[str] = ()
    reach: str = ""
    url: str = ""
    model: str = ""
    paused: str = ""
    market: str = ""
    config: Path | None = None
    version: str = ""


def screen_text(screen: Screen) -> str:
    """For people."""
    rows: list[tuple[str, str]] = [("panal", f"{screen.version}  {screen.name}".strip())]
    rows.append(("peer id", screen.peer_id))
    rows.append(("address", screen.address))
    rows.append(("swarm", f"{screen.swarm} ({'private' if screen.private else 'open'})"))
    for held in screen.slices:
        rows.append(("serving", f"{held.architecture} {held.model_id[:12]}: {describe_runs(held.experts)}"))
    if screen.cells:
        rows.append(("cells", str(screen.cells)))
    for memory in screen.chooses:
        rows.append(("memory", f"{memory}: what to serve within it this node chooses, and says in its log"))
    rows += [("relay", place) for place in screen.relay]
    if screen.model:
        rows.append(("model", screen.model))
    if screen.url:
        rows.append(("page", screen.url))
    if screen.url and screen.model:
        rows.append(("API", f"{screen.url}/v1"))
    reach = "by this machine alone" if screen.only_here else screen.reach
    rows.append(("reached", reach or "not known yet; panal status tells, panal netcheck says why"))
    if screen.market:
        rows.append(("market", screen.market))
    if screen.paused:
        rows.append(("paused", screen.paused))
    rows.append(("config", str(screen.config) if screen.config else "none"))
    lines = [f"{name:<8} {text}" for name, text in rows]
    return "\n".join([*lines, *_next_steps(screen)])


def listening_event(screen: Screen) -> dict[str, Any]:
    """For programs; the first line of `panal run --json`."""
    return {
        "event": "listening",
        "address": screen.address,
        "name": screen.name or None,
        "peer_id": screen.peer_id,
        "swarm": screen.swarm,
        "cells": screen.cells,
        "slices": [
            {
                "model_id": held.model_id,
                "architecture": held.architecture,
                "kind": held.kind,
                "experts": held.experts,
            }
            for held in screen.slices
        ],
        "chooses": list(screen.chooses),
        "relay": list(screen.relay),
        "url": screen.url,
        "model": screen.model,
        "paused": screen.paused,
        "market": screen.market,
        "config": str(screen.config) if screen.config else None,
        "version": screen.version,
    }


def describe_runs(runs: Sequence[tuple[int, int, Sequence[tuple[int, int]]]]) -> str:
    """ "layers 0-3: experts 0-7; layer 4: experts 0-3, 8"."""

    def span(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"

    def spans(each: Iterable[tuple[int, int]]) -> str:
        return ", ".join(span(*run) for run in each)

    parts = [
        f"layer{'' if first == last else 's'} {span(first, last)}: experts {spans(experts)}"
        for first, last, experts in runs[:MAX_RUNS]
    ]
    if len(runs) > MAX_RUNS:
        parts.append(f"and {len(runs) - MAX_RUNS} runs of layers more")
    return "; ".join(parts)


def _next_steps(screen: Screen) -> list[str]:
    does_nothing = not (screen.slices or screen.chooses or screen.relay or screen.model)
    lines = [""]
    if does_nothing:
        what = "It has no config" if screen.config is None else "Its config names nothing to do"
        lines += [
            f"{what}: it serves nothing and asks nothing, but is found and can share and get models.",
            "  panal init                         asks what it is to do",
            "  panal model share FILE             offers a model to others",
        ]
    lines += [_how_others_come(screen), "Ctrl-C ends it."]
    return lines


def _how_others_come(screen: Screen) -> str:
    goes = "the address goes into their [swarm] peers"
    if screen.only_here:
        return f"Only nodes on this machine reach it: {goes}."
    if screen.on_lan:
        return f"On this network others find it by themselves; elsewhere {goes}."
    return f"Others do not find it by themselves: {goes}."
