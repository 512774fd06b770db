"""Runs some of the answered calls again, off the path of answers, and sees to what follows.

A call that was drawn waits until a replica of its cells has time, or this node itself (node.market.checkers).
What
answers cost is never touched: no pass waits for anything here. Only whoever holds back an answer until it has
ended waits for its audits, for a while (`settle`).

What is sent looks like work: real requests with real deadlines and the star's own call numbers. A server that
holds many layers may still see that a call of one layer comes alone. That does not help it against being run
again, which happens to its answers at others; and canaries follow a call of the same layer, as a second
session's would.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import trio
from blake3 import blake3

from market.audit import MAX_PEERS, Audits, Outcome, Ruling, Sample, Word
from market.canaries import Canaries, Canary
from market.evidence_sqlite import AuditBook, Evidence
from market.quarantine import Quarantine, Strikes
from market.reputation import Reputation
from market.samples import Samples, cut
from node.decode.convictions import Conviction, Convictions
from node.market.audit_report import AuditReport
from node.market.checkers import Checkers, Swarm
from node.market.findings import Findings
from routing.dispatch.call import MoeCall
from routing.dispatch.plan import HOME, ServerCall
from routing.wire.experts import ExpertsAnswer, ExpertsRequest
from routing.wire.messages import encode_message

log = logging.getLogger("panal.audit")

AT_ONCE = 4
"""Calls that are run again at the same time, each by another."""

LOOKED_AT = 32
"""Of the calls that wait, how many are looked at when somebody has time: that costs some 0.1 ms."""

LOOK_SECONDS = 0.25
IDLE_SECONDS = 15.0
"""Between looks at who has time, while calls wait, and at whose quarantine has ended."""

ARBITER_SECONDS = 10.0
"""How long a third replica is waited for until it has time."""

CANARY_JITTER = 1.0
"""Seconds after a call of the same layer within which a canary follows it."""

NEWCOMER_CHECKS = 8
"""Answers of a peer that were checked before it is no newcomer, whom canaries are sent to as well."""

SETTLE_SECONDS = 10.0
"""How long an answer is held back for its audits: a few trips, or what a busy replica needs to have time."""

KEEP_SECONDS = 60.0
"""Between writes of what is known of peers."""


class Auditor:
    """Of one backbone.

    Args:
        audits, reputation, quarantine: the rules, and what is known of peers.
        dealt: the credits that each peer has earned here or paid, by receipts that both have signed.

    Attributes:
        findings: what was found, and is kept.
    """

    def __init__(
        self,
        swarm: Swarm,
        checkers: Checkers,
        convictions: Convictions,
        audits: Audits,
        reputation: Reputation,
        quarantine: Quarantine,
        book: AuditBook,
        rng: Random,
        dealt: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.findings = Findings(swarm.bar, book, reputation, quarantine, dealt)
        self.audits = audits
        self.reputation = reputation
        self.quarantine = quarantine
        self._swarm = swarm
        self._checkers = checkers
        self._convictions = convictions
        self._rng = rng
        self._samples = Samples()
        self._canaries = Canaries()
        self._checked: Counter[str] = Counter()
        self._alone: set[str] = set()  # peers with cells that nobody else could compute again
        self._clean: dict[str, float] = {}  # when each gave its last answer that was checked and right
        self._pardoned: dict[str, float] = {}  # when the owner forgave each
        self._under_way: list[str] = []  # whose answers are being checked
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()

    # --- on the path of answers ---

    def watch(
        self, call: MoeCall, part: ServerCall, request: ExpertsRequest, answer: ExpertsAnswer, path: str
    ) -> int:
        """An answer has come (routing.dispatch.star.OnAnswer); costs a few microseconds, owes nothing."""
        peer_id = part.peer_id
        self.reputation.answered(peer_id)
        share = self.audits.share_of(peer_id)
        if self._rng.random() < share and self._samples.has_room(peer_id):
            word = Word(peer_id, self._swarm.build_of(peer_id), answer.y)
            sample = cut(Sample(request, word, time.perf_counter()), self._rng.shuffle)
            if sample is not None:
                self._samples.add(sample)
                self._changed.set()
        if self._needs_canaries(peer_id) and self._rng.random() < share:
            self._start_canary(peer_id, request.layer, self._rng.random() * CANARY_JITTER)
        return 0

    # --- off it ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.findings.bar()
                task_status.started()
                kept = trio.current_time()
                while True:
                    self._samples.expire(time.perf_counter())
                    self._start()
                    self.findings.bar()
                    if trio.current_time() - kept > KEEP_SECONDS:
                        kept = trio.current_time()
                        await self.findings.keep()
                    with trio.move_on_after(LOOK_SECONDS if len(self._samples) else IDLE_SECONDS):
                        await self._changed.wait()
                    self._changed = trio.Event()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self.findings.keep()

    async def settle(self, peers: Collection[str]) -> None:
        """Wait until no call of these peers is to be run again, or is: SETTLE_SECONDS at most."""
        self._checkers.hurry += 1
        try:
            with trio.move_on_after(SETTLE_SECONDS):
                while self._nursery is not None and (
                    self._samples.waits_for(peers) or not set(peers).isdisjoint(self._under_way)
                ):
                    self._changed.set()
                    await trio.sleep(0.01)
        finally:
            self._checkers.hurry -= 1

    async def pardon(self, peer_id: str) -> Strikes | None:
        """The owner forgives a peer: it is asked again, as a newcomer is.

        Returns:
            What stood against it; None: nothing.

        Raises:
            LocalError: it is forgiven in this process, and cannot be written down.
        """
        if not self.quarantine.of(peer_id, time.time()):
            return None
        self.audits.forget(peer_id)
        self._canaries.doubt(peer_id)  # answers that were on their way when it was found out
        self._samples.drop(lambda each: each.word.peer_id == peer_id)
        self._pardoned[peer_id] = time.perf_counter()
        self._convictions.pardon(peer_id, self._pardoned[peer_id])
        self._checked.pop(peer_id, None)
        return await self.findings.pardon(peer_id)

    def report(self) -> AuditReport:
        """How audits go."""
        counts = self.audits.counts
        unsettled = counts[Outcome.UNSETTLED] + counts[Outcome.MARKED]
        return AuditReport(
            share=self.audits.share,
            checked=counts[Outcome.AGREED] + unsettled + counts[Outcome.CONVICTED],
            agreed=counts[Outcome.AGREED],
            unsettled=unsettled,
            convicted=counts[Outcome.CONVICTED],
            same_bytes=self.audits.same_bytes,
            waiting=len(self._samples) + len(self._under_way),
            missed=self._samples.missed,
            canaries=len(self._canaries),
            quarantined=self.quarantine.barred(time.time()),
            suspected=sorted(peer for peer in self._checked if self.audits.suspected(peer)),
        )

    # --- an audit ---

    def _start(self) -> None:
        """Begin all that can be begun now."""
        assert self._nursery is not None
        for sample in self._samples.first(LOOKED_AT):
            if not self._checkers.of(sample, later=True):
                self._samples.remove(sample)
                self._alone.add(sample.word.peer_id)
                if not self.quarantine.holds(sample.word.peer_id, time.time()):  # it was on its way then
                    self._canaries.keep(Canary(sample, frozenset((sample.word.peer_id,))))
            elif len(self._under_way) < AT_ONCE and (ready := self._checkers.of(sample)):
                self._samples.remove(sample)
                checker = self._checkers.choose(ready)
                self._checkers.reserve(checker)
                self._under_way.append(sample.word.peer_id)
                self._nursery.start_soon(self._audit, sample, checker)

    async def _audit(self, sample: Sample, checker: str) -> None:
        try:
            held = self._checkers.held_by(checker, sample.request)
            part = cut(sample, self._rng.shuffle, held=held)
            try:
                word = None if part is None else await self._checkers.ask(checker, part.request)
            finally:
                self._checkers.release(checker)
            if part is None or word is None:
                self._samples.missed += 1
                return
            ruling = self.audits.check(part, word)
            if ruling.outcome is Outcome.OPEN:
                ruling = await self._arbitrate(part, word, ruling)
            await self._conclude(part, word, ruling)
        finally:
            self._under_way.remove(sample.word.peer_id)
            self._changed.set()

    async def _arbitrate(self, sample: Sample, word: Word, opened: Ruling) -> Ruling:
        """Two differ: have a third say who is right, this node if it can."""
        deadline = trio.current_time() + ARBITER_SECONDS
        while trio.current_time() < deadline:
            possible = [
                each
                for each in self._checkers.of(sample, without=(word.peer_id,), later=True)
                if not sample.experts & ~self._checkers.held_by(each, sample.request)
            ]
            ready = [each for each in possible if self._checkers.has_time(each)]
            if HOME in possible:
                ready = [each for each in ready if each == HOME]  # what is decisive is worth the wait
            if ready:
                arbiter = self._checkers.choose(ready)
                with self._checkers.reserved(arbiter):
                    third = await self._checkers.ask(arbiter, sample.request)
                if third is not None:
                    return self.audits.arbitrate(sample, word, third)
            if not possible:
                break
            await trio.sleep(LOOK_SECONDS / 5)
        assert opened.worst is not None
        ruling = self.audits.unsettled(sample.word.peer_id, word.peer_id, opened.worst)
        for peer_id in (sample.word.peer_id, word.peer_id):
            self._start_canary(peer_id, None, 0.0)
        return ruling

    async def _conclude(self, sample: Sample, word: Word, ruling: Ruling) -> None:
        """See to what follows from two answers."""
        self._count((sample.word, word), ruling)
        for peer_id in ruling.agreed:
            self._alone.discard(peer_id)
            self._note_clean(peer_id, sample.at)
        if ruling.outcome is Outcome.AGREED:
            both = frozenset((sample.word.peer_id, word.peer_id))
            self._canaries.keep(Canary(sample, both))
        for peer_id in ruling.guilty:
            false, other = (sample.word, word) if peer_id == sample.word.peer_id else (word, sample.word)
            await self._convict(sample, false, other, ruling)

    def _count(self, words: Collection[Word], ruling: Ruling) -> None:
        """Note how it went for whoever answered."""
        for word in words:
            self._checked[word.peer_id] += 1
            if word.peer_id != HOME:
                agreed = word.peer_id in ruling.agreed
                self.findings.tallies.count(word.peer_id, word.build, agreed=agreed)

    def _note_clean(self, peer_id: str, at: float) -> None:
        """An answer of then was right."""
        self._clean[peer_id] = max(at, self._clean.get(peer_id, -math.inf))
        for known in (self._clean, self._checked):
            while len(known) > MAX_PEERS:
                del known[next(iter(known))]
        while len(self._alone) > MAX_PEERS:
            self._alone.pop()

    async def _convict(self, sample: Sample, false: Word, other: Word, ruling: Ruling) -> None:
        """A peer gave a false answer: it is not asked any more, and what rests on it is done again."""
        peer_id, now = false.peer_id, time.time()
        if sample.at <= self._pardoned.get(peer_id, -math.inf):
            return  # it is forgiven with the rest
        strikes = self.quarantine.strike(peer_id, now)
        left = strikes.until - now
        self.reputation.struck(peer_id, strikes.count)
        self._canaries.doubt(peer_id)
        self._samples.drop(lambda each: each.word.peer_id == peer_id)
        clean = self._clean.pop(peer_id, -math.inf)
        since = clean if clean < sample.at else -math.inf  # it was right after it was wrong: who knows when
        self.findings.bar()
        self._convictions.add(Conviction(peer_id, since, time.perf_counter() + left, ruling.reason))
        request, worst = sample.request, ruling.worst
        log.warning(
            "%s gave a false answer for layer %d, which %s; it is not asked for %.0f minutes "
            "(panal market audits)",
            peer_id, request.layer, ruling.reason, left / 60,
        )  # fmt: skip
        evidence = Evidence(
            at=now,
            peer_id=peer_id,
            model_id=request.model_id.hex(),
            layer=request.layer,
            call_index=request.call_index,
            pairs=request.pairs,
            request=blake3(encode_message(request)).digest(),
            answer=blake3(np.ascontiguousarray(false.y).tobytes()).digest(),
            other=other.peer_id,
            other_answer=blake3(np.ascontiguousarray(other.y).tobytes()).digest(),
            cosine=0.0 if worst is None else worst.cosine,
            length=0.0 if worst is None else worst.length,
            reason=ruling.reason,
        )
        await self.findings.convicted(strikes, evidence)

    # --- canaries ---

    def _needs_canaries(self, peer_id: str) -> bool:
        is_new = self._checked[peer_id] < NEWCOMER_CHECKS
        return is_new or peer_id in self._alone or self.audits.suspected(peer_id)

    def _start_canary(self, peer_id: str, layer: int | None, delay: float) -> None:
        if self._nursery is not None and len(self._canaries):
            self._nursery.start_soon(self._send_canary, peer_id, layer, delay)

    async def _send_canary(self, peer_id: str, layer: int | None, delay: float) -> None:
        """Ask a peer a call of the past; of this layer, or of any."""
        await trio.sleep(delay)
        if not self._checkers.has_time(peer_id):
            return

        held: dict[tuple[int, int], int] = {}

        def fits(canary: Canary) -> bool:
            request = canary.sample.request
            if layer not in (None, request.layer):
                return False
            call = request.layer, request.call_index
            if call not in held:
                held[call] = self._checkers.held_by(peer_id, request)
            return not canary.sample.experts & ~held[call]

        canary = self._canaries.choose(peer_id, fits, self._rng)
        if canary is None:
            return
        self._under_way.append(peer_id)
        try:
            at = time.perf_counter()
            with self._checkers.reserved(peer_id):
                word = await self._checkers.ask(peer_id, canary.sample.request)
            if word is None:
                return
            sample = replace(canary.sample, word=word, at=at)
            ruling = self.audits.check_again(sample, canary.sample.word, canary.by)
            self._count((word,), ruling)
            if ruling.outcome is Outcome.AGREED and len(canary.by) > 1:
                self._note_clean(peer_id, at)
            for _ in ruling.guilty:
                await self._convict(sample, word, canary.sample.word, ruling)
        finally:
            self._under_way.remove(peer_id)
            self._changed.set()
