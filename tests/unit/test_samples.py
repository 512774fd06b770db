"""Calls that wait to be run again: bounded, and cut so that they can be compared; canaries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from market import canaries, samples
from market.audit import Sample, Word
from market.canaries import Canaries, Canary
from market.samples import Samples, cut
from routing.dispatch.combine import sum_pairs, sum_runs
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine, ExpertsRequest

N_IN, N_OUT, RUN = 6, 5, 4


def value(row: Float32Array, expert: int, weight: float) -> Float32Array:
    """What an expert gives, in this world."""
    return (row[:N_OUT] * (expert + 1) * weight).astype(np.float32)


def answered(request: ExpertsRequest) -> Float32Array:
    """The right answer."""
    assert request.weights is not None
    rows = np.repeat(request.x, request.counts, axis=0)
    pairs = zip(rows, request.experts.tolist(), request.weights.tolist(), strict=True)
    y = np.stack([value(*each) for each in pairs])
    if request.combine is Combine.SUM:
        return sum_pairs(y, request.counts)
    if request.combine is Combine.STABLE:
        return sum_runs(y, request.counts, request.experts, request.run_length)
    return y


def sample(
    experts: Sequence[Sequence[int]], combine: Combine = Combine.ROWS, *, peer: str = "peer", at: float = 0.0
) -> Sample:
    """An answered call: each row with its experts."""
    rng = np.random.default_rng(1)
    flat = np.array([each for row in experts for each in row], np.uint16)
    request = ExpertsRequest(
        bytes(32), 0, 0, 1,
        rng.standard_normal((len(experts), N_IN)).astype(np.float32),
        np.array([len(row) for row in experts], np.uint16), flat,
        rng.random(flat.size).astype(np.float32),
        N_OUT, Codec.F32, Codec.F32, combine, 1000, RUN if combine is Combine.STABLE else 0,
    )  # fmt: skip
    return Sample(request, Word(peer, "", answered(request)), at)


MANY = [[(3 * row + slot) % 16 for slot in range(4)] for row in range(200)]


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("seed", range(5))
def test_a_large_call_is_cut_and_its_part_is_still_right(combine: Combine, seed: int) -> None:
    whole = sample(MANY, combine)
    part = cut(whole, random.Random(seed).shuffle)
    assert part is not None and 0 < part.request.pairs <= samples.MAX_PAIRS
    assert np.array_equal(part.word.y, answered(part.request)), "by its definition"
    assert part.word.y.shape[0] == part.request.vectors
    assert part.whole == (combine is Combine.ROWS)
    if combine is Combine.ROWS:
        for expert in set(part.request.experts.tolist()):
            here = (part.request.experts == expert).sum()
            assert here == (whole.request.experts == expert).sum(), "an expert's rows stay together"


def test_which_part_it_is_depends_on_the_draw() -> None:
    whole = sample(MANY)
    parts = [cut(whole, random.Random(seed).shuffle) for seed in range(20)]
    assert len({part.experts for part in parts if part is not None}) > 5


def test_a_small_call_stays_as_it_is() -> None:
    small = sample([[0, 5], [5, 9]])
    assert cut(small, random.Random(0).shuffle) is small
    assert cut(small, random.Random(0).shuffle, held=1 << 0 | 1 << 5 | 1 << 9) is small


def test_a_replica_is_asked_for_the_experts_it_holds() -> None:
    whole = sample([[0, 5], [5, 9], [0, 1]])
    part = cut(whole, random.Random(0).shuffle, held=1 << 5)
    assert part is not None and part.request.experts.tolist() == [5, 5] and part.whole
    assert np.array_equal(part.word.y, answered(part.request))
    assert cut(whole, random.Random(0).shuffle, held=1 << 7) is None
    for combine in (Combine.SUM, Combine.STABLE):
        assert cut(sample([[0, 5], [5, 9]], combine), random.Random(0).shuffle, held=1 << 5) is None


def test_one_expert_with_hundreds_of_rows_is_cut_by_rows() -> None:
    part = cut(sample([[3]] * 500), random.Random(0).shuffle)
    assert part is not None and part.request.pairs <= samples.MAX_PAIRS and not part.whole
    assert np.array_equal(part.word.y, answered(part.request))


def test_what_waits_is_bounded_for_each_peer_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_OF_PEER", 3)
    monkeypatch.setattr(samples, "MAX_SAMPLES", 5)
    waiting = Samples()
    for number in range(5):
        peer = "a" if number < 3 else "b"
        assert waiting.has_room(peer)
        waiting.add(sample([[number]], peer=peer, at=float(number)))
    assert not waiting.has_room("a") and not waiting.has_room("c") and waiting.missed == 2
    first = waiting.first(2)
    assert [each.at for each in first] == [0.0, 1.0]
    waiting.remove(first[0])
    assert waiting.has_room("c") and waiting.waits_for(["a"]) and not waiting.waits_for(["c"])
    assert len(waiting.drop(lambda each: each.word.peer_id == "a")) == 2 and not waiting.waits_for(["a"])
    waiting.expire(now=3.5 + samples.MAX_AGE)
    assert len(waiting) == 1 and waiting.missed == 3
    monkeypatch.setattr(samples, "MAX_BYTES", 1)
    assert not waiting.has_room("c")


def test_canaries_come_from_the_best_to_the_least_and_once_each() -> None:
    kept, rng = Canaries(), random.Random(0)
    alone, agreed, own = sample([[1]]), sample([[2]]), sample([[3]], peer="other")
    kept.keep(Canary(alone, frozenset(("peer",))))
    kept.keep(Canary(agreed, frozenset(("peer", "other"))))
    kept.keep(Canary(own, frozenset(("other", "home"))))
    order = [kept.choose("peer", lambda canary: True, rng) for _ in range(4)]
    assert [None if each is None else each.sample for each in order] == [own, agreed, alone, None]
    new = kept.choose("newcomer", lambda canary: True, rng)
    assert new is not None and new.sample in (agreed, own), "what one peer alone has said tests no other"
    assert kept.choose("third", lambda canary: False, rng) is None
    kept.doubt("peer")
    assert len(kept) == 1


def test_canaries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "MAX_CANARIES", 3)
    kept = Canaries()
    for number in range(5):
        kept.keep(Canary(replace(sample([[number]]), at=float(number)), frozenset("ab")))
    seen = [kept.choose("c", lambda canary: True, random.Random(0)) for _ in range(4)]
    assert sorted(each.sample.at for each in seen if each is not None) == [2.0, 3.0, 4.0]
    monkeypatch.setattr(canaries, "MAX_BYTES", 1)
    kept.keep(Canary(sample([[7]]), frozenset("ab")))
    assert len(kept) == 3, "one that is too large comes not in, and pushes nobody out"
