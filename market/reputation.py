"""How far a peer's word goes: from own experience, a little from what others have signed. Pure.

Experience counts in *dealings*: one is an answer that was run again and agreed with, one credit that was
paid, or ANSWERS_A_DEALING answers nobody looked at. Standing grows from 0, first slowly, then as the dealings
do:

    standing = dealings^2 / (dealings + SLOW)

1. Standing over dealings never falls as dealings grow, so for two identities that share what one has done
   f(a) + f(b) <= f(a + b): nobody gains by being several, and a newcomer's word weighs nothing.
2. Strikes take away what many dealings have given; below zero it weighs nothing, and others' words do not
   help.
3. What others have signed counts HEARSAY as much as own experience, and who vouches has a budget: its own
   standing here. It is split among all for whom it vouches, so one that vouches for a thousand gives none of
   them more than one who vouches for one gives that one. Who has no standing here vouches for nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

ANSWERS_A_DEALING = 200.0
"""Answers that count as much as one that was run again: at the usual share of audits ten of so many were."""

SLOW = 20.0
"""Dealings up to which standing lags behind: at 5 % the audits of 400 calls."""

STRIKE_DEALINGS = 400.0
"""Dealings that a strike takes: 8,000 calls' worth of audits. Lying once in so many must not pay."""

HEARSAY = 0.05
"""What a dealing that others have signed counts."""

MAX_REMEMBERED = 4_096
"""Peers remembered, as many as adverts; those with the least standing and heard of longest ago are forgotten
first."""

SPARED = 64
"""How many of the longest unheard are looked at for the one with the least standing."""


@dataclass(frozen=True)
class Dealings:
    """Own experience with a peer.

    Attributes:
        answers: calls it answered that nobody ran again; agreed: those run again and agreed with, weighted.
        paid: credits paid, either way.
    """

    answers: int = 0
    agreed: float = 0.0
    paid: float = 0.0


@dataclass
class _Known:
    answers: int = 0
    agreed: float = 0.0
    paid: float = 0.0
    strikes: int = 0
    heard: dict[str, float] = field(default_factory=dict)  # dealings by who vouches for them


class Reputation:
    """What this node knows of others."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._vouched: dict[str, float] = {}  # dealings vouched for, by who did

    # --- what happened ---

    def answered(self, peer_id: str, count: int = 1) -> None:
        """It has answered calls that nobody has run again."""
        self._of(peer_id).answers += count

    def agreed(self, peer_id: str, weight: float = 1.0) -> None:
        """An answer of it was run again and was right; less weight where only one without standing says
        so."""
        self._of(peer_id).agreed += weight

    def paid(self, peer_id: str, credits: float) -> None:
        """So many credits, in all, it has earned by work for this node, or paid for work of it."""
        known = self._of(peer_id)
        known.paid = max(known.paid, credits)

    def struck(self, peer_id: str, strikes: int) -> None:
        """So many strikes stand against it now (market.quarantine)."""
        self._of(peer_id).strikes = strikes

    def heard(self, issuer: str, peer_id: str, credits: float) -> None:
        """A receipt of others: `issuer` has signed that `peer_id` has done so much for it, in all."""
        if issuer == peer_id or credits <= 0:
            return
        heard = self._of(peer_id).heard
        more = max(0.0, credits - heard.get(issuer, 0.0))
        heard[issuer] = heard.get(issuer, 0.0) + more
        self._vouched[issuer] = self._vouched.get(issuer, 0.0) + more

    def restore(self, peer_id: str, dealings: Dealings) -> None:
        """As it stood in an earlier run."""
        known = self._of(peer_id)
        known.answers, known.agreed, known.paid = dealings.answers, dealings.agreed, dealings.paid

    # --- what follows ---

    def dealings(self) -> list[tuple[str, Dealings]]:
        """Own experience with everybody, to be kept."""
        return [
            (peer, Dealings(known.answers, known.agreed, known.paid)) for peer, known in self._known.items()
        ]

    def of(self, peer_id: str) -> float:
        """Its standing; 0 for who is not known, or has strikes that outweigh what it has done."""
        known = self._known.get(peer_id)
        if known is None:
            return 0.0
        own = self._own(known)
        if own < 0:
            return 0.0
        heard = 0.0
        for issuer, dealings in known.heard.items():
            vouching = self._known.get(issuer)
            budget = standing(self._own(vouching)) if vouching is not None else 0.0
            heard += dealings * min(1.0, budget / self._vouched[issuer])
        return standing(own + HEARSAY * heard)

    def is_proved(self, peer_id: str) -> bool:
        """Whether what it answers counts in its favour: so much of it was found right, or at least so many
        answers went by, that who always answers falsely would have been found out (market.audit)."""
        known = self._known.get(peer_id)
        return known is not None and self._own(known) - known.paid >= 1

    def together(self, peers: Iterable[str]) -> float:
        """What several weigh that say the same."""
        return sum(self.of(peer_id) for peer_id in set(peers))

    def _own(self, known: _Known) -> float:
        dealings = known.answers / ANSWERS_A_DEALING + known.agreed + known.paid
        return dealings - STRIKE_DEALINGS * known.strikes

    def _of(self, peer_id: str) -> _Known:
        known = self._known.get(peer_id)
        if known is None:
            known = self._known[peer_id] = _Known()
            if len(self._known) > MAX_REMEMBERED:
                self._forget()
        else:
            self._known.move_to_end(peer_id)
        return known

    def _forget(self) -> None:
        oldest = [peer for peer, _ in zip(self._known, range(SPARED), strict=False)]
        least = min(oldest, key=lambda peer: abs(self._own(self._known[peer])))
        for issuer, dealings in self._known.pop(least).heard.items():
            self._vouched[issuer] -= dealings


def standing(dealings: float) -> float:
    """What so many dealings are worth; 0 below none."""
    return dealings * dealings / (dealings + SLOW) if dealings > 0 else 0.0
