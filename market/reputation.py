"""How far a peer's word goes: from own experience, a little from what others have signed. Pure.

Experience counts in *dealings*: one is an answer that was run again and agreed with, one credit that was
paid, or ANSWERS_A_DEALING answers nobody looked at. Standing grows from 0, first slowly, then as the dealings
do:

    standing = dealings^2 / (dealings + SLOW)

1. Standing over dealings never falls as dealings grow, so for two identities that share what one has done
   f(a) + f(b) <= f(a + b): nobody gains by being several, and a newcomer's word weighs nothing.
2. Strikes take away what many dealings have given; below zero it weighs nothing. Whoever has one is not
   vouched for, and vouches for nobody.
3. What others have signed counts HEARSAY as much as own experience, and who vouches has a budget: its own
   standing here. It is split among all for whom it vouches, so one that vouches for a thousand gives none of
   them more than one who vouches for one gives that one. Who has no standing here vouches for nobody, and
   what it has by hearsay it cannot pass on.
4. Where several say the same (`together`), what they vouch for each other does not count: a voucher gives
   HEARSAY of its standing to another only while it does not speak itself. So a ring, or a vouching second
   identity, never weighs more than one that did the work of all.
5. Own experience decides where there is any to speak of (`outweighed`). What peers may owe never goes by
   hearsay (`is_proved`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from market.hearsay import NOTHING, Hearsay

ANSWERS_A_DEALING = 200.0
"""Answers that count as much as one that was run again: at the usual share of audits ten of so many were."""

SLOW = 20.0
"""Dealings up to which standing lags behind: at 5 % the audits of 400 calls."""

STRIKE_DEALINGS = 400.0
"""Dealings that a strike takes: 8,000 calls' worth of audits. Lying once in so many must not pay."""

HEARSAY = 0.05
"""What a dealing that others have signed counts."""

OWN_DECIDES = 1.0
"""Standing by own experience, on either side of a dispute, from which hearsay is left out of it: five answers
that were run again and right. Below that all in dispute are next to unknown."""

MAX_REMEMBERED = 4_096
"""Peers remembered, as many as adverts; those with the least standing and heard of longest ago are forgotten
first."""

SPARED = 64
"""How many of the longest unheard are looked at for the one with the least standing."""

MAX_TOLD = 256
"""Peers of whom people are told what they weigh, the weightiest first."""


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


@dataclass(frozen=True)
class Weight:
    """What a peer's word weighs, for people.

    Attributes:
        standing: hearsay included.
        hearsay: how much of it is others' receipts.
        vouchers: peers with standing whose receipts about it were heard.
        strikes: that stand against it.
        proved: whether its answers earn it credit (`Reputation.is_proved`).
    """

    peer: str
    standing: float
    hearsay: float
    vouchers: int
    strikes: int
    proved: bool


@dataclass
class _Known:
    answers: int = 0
    agreed: float = 0.0
    paid: float = 0.0
    strikes: int = 0


class Reputation:
    """What this node knows of others."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._hearsay = Hearsay()

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
        if credits > 0:  # of who only asks, and is one of thousands, nothing is remembered
            known = self._of(peer_id)
            known.paid = max(known.paid, credits)

    def struck(self, peer_id: str, strikes: int) -> None:
        """So many strikes stand against it now (market.quarantine)."""
        if strikes or peer_id in self._known:
            self._of(peer_id).strikes = strikes

    def heard(self, issuer: str, peer_id: str, credits: float) -> None:
        """A receipt of others: `issuer` has signed that `peer_id` has done so much for it, in all."""
        self._hearsay.note(issuer, peer_id, credits)

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
        return self._weight(peer_id)

    def own(self, peer_id: str) -> float:
        """The same by own experience alone."""
        known = self._known.get(peer_id)
        return 0.0 if known is None else standing(self._own(known))

    def is_proved(self, peer_id: str) -> bool:
        """Whether what it answers counts in its favour: so much of it was found right, or at least so many
        answers went by, that who always answers falsely would have been found out (market.audit). Own
        experience alone: nobody's word earns another credit."""
        known = self._known.get(peer_id)
        return known is not None and self._own(known) - known.paid >= 1

    def together(self, peers: Iterable[str]) -> float:
        """What several weigh that say the same; what they vouch for each other does not count."""
        those = set(peers)
        return sum(self._weight(peer_id, without=those) for peer_id in those)

    def outweighed(self, peer_id: str, by: Collection[str]) -> bool:
        """Whether several who say the same weigh more than one who says otherwise.

        What others have signed counts only where neither side has OWN_DECIDES by own experience.
        """
        own, against = sum(self.own(each) for each in set(by)), self.own(peer_id)
        if max(own, against) >= OWN_DECIDES:
            return own > against
        return self.together(by) > self.of(peer_id)

    def vouchers(self, limit: int) -> list[str]:
        """Peers whose word about others counts, those with most to give first."""
        budgets = ((-self._budget(peer), peer) for peer in self._known)
        return [peer for budget, peer in nsmallest(limit, (each for each in budgets if each[0] < 0))]

    def weights(self, limit: int = MAX_TOLD) -> list[Weight]:
        """What peers weigh, the weightiest first; those left out that weigh nothing and have no strikes."""
        shares = self._hearsay.shares(self._budget)
        heard_of = ((peer, None) for peer in shares if peer not in self._known)
        found = []
        for peer_id, known in (*self._known.items(), *heard_of):
            share = shares.get(peer_id, NOTHING)
            weight = self._with_hearsay(known, share.credits)
            strikes = 0 if known is None else known.strikes
            if weight > 0 or strikes:
                found.append((-weight, peer_id, share.vouchers, strikes))
        return [
            Weight(peer_id, -weight, -weight - self.own(peer_id), vouchers, strikes, self.is_proved(peer_id))
            for weight, peer_id, vouchers, strikes in nsmallest(limit, found)
        ]

    # --- inside ---

    def _weight(self, peer_id: str, without: Container[str] = ()) -> float:
        heard = self._hearsay.of(peer_id, self._budget, without)
        return self._with_hearsay(self._known.get(peer_id), heard)

    def _with_hearsay(self, known: _Known | None, heard: float) -> float:
        if known is None:
            return standing(HEARSAY * heard)
        return standing(self._own(known) + (0.0 if known.strikes else HEARSAY * heard))

    def _budget(self, voucher: str) -> float:
        """What its word can give others, in all."""
        known = self._known.get(voucher)
        return 0.0 if known is None or known.strikes else standing(self._own(known))

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
        del self._known[min(oldest, key=lambda peer: abs(self._own(self._known[peer])))]


def standing(dealings: float) -> float:
    """What so many dealings are worth; 0 below none."""
    return dealings * dealings / (dealings + SLOW) if dealings > 0 else 0.0
