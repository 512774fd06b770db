"""Cold starts by every route: `panal generate` from its start to its first token, as somebody would run it.

Each with an identity that nobody has seen before, and once more with what it remembers. The stages are read
from the node's own log.
"""

from __future__ import annotations

import datetime
import math
import re
import statistics
import time
from pathlib import Path
from typing import Any

from routing.errors import LocalError
from scripts.bench.route_lab import Kind, RouteLab

TOKENS = 2
PROMPT = "import os"
STARTED = "reachability: unknown"  # the first that a node logs: it has its model, sockets and identity


def cold_starts(lab: RouteLab, model: Path, times: int) -> dict[str, Any]:
    """`panal generate` to its first token: as a newcomer, and as one that remembers."""
    found: dict[str, Any] = {}
    for kind in lab.kinds:
        new, again = [], []
        for number in range(times):
            config = lab.backbone_config(kind, model, f"cold{number}")
            new.append(_cold_start(lab, kind, config))
            again.append(_cold_start(lab, kind, config))
        found[kind.name] = {"new": new, "again": again}
    return found


def _cold_start(lab: RouteLab, kind: Kind, config: Path) -> dict[str, Any]:
    """Seconds from the process's start until it knows the model and is in the swarm, until it has reached the
    server, and until the first token; and the route it had by then."""
    begun = time.time()
    process = lab.generate(kind, config, "-p", PROMPT, "-n", str(TOKENS))
    assert process.stdout is not None
    text = process.stdout.read(1)
    first = time.time() - begun
    _, log = process.communicate(timeout=30)
    config.with_suffix(".log").write_text(log)
    if not text:
        raise LocalError(f"{kind.name}: panal generate gave nothing, see {config.with_suffix('.log')}")
    started = _logged(log, STARTED) - begun
    connected = _logged(log, rf"connected to \S+ \({kind.name}-server\), (\w+)") - begun
    route = re.search(rf"\({kind.name}-server\), (\w+)", log)
    return {"started": started, "connected": connected, "first_token": first, "route": route and route[1]}


def _logged(log: str, words: str) -> float:
    """When a line was logged, Unix time; NaN if it was not."""
    found = re.search(rf"^(\S+ \S+),(\d+) \S+ {words}", log, re.MULTILINE)
    if found is None:
        return math.nan
    return datetime.datetime.fromisoformat(f"{found[1]}.{found[2]}").timestamp()


def show_cold(found: dict[str, Any]) -> None:
    print("panal generate, seconds from its start (as a newcomer; as one that remembers)")
    print(f"{'':<9}{'started':>14}{'connected':>14}{'first token':>14}   route at first")
    for name, row in found.items():
        print(f"{name:<9}", end="")
        for stage in ("started", "connected", "first_token"):
            new, again = (statistics.median(each[stage] for each in row[who]) for who in ("new", "again"))
            print(f"{new:>8.2f}; {again:.2f}", end="")
        print(f"   {row['new'][0]['route']}")
