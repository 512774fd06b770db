"""Which calls are run again, and what follows from two answers that differ. Pure.

1. A share of the calls is run again after they were answered; which ones is drawn then, so nobody can know it
   while answering. A peer under suspicion is looked at MORE_OFTEN.
2. What this node computes itself is decisive. Else two that differ by more than any kind of CPU explains
   (FAR) need an arbiter: a third replica. Who stands alone against two is convicted if they together had
   more standing before than it has: newcomers have none, so their word convicts nobody. (To agree gives some:
   without cells of its own a node believes in the end those that keep agreeing.) A peer that contradicts
   itself is convicted by that.
3. Somewhat off throughout (OFF) is a mark. OFF_MARKS of them within OFF_WINDOW comparisons are a proof as
   good as FAR: by bad luck that comes once in 10 million comparisons (market.verdict), and the marks have to
   be of several calls.
4. Without an arbiter both are suspected. Whoever is in dispute with two who are in dispute with nobody else,
   and outweighed by them, is convicted as by an arbiter.

What that finds, with 5 % of the calls run again (`found_within`): whoever answers falsely always, by its
200th call in 99.996 % of cases; where two marks are needed (1.01, or a precision close to the right one, on
another kind of CPU than whoever ran it again) in 99.96 %. Who lies in one call of ten is found within 920
calls in 99 % of cases. Whatever its share, its false answers are 20 on average before one is found, and 90 in
99 % of cases; where two marks are needed about twice as many, and who lies in less than one audited call of
OFF_WINDOW may not be found so.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property

from market.build_class import is_same
from market.reputation import Reputation
from market.verdict import Comparison, Verdict, compare
from routing.dispatch.holders import HOME
from routing.wire.codecs import Float32Array
from routing.wire.experts import ExpertsRequest

OFF_MARKS = 2
OFF_WINDOW = 32
"""Comparisons among which so many are off: 1.01 is found by the second, and of honest ones 1 in 40,000 is
off."""

MORE_OFTEN = 4.0
MOST_SHARE = 0.5
"""How much more often a suspected peer's calls are run again, and the share of calls at most."""

BY_PEERS = 0.25
"""What an agreement counts for standing where no own computation confirms it: two that lie alike agree,
too."""

MAX_PEERS = 4_096
"""Peers with marks or disputes: as many as are remembered elsewhere. The oldest are forgotten first."""


@dataclass(frozen=True, eq=False)
class Word:
    """What somebody answered.

    Attributes:
        peer_id: who; `HOME` for this node.
        build: its class.
        y: as it came off the wire.
    """

    peer_id: str
    build: str
    y: Float32Array


@dataclass(frozen=True, eq=False)
class Sample:
    """A call that is to be run again.

    Attributes:
        word: what was answered.
        at: when, on a clock that does not go back.
        whole: no expert's rows are missing, so that one class gives the same bytes.
    """

    request: ExpertsRequest
    word: Word
    at: float
    whole: bool = True

    @cached_property
    def experts(self) -> int:
        """Those that it needs, as bits."""
        needed = 0
        for expert in set(self.request.experts.tolist()):
            needed |= 1 << expert
        return needed


class Outcome(Enum):
    """What comes of an audit."""

    AGREED = auto()
    OPEN = auto()
    """Two differ: an arbiter is wanted."""
    UNSETTLED = auto()
    """And there is none, or it does not help."""
    MARKED = auto()
    """Somebody is off, which is no proof yet."""
    CONVICTED = auto()


@dataclass(frozen=True)
class Ruling:
    """What comes of an audit, and for whom.

    Attributes:
        agreed: peers whose answers agreed with another's, or with this node's own.
        guilty: peers that are convicted.
        reason: one line.
        worst: the comparison that it rests on.
    """

    outcome: Outcome
    agreed: tuple[str, ...] = ()
    guilty: tuple[str, ...] = ()
    reason: str = ""
    worst: Comparison | None = None


@dataclass
class _Record:
    """Of one peer: which of the last comparisons were off, and with whom it disputes."""

    off: deque[bool] = field(default_factory=lambda: deque(maxlen=OFF_WINDOW))
    disputes: set[str] = field(default_factory=set)


class Audits:
    """The rules. Changes the standing of peers; strikes are whoever uses it to give (market.quarantine).

    Args:
        share: of the calls that are run again.
        reputation: whose word weighs how much.

    Attributes:
        counts: how audits ended; same_bytes: in how many the two answers were byte for byte the same.
    """

    def __init__(self, share: float, reputation: Reputation) -> None:
        self.share = share
        self._reputation = reputation
        self._records: dict[str, _Record] = {}
        self.counts: Counter[Outcome] = Counter()
        self.same_bytes = 0

    def share_of(self, peer_id: str) -> float:
        """The share of this peer's calls that is run again now."""
        record = self._records.get(peer_id)
        if record is None or not (record.disputes or any(record.off)):
            return self.share
        return max(self.share, min(self.share * MORE_OFTEN, MOST_SHARE))

    def suspected(self, peer_id: str) -> bool:
        """Whether something stands open against it."""
        record = self._records.get(peer_id)
        return record is not None and bool(record.disputes or any(record.off))

    def marks(self, peer_id: str) -> int:
        """How many of its last OFF_WINDOW comparisons were off."""
        record = self._records.get(peer_id)
        return 0 if record is None else sum(record.off)

    # --- verdicts ---

    def check(self, sample: Sample, word: Word) -> Ruling:
        """A call was run again: by this node, or by another peer."""
        found = _compared(sample, sample.word, word)
        if found.verdict is Verdict.SAME:
            return self._agreed(sample.word.peer_id, word.peer_id, found)
        if word.peer_id == HOME:
            return self._odd(sample.word.peer_id, [found], "computed here")
        return self._count(Ruling(Outcome.OPEN, worst=found))

    def arbitrate(self, sample: Sample, word: Word, arbiter: Word) -> Ruling:
        """Two differ, and this is a third's answer."""
        first, second = sample.word, word
        with_first, with_second = _compared(sample, first, arbiter), _compared(sample, second, arbiter)
        between = _compared(sample, first, second)
        one, other = with_first.verdict is Verdict.SAME, with_second.verdict is Verdict.SAME
        decisive = arbiter.peer_id == HOME
        if decisive and not one and not other:
            rulings = [
                self._odd(each.peer_id, [found], "computed here")
                for each, found in ((first, with_first), (second, with_second))
            ]
            guilty = tuple(peer for ruling in rulings for peer in ruling.guilty)
            outcome = Outcome.CONVICTED if guilty else Outcome.MARKED
            return Ruling(outcome, guilty=guilty, reason=rulings[0].reason, worst=with_first)
        if one == other:
            return self.unsettled(first.peer_id, second.peer_id, between)
        odd, right, found = (second, first, with_second) if one else (first, second, with_first)
        convincing = decisive or self._outweighed(odd.peer_id, (right.peer_id, arbiter.peer_id))
        agreed = self._agreed(right.peer_id, arbiter.peer_id, with_first if one else with_second)
        if not convincing:
            ruling = self.unsettled(odd.peer_id, right.peer_id, found)
        else:
            evidence = [found] if decisive else [found, between]
            by = "computed here" if decisive else f"answered by {right.peer_id} and {arbiter.peer_id} alike"
            ruling = self._odd(odd.peer_id, evidence, by)
        return Ruling(ruling.outcome, agreed.agreed, ruling.guilty, ruling.reason, found)

    def check_again(self, sample: Sample, known: Word, by: Collection[str]) -> Ruling:
        """A call of the past was answered anew (market.canaries).

        Args:
            sample: what came now.
            known: what was answered then; by: all who did so alike.
        """
        peer_id = sample.word.peer_id
        found = _compared(sample, sample.word, known)
        if found.verdict is Verdict.SAME:
            self._record(peer_id).off.append(False)
            if HOME in by or (len(by) > 1 and peer_id not in by):
                self._reputation.agreed(peer_id, 1.0 if HOME in by else BY_PEERS)
            return self._count(Ruling(Outcome.AGREED, (peer_id,), worst=found))
        if HOME in by:
            return self._odd(peer_id, [found], "computed here")
        if peer_id in by:
            return self._odd(peer_id, [found], "answered by itself before")
        if self._outweighed(peer_id, by):
            return self._odd(peer_id, [found], f"answered by {' and '.join(sorted(by))} alike")
        return self._count(Ruling(Outcome.UNSETTLED, reason="nobody's word weighs more", worst=found))

    def unsettled(self, one: str, other: str, found: Comparison) -> Ruling:
        """Nobody can say which of two is wrong: both are suspected, unless one has been at odds with
        others."""
        if found.verdict is Verdict.FAR:
            self._record(one).disputes.add(other)
            self._record(other).disputes.add(one)
            for peer_id in (one, other):
                against = self._record(peer_id).disputes
                witnesses = {each for each in against if self._record(each).disputes == {peer_id}}
                if len(witnesses) > 1 and self._outweighed(peer_id, witnesses):
                    by = " and ".join(sorted(witnesses))
                    return self._convict(peer_id, f"differs from what was answered by {by}", found)
        return self._count(Ruling(Outcome.UNSETTLED, reason=f"{one} and {other} differ", worst=found))

    def forget(self, peer_id: str) -> None:
        """It is convicted, or has been cleared: its disputes were its own."""
        self._records.pop(peer_id, None)
        for record in self._records.values():
            record.disputes.discard(peer_id)

    # --- inside ---

    def _agreed(self, peer_id: str, with_whom: str, found: Comparison) -> Ruling:
        both = [each for each in (peer_id, with_whom) if each != HOME]
        for each in both:
            record = self._record(each)
            record.off.append(False)
            record.disputes.difference_update(both)
            if with_whom == HOME:
                record.disputes.clear()
            self._reputation.agreed(each, 1.0 if with_whom == HOME else BY_PEERS)
        return self._count(Ruling(Outcome.AGREED, tuple(both), worst=found))

    def _odd(self, peer_id: str, evidence: list[Comparison], by: str) -> Ruling:
        """A peer stands against what is right, or against two."""
        reason = f"differs from what was {by}"
        if all(each.verdict is Verdict.FAR for each in evidence):
            return self._convict(peer_id, reason, evidence[0])
        record = self._record(peer_id)
        record.off.append(True)
        if sum(record.off) >= OFF_MARKS:
            return self._convict(peer_id, f"{reason}, {sum(record.off)} times", evidence[0])
        return self._count(Ruling(Outcome.MARKED, reason=reason, worst=evidence[0]))

    def _convict(self, peer_id: str, reason: str, found: Comparison) -> Ruling:
        self.forget(peer_id)
        return self._count(Ruling(Outcome.CONVICTED, guilty=(peer_id,), reason=reason, worst=found))

    def _outweighed(self, peer_id: str, by: Collection[str]) -> bool:
        return self._reputation.outweighed(peer_id, by)

    def _record(self, peer_id: str) -> _Record:
        record = self._records.get(peer_id)
        if record is None:
            record = self._records[peer_id] = _Record()
            if len(self._records) > MAX_PEERS:
                self.forget(next(iter(self._records)))
        return record

    def _count(self, ruling: Ruling) -> Ruling:
        self.counts[ruling.outcome] += 1
        self.same_bytes += ruling.worst is not None and ruling.worst.equal
        return ruling


def _compared(sample: Sample, one: Word, other: Word) -> Comparison:
    same_bytes = sample.whole and is_same(one.build, other.build)
    return compare(one.y, other.y, sample.request.codec_back, same_bytes=same_bytes)


def found_within(calls: int, share: float, *, lies: float = 1.0, marks: int = 1) -> float:
    """The chance that a liar is found within so many of its calls.

    Args:
        share: of the calls that are run again; lies: of its answers that are false.
        marks: false answers that have to be met, all within the window if it is more than one.
    """
    met = share * lies
    missed = math.fsum(math.comb(calls, n) * met**n * (1 - met) ** (calls - n) for n in range(marks))
    return 1.0 - missed
