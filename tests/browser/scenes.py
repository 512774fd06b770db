"""What staged nodes tell."""

from __future__ import annotations

import base64
import random

import msgspec
import numpy as np

from node.status import facts
from node.status.coverage import runs_of
from tests.status_facts import AT, MODEL, model, offline, peer, status

HOSTILE = "<img src=x onerror=window.hacked=1>"
LONG = "W" * 64


def held(cells: facts.Runs) -> list[facts.Held]:
    count = sum((last - first + 1) * (b - a + 1) for first, last, runs in cells for a, b in runs)
    return [facts.Held(MODEL, count, cells)]


def matrix(layers: int, experts: int, rng: random.Random) -> facts.Model:
    """A model of that size, served unevenly."""
    counts = np.array(
        [[rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(experts)] for _ in range(layers)], np.uint8
    )
    missing = counts == 0
    return model(
        layers=list(range(layers)),
        experts=experts,
        replicas=base64.b64encode(counts.tobytes()).decode(),
        missing=runs_of(missing, range(layers)),
        missing_cells=int(missing.sum()),
    )


def full() -> facts.Status:
    """Something in every part of the page, in every state, with long and hostile words."""
    other = model(id="b" * 64, short_id="b" * 12, name=LONG, here=[], missing=[], missing_cells=0)
    trips = status().answers[0].trips
    failed = facts.Answer(
        42, AT, MODEL, 5, 0, 0, "failed", 0.0, 0.1, 0.0, 0.0, trips, f"layer 3: {HOSTILE} is gone"
    )
    market = status().market
    assert market is not None and market.audits is not None
    credit = msgspec.structs.replace(market.credits[0], refused=HOSTILE, waiting=22_400)
    liar, doubted = market.audits.peers
    found = msgspec.structs.replace(market.audits.evidence[0], reason=f"{HOSTILE} {LONG}", pardoned=AT)
    audits = msgspec.structs.replace(
        market.audits,
        peers=[liar, msgspec.structs.replace(doubted, build=HOSTILE)],
        evidence=[found, msgspec.structs.replace(found, peer=LONG, length=None, pardoned=None)],
    )
    return status(
        market=msgspec.structs.replace(market, credits=[credit], audits=audits),
        peers=[
            peer("attic"),
            peer("relayed", name=LONG, route=facts.Route("relayed", LONG, "12D3KooW" + "x" * 44, "tcp")),
            peer("hostile", name=HOSTILE, address=HOSTILE, version=HOSTILE, unusable=HOSTILE),
            peer("", state="heard", connected=False, route=None, rtt_ms=None, loss=None, since=None),
            offline("old laptop", reason=HOSTILE),
        ],
        models=[model(home=[(3, 3, [(0, 1)])]), other],
        answers=[status().answers[0], failed],
        warnings=[
            facts.Warning("missing-cells", "error", f"{HOSTILE} is missing", "start it", AT),
            facts.Warning("peer", "warning", f"{LONG} does not answer", LONG, AT),
            facts.Warning("relay-full", "info", "a word", HOSTILE, AT),
            facts.Warning("paused", "info", "this node serves nothing now: by hand", "resume", AT),
        ],
    )
