"""A verdict on a lossy wire, kept in the store for `wire = "auto"` (node.model.gates)."""

from __future__ import annotations

from node.engine.library import Library
from node.model.gates import Gate, record_gate
from node.model.store import StoredModel, StoreError
from node.verify.comparison import Bounds, Verdict
from routing.wire.codecs import Codec

MIN_ROWS = 512
"""Of a verdict that is kept. A wire that agrees in 99 % of all text misses the bound of 98 % of so many rows
once in sixty times; of the 80 rows that `--batch 5` gives, once in five."""


def keep_verdict(verdict: Verdict, stored: StoredModel, library: Library, *, home: int) -> str:
    """Record a verdict if it says something of its wire; what was done with it, in words ("" for f32).

    It counts as passed only if it holds the default bounds too, whatever bounds were asked for.

    Args:
        home: cells of the model that were computed here.
    """
    if verdict.wire == Codec.F32.name.lower():
        return ""
    if verdict.trips == 0:
        return "not recorded: nothing travelled"
    if verdict.rows < MIN_ROWS:
        return f"not recorded: {verdict.rows} rows are too few, {MIN_ROWS} are enough (leave --batch out)"
    bounds = Bounds()
    holds = verdict.cosine_mean >= bounds.cosine and verdict.argmax_agreement >= bounds.argmax
    gate = Gate(
        build=library.build_id(),
        trunk=stored.trunk.name,
        combine=verdict.combine,
        wire=verdict.wire,
        home=home,
        passed=verdict.passed and holds,
        rows=verdict.rows,
        servers=verdict.servers,
        cosine_mean=verdict.cosine_mean,
        argmax_agreement=verdict.argmax_agreement,
    )
    try:
        record_gate(stored.folder, gate)
    except StoreError as error:
        return f"not recorded: {error}"
    if gate.passed:
        return f'recorded: wire = "auto" may use {gate.wire} with {gate.combine}'
    lax = f", below {bounds.cosine:g} or {bounds.argmax:.0%}" if verdict.passed else ""
    return f'recorded: wire = "auto" does not use {gate.wire} with {gate.combine}{lax}'
