"""The rules of audits: who is convicted, who never is, and how soon liars are found."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from market.audit import BY_PEERS, Audits, Outcome, Sample, Word, found_within
from market.reputation import Reputation
from market.verdict import SEVERAL
from routing.dispatch.holders import HOME
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine, ExpertsRequest

WIDTH = 64
SHARE = 0.05
OURS, OTHER = "00aa", "11bb"

Lie = Callable[[Float32Array, random.Random], Float32Array]


def request_of(pairs: int, seed: int) -> ExpertsRequest:
    rng = np.random.default_rng(seed)
    return ExpertsRequest(
        bytes(32), 0, 0, 1,
        rng.standard_normal((1, 8)).astype(np.float32),
        np.array([pairs], np.uint16), np.arange(pairs, dtype=np.uint16), None,
        WIDTH, Codec.F32, Codec.F32, Combine.ROWS, 1000,
    )  # fmt: skip


def right(pairs: int, seed: int) -> Float32Array:
    y: Float32Array = np.random.default_rng(seed).standard_normal((pairs, WIDTH)).astype(np.float32)
    return y


def of_another_kind(y: Float32Array, rng: random.Random) -> Float32Array:
    """As another kind of CPU was measured to answer: nearly the same, now and then a row a little off."""
    noise = np.random.default_rng(rng.getrandbits(32))
    size = np.full(len(y), 1e-7)
    size[noise.random(len(y)) < 1e-3] = 10 ** noise.uniform(
        -6, -2.3
    )  # of the length: 1 - cosine is half its square
    direction = noise.standard_normal(y.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    moved: Float32Array = (y + direction * (np.linalg.norm(y, axis=1) * size)[:, None]).astype(np.float32)
    return moved


def off_by(share: float) -> Lie:
    """As a lower precision: off by so much of its length in a direction of its own."""

    def lie(y: Float32Array, rng: random.Random) -> Float32Array:
        noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(y.shape)
        noise *= (
            share * np.linalg.norm(y, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
        )
        moved: Float32Array = (y + noise).astype(np.float32)
        return moved

    return lie


LIES: dict[str, Lie] = {
    "garbage": lambda y, rng: (
        np.random.default_rng(rng.getrandbits(32)).standard_normal(y.shape).astype(np.float32)
    ),
    "scaled": lambda y, rng: y * np.float32(1.01),
    "lower precision": off_by(0.05),  # Q4_K in place of Q8_0: 1 - cosine is some 1.4e-3
    "slightly lower precision": off_by(0.012),  # Q6_K in place of Q8_0: some 7e-5
    "stale": lambda y, rng: right(len(y), 1),
    "lazy": lambda y, rng: np.zeros_like(y),
}


def sample_of(y: Float32Array, peer: str = "accused", build: str = OURS, seed: int = 0) -> Sample:
    return Sample(request_of(len(y), seed), Word(peer, build, y), 0.0)


def calls_until_found(lie: Lie, rng: random.Random, *, share: float = SHARE, lies: float = 1.0) -> int:
    """Of a liar whose calls are run again at home, which is of another kind of CPU."""
    audits = Audits(share, Reputation())
    for number in range(1, 100_000):
        pairs = rng.choice([1, 1, 2, 3, 4, 8])
        is_false = rng.random() < lies
        if rng.random() >= audits.share_of("liar"):
            continue
        y = right(pairs, number)
        said = lie(of_another_kind(y, rng), rng) if is_false else of_another_kind(y, rng)
        if audits.check(sample_of(said, "liar", OTHER, number), Word(HOME, OURS, y)).guilty:
            return number
    raise AssertionError("it was never found")


@pytest.mark.parametrize("kind", LIES)
def test_liars_are_found_within_200_calls(kind: str) -> None:
    """300 liars of each kind: at most 1 in 10,000 (2,000 where two marks are needed) should take longer."""
    rng = random.Random(kind)
    taken = [calls_until_found(LIES[kind], rng) for _ in range(300)]
    assert max(taken) <= 200
    assert sum(taken) / len(taken) < 45


def test_who_lies_in_one_call_of_ten_is_found_within_920() -> None:
    rng = random.Random(3)
    taken = [calls_until_found(LIES["garbage"], rng, lies=0.1) for _ in range(300)]
    late = sum(each > 920 for each in taken)
    assert found_within(920, SHARE, lies=0.1) > 0.99 and late <= 9  # 3 are to be expected


def test_what_is_promised_is_what_the_odds_say() -> None:
    assert found_within(200, 0.05) > 0.9999
    assert found_within(200, 0.05, marks=2) > 0.999
    assert found_within(0, 0.05) == 0 and found_within(1, 1.0) == 1
    rng = random.Random(1)
    met = sum(sum(rng.random() < 0.05 for _ in range(60)) >= 2 for _ in range(4_000)) / 4_000
    assert met == pytest.approx(found_within(60, 0.05, marks=2), abs=0.02)


def test_the_honest_of_another_kind_are_never_convicted() -> None:
    """Simulated ones; those of real kernels are in tests/integration/test_audit_kernels.py."""
    rng = random.Random(11)
    audits = Audits(SHARE, Reputation())
    off = 0
    for number in range(6_000):
        y = right(rng.choice([1, 2, 8]), number % 500)
        ruling = audits.check(
            sample_of(of_another_kind(y, rng), "honest", OTHER, number % 500), Word(HOME, OURS, y)
        )
        assert not ruling.guilty
        off += ruling.outcome is Outcome.MARKED
    assert off < 6


def test_one_class_gives_the_same_bytes_or_is_false() -> None:
    """What another kind of CPU would need two marks for is a proof within one class."""
    y = right(2, 5)
    for build, outcome in ((OURS, Outcome.CONVICTED), (OTHER, Outcome.MARKED), ("", Outcome.MARKED)):
        audits = Audits(SHARE, Reputation())
        sample = sample_of(y * np.float32(1.01), "liar", build)
        assert audits.check(sample, Word(HOME, OURS, y)).outcome is outcome
        assert audits.check(sample, Word(HOME, OURS, y)).guilty == ("liar",)


@pytest.mark.parametrize("lies", [1, 2, 3, 20])
def test_some_rows_in_a_lower_precision_are_marked_within_one_class(lies: int) -> None:
    """Fewer than half of a call's: some of a server's cells. Of another kind of CPU it cannot be told."""
    y = right(64, 6)
    moved = y.copy()
    moved[:lies] = off_by(0.02)(y[:lies], random.Random(1))
    for build, is_marked in ((OURS, lies >= SEVERAL), (OTHER, False)):
        audits = Audits(SHARE, Reputation())
        sample = sample_of(moved, "liar", build)
        first = audits.check(sample, Word(HOME, OURS, y)).outcome
        assert first is (Outcome.MARKED if is_marked else Outcome.AGREED)
        assert (audits.check(sample, Word(HOME, OURS, y)).guilty == ("liar",)) is is_marked


def test_last_bits_are_no_lie_even_within_one_class() -> None:
    y = right(4, 5)
    audits = Audits(SHARE, Reputation())
    moved = np.nextafter(y, np.float32(9)).astype(np.float32)
    assert audits.check(sample_of(moved), Word(HOME, OURS, y)).outcome is Outcome.AGREED


def test_nobody_is_convicted_on_one_word() -> None:
    y, audits = right(2, 5), Audits(SHARE, Reputation())
    sample, word = sample_of(LIES["garbage"](y, random.Random(0)), "a"), Word("b", OURS, y)
    ruling = audits.check(sample, word)
    assert ruling.outcome is Outcome.OPEN and ruling.worst is not None
    for _ in range(10):
        assert audits.unsettled("a", "b", ruling.worst).outcome is Outcome.UNSETTLED
    assert audits.suspected("a") and audits.suspected("b")
    assert audits.share_of("a") == audits.share_of("b") == 4 * SHARE and audits.share_of("c") == SHARE


def test_a_third_decides_if_the_two_weigh_more() -> None:
    y, false = right(2, 5), right(2, 6)
    for standing, others, guilty in ((0.0, 1.0, ("liar",)), (1_000.0, 1.0, ()), (0.0, 0.0, ())):
        reputation = Reputation()
        reputation.agreed("liar", standing)
        reputation.agreed("a", others)
        audits = Audits(SHARE, reputation)
        sample, word = sample_of(false, "liar"), Word("a", OURS, y)
        assert audits.check(sample, word).outcome is Outcome.OPEN
        ruling = audits.arbitrate(sample, word, Word("b", OURS, y))
        assert ruling.guilty == guilty and set(ruling.agreed) == {"a", "b"}


def test_newcomers_that_keep_agreeing_are_believed_in_the_end() -> None:
    """Where there is nobody else to ask; who has standing already outlasts them for long."""
    y, false = right(2, 5), right(2, 6)
    needed = []
    for standing in (0.0, 5.0, 50.0):
        reputation = Reputation()
        reputation.agreed("odd", standing)
        audits = Audits(SHARE, reputation)
        for number in range(1, 1_000):
            if audits.arbitrate(sample_of(false, "odd"), Word("a", OURS, y), Word("b", OURS, y)).guilty:
                needed.append(number)
                break
    assert needed[0] == 2 and needed == sorted(set(needed)) and needed[2] > 100


def test_the_checker_may_be_the_liar() -> None:
    y, false = right(2, 5), right(2, 6)
    audits = Audits(SHARE, Reputation())
    sample, word = sample_of(y, "honest"), Word("liar", OURS, false)
    assert audits.check(sample, word).outcome is Outcome.OPEN
    assert audits.arbitrate(sample, word, Word(HOME, OURS, y)).guilty == ("liar",)


def test_two_that_lie_alike_are_both_found_at_home() -> None:
    y, one, other = right(2, 5), right(2, 6), right(2, 7)
    audits = Audits(SHARE, Reputation())
    ruling = audits.arbitrate(sample_of(one, "a"), Word("b", OURS, other), Word(HOME, OURS, y))
    assert set(ruling.guilty) == {"a", "b"}


def test_three_that_all_differ_settle_nothing() -> None:
    audits = Audits(SHARE, Reputation())
    words = [Word(name, OURS, right(2, seed)) for seed, name in enumerate("abc")]
    ruling = audits.arbitrate(sample_of(words[0].y, "a"), words[1], words[2])
    assert ruling.outcome is Outcome.UNSETTLED and not ruling.guilty


def test_who_is_at_odds_with_two_is_convicted_without_a_third_at_the_same_call() -> None:
    reputation = Reputation()
    audits = Audits(SHARE, reputation)
    y, false = right(2, 5), right(2, 6)
    for peer in ("a", "b"):
        audits.check(sample_of(y, peer), Word(HOME, OURS, y))
    disputes = []
    for peer in ("a", "b"):
        ruling = audits.check(sample_of(false, "liar"), Word(peer, OURS, y))
        assert ruling.worst is not None
        disputes.append(audits.unsettled("liar", peer, ruling.worst))
    assert disputes[0].outcome is Outcome.UNSETTLED and disputes[1].guilty == ("liar",)
    assert not audits.suspected("a") and not audits.suspected("b")


def test_newcomers_cannot_frame_who_is_known() -> None:
    """Any number of them may be at odds with it: their word weighs nothing together."""
    reputation = Reputation()
    audits = Audits(SHARE, reputation)
    y, false = right(2, 5), right(2, 6)
    audits.check(sample_of(y, "known"), Word(HOME, OURS, y))
    for number in range(20):
        ruling = audits.check(sample_of(y, "known"), Word(f"newcomer {number}", OURS, false))
        assert ruling.worst is not None
        assert not audits.unsettled("known", f"newcomer {number}", ruling.worst).guilty
    audits.check(sample_of(y, "known"), Word(HOME, OURS, y))
    assert not audits.suspected("known"), "what is computed here clears it"


def test_a_peer_that_contradicts_itself_is_convicted_by_that() -> None:
    y = right(3, 5)
    audits = Audits(SHARE, Reputation())
    known = Word("peer", OURS, y)
    assert audits.check_again(sample_of(y, "peer"), known, {"peer"}).outcome is Outcome.AGREED
    assert audits.check_again(sample_of(y * np.float32(1.01), "peer"), known, {"peer"}).guilty == ("peer",)


def test_canaries_weigh_what_those_weigh_who_answered_them() -> None:
    y, false = right(3, 5), right(3, 6)
    reputation = Reputation()
    audits = Audits(SHARE, reputation)
    known = Word("a", OURS, y)
    assert audits.check_again(sample_of(false, "c"), known, {"a", "b"}).outcome is Outcome.UNSETTLED
    reputation.agreed("a", 1.0)
    assert audits.check_again(sample_of(false, "c"), known, {"a", "b"}).guilty == ("c",)
    assert audits.check_again(sample_of(false, "d"), known, {"a", HOME}).guilty == ("d",)


def test_agreement_gives_standing_and_more_of_it_where_this_node_has_computed() -> None:
    y = right(2, 5)
    reputation = Reputation()
    audits = Audits(SHARE, reputation)
    audits.check(sample_of(y, "a"), Word("b", OURS, y))
    audits.check(sample_of(y, "c"), Word(HOME, OURS, y))
    found = {peer: dealings.agreed for peer, dealings in reputation.dealings()}
    assert found == {"a": BY_PEERS, "b": BY_PEERS, "c": 1.0}
