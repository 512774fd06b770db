"""What audits found, as a node's status tells it: of a node that runs, or from its book."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING

from market.evidence_sqlite import Evidence
from market.quarantine import Strikes
from market.reputation import Reputation
from market.tally import Tally
from node.status.facts import AuditedPeer, Audits, FalseAnswer
from routing.wire.text import sanitise

if TYPE_CHECKING:
    from node.market.auditor import Auditor
    from node.market.findings import Findings

MAX_PEERS = 256
"""Peers that are told of, those against whom anything stands first; as many as those with credit."""

_NOTHING, _NEVER = Strikes(0, 0.0, 0.0), Tally()

REASON_BYTES = 300
"""Of how a false answer was decided: a line that may name two peers."""


def audits_told(findings: Findings, auditor: Auditor | None, share: float, now: float) -> Audits:
    """All of it.

    Args:
        auditor: who goes on finding; None: nobody does.
        share: of the calls that are run again.
        now: unix time.
    """
    strikes, tallies = findings.quarantine.all(now), dict(findings.tallies.all())
    reputation = findings.reputation
    suspected = set() if auditor is None else set(auditor.report().suspected)
    weighty = (each.peer for each in reputation.weights(limit=MAX_PEERS))
    known = list({*strikes, *tallies, *suspected, *weighty})

    def rank(peer_id: str) -> tuple[bool, int, bool, int, str]:
        stands = strikes.get(peer_id, _NOTHING)
        checked = tallies.get(peer_id, _NEVER).checked
        return (not stands.holds(now), -stands.count, peer_id not in suspected, -checked, peer_id)

    peers = [
        _peer(
            peer_id,
            tallies.get(peer_id, _NEVER),
            strikes.get(peer_id, _NOTHING),
            0 if auditor is None else auditor.audits.marks(peer_id),
            peer_id in suspected,
            reputation,
            now,
        )
        for peer_id in nsmallest(MAX_PEERS, known, key=rank)
    ]
    report = None if auditor is None else auditor.report()
    return Audits(
        share=share,
        checked=0 if report is None else report.checked,
        agreed=0 if report is None else report.agreed,
        unsettled=0 if report is None else report.unsettled,
        convicted=0 if report is None else report.convicted,
        same_bytes=0 if report is None else report.same_bytes,
        waiting=0 if report is None else report.waiting,
        missed=0 if report is None else report.missed,
        canaries=0 if report is None else report.canaries,
        peers=peers,
        peers_left_out=len(known) - len(peers),
        evidence=evidence_told(findings.evidence),
    )


def evidence_told(evidence: Iterable[Evidence]) -> list[FalseAnswer]:
    """False answers, in the same order."""
    return [
        FalseAnswer(
            at=round(each.at, 1),
            peer=each.peer_id,
            model=each.model_id,
            layer=each.layer,
            call_index=each.call_index,
            pairs=each.pairs,
            other=each.other,
            cosine=each.cosine,
            length=each.length if math.isfinite(each.length) else None,
            reason=sanitise(each.reason, REASON_BYTES),
            pardoned=round(each.pardoned, 1) or None,
        )
        for each in evidence
    ]


def _peer(
    peer_id: str,
    tally: Tally,
    strikes: Strikes,
    marks: int,
    suspected: bool,
    reputation: Reputation,
    now: float,
) -> AuditedPeer:
    standing = reputation.of(peer_id)
    return AuditedPeer(
        peer=peer_id,
        build=tally.build,
        checked=tally.checked,
        agreed=tally.agreed,
        marks=marks,
        suspected=suspected,
        strikes=strikes.count,
        until=round(strikes.until, 1) if strikes.holds(now) else None,
        standing=round(standing, 2),
        hearsay=round(standing - reputation.own(peer_id), 2),
    )
