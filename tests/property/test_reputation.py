"""Standing starts at nothing, grows with dealings, and is never better for two identities than for one."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from market.hearsay import MAX_VOUCHED, MAX_VOUCHERS
from market.reputation import HEARSAY, MAX_REMEMBERED, OWN_DECIDES, Dealings, Reputation, standing

amounts = st.floats(0, 1e6, allow_nan=False)
counts = st.integers(0, 10**6)
dealings = st.builds(Dealings, answers=counts, agreed=amounts, paid=amounts)
CLOSE = 1 + 1e-9


@given(amounts, amounts)
def test_standing_is_superadditive_and_grows(a: float, b: float) -> None:
    assert standing(a) + standing(b) <= standing(a + b) * CLOSE
    assert standing(a) <= standing(a + b) * CLOSE
    assert 0 <= standing(a) <= a and standing(0) == standing(-a) == 0


@given(dealings, dealings, st.integers(0, 3), st.integers(0, 3))
def test_one_identity_is_worth_at_least_two_that_share_what_it_did(
    first: Dealings, second: Dealings, strikes: int, more: int
) -> None:
    """Strikes as well: split up they take no less from the two than from the one, where both still stand."""
    split, whole = Reputation(), Reputation()
    split.restore("a", first)
    split.restore("b", second)
    split.struck("a", strikes)
    split.struck("b", more)
    whole.restore("one", Dealings(*(getattr(first, name) + getattr(second, name) for name in NAMES)))
    whole.struck("one", strikes + more)
    if split.of("a") > 0 and split.of("b") > 0:
        assert split.together(["a", "b"]) <= whole.of("one") * CLOSE
    if not strikes + more:
        assert split.together(["a", "b", "a"]) <= whole.of("one") * CLOSE


NAMES = ("answers", "agreed", "paid")


@given(dealings, st.lists(amounts, min_size=2, max_size=6), st.lists(dealings, max_size=3))
def test_nobody_is_vouched_for_more_by_being_several(
    issuer: Dealings, credits: list[float], others: list[Dealings]
) -> None:
    split, whole = Reputation(), Reputation()
    for each in (split, whole):
        each.restore("issuer", issuer)
        for number, known in enumerate(others):
            each.restore(f"other {number}", known)
            each.heard(f"other {number}", "somebody else", 5.0)
    for number, amount in enumerate(credits):
        split.heard("issuer", f"part {number}", amount)
        whole.heard("issuer", "one", math.fsum(credits[: number + 1]))
    parts = [f"part {number}" for number in range(len(credits))]
    assert split.together(parts) <= whole.of("one") * CLOSE + 1e-9
    budget = HEARSAY * standing(issuer.answers / 200 + issuer.agreed + issuer.paid)
    assert whole.of("one") <= standing(min(budget, HEARSAY * sum(credits))) * CLOSE + 1e-9


@given(st.lists(amounts, min_size=1, max_size=5), st.lists(amounts, min_size=1, max_size=5))
def test_strangers_vouch_for_nobody(credits: list[float], among: list[float]) -> None:
    """A ring of identities that nobody here has dealt with: what they sign for each other weighs nothing."""
    reputation = Reputation()
    names = [f"sybil {number}" for number in range(len(credits) + 1)]
    for number, amount in enumerate(credits):
        reputation.heard(names[number], names[number + 1], amount)
        reputation.heard(names[number + 1], names[number], amount)
    for amount in among:
        reputation.heard(names[0], names[0], amount)
    assert reputation.together(names) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), amounts), max_size=8))
def test_a_receipt_heard_again_counts_once(heard: list[tuple[str, float]]) -> None:
    """They are totals: an older one, or the same, adds nothing."""
    once, often = Reputation(), Reputation()
    for each in (once, often):
        each.restore("issuer", Dealings(0, 1e4, 0))
    for peer, amount in heard:
        for _ in range(3):
            often.heard("issuer", peer, amount)
        once.heard("issuer", peer, amount)
    assert all(once.of(peer) == often.of(peer) for peer in "abc")


def test_lies_outweigh_what_thousands_of_calls_have_given() -> None:
    reputation = Reputation()
    reputation.agreed("peer", 300)
    assert reputation.of("peer") > 250
    reputation.struck("peer", 1)
    assert reputation.of("peer") == 0
    reputation.heard("friend", "peer", 1e9)
    assert reputation.of("peer") == 0


# --- what others have signed ---

gifts = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=5)


@given(
    own=gifts,
    outside=st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 4), st.floats(0, 1e6)), max_size=4),
    ring=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0, 1e9)), max_size=12),
    speaking=st.sets(st.integers(0, 4), min_size=1),
)
@example(own=[1e6, 1e6], outside=[], ring=[(0, 1, 1e9), (1, 0, 1e9)], speaking={0, 1})
@example(own=[1e6, 1e6, 0.0], outside=[], ring=[(0, 1, 1e9), (0, 2, 1e9), (1, 2, 1e9)], speaking={1, 2})
@example(own=[1e6], outside=[(1e3, 0, 1e9)], ring=[], speaking={0})
def test_no_ring_of_vouchers_weighs_more_than_one_that_did_the_work_of_all(
    own: list[float],
    outside: list[tuple[float, int, float]],
    ring: list[tuple[int, int, float]],
    speaking: set[int],
) -> None:
    """One does work for this node and for honest vouchers; split over any identities, of which any vouch for
    any and any speak, it weighs no more."""
    many, one = Reputation(), Reputation()
    names = [f"part {number}" for number in range(len(own))]
    for name, dealings in zip(names, own, strict=True):
        many.restore(name, Dealings(agreed=dealings))
    one.restore("one", Dealings(agreed=math.fsum(own)))
    for number, (standing_here, part, credits) in enumerate(outside):
        voucher = f"honest {number}"
        for each in (many, one):
            each.restore(voucher, Dealings(agreed=standing_here))
        many.heard(voucher, names[part % len(names)], credits)
        one.heard(voucher, "one", credits)
    for voucher_number, part, credits in ring:
        many.heard(names[voucher_number % len(names)], names[part % len(names)], credits)
    those = [names[number % len(names)] for number in speaking]
    assert many.together(those) <= one.of("one") * CLOSE + 1e-9
    for name in names:
        assert many.of(name) <= one.of("one") * CLOSE + 1e-9


@given(
    dealings_of_all=st.lists(st.floats(0, 1e4), min_size=3, max_size=3),
    heard=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.floats(0, 1e9)), max_size=8),
)
def test_hearsay_never_turns_what_own_experience_decides(
    dealings_of_all: list[float], heard: list[tuple[int, int, float]]
) -> None:
    silent, told = Reputation(), Reputation()
    for each in (silent, told):
        for number, known in enumerate(dealings_of_all):
            each.restore(f"peer {number}", Dealings(agreed=known))
        for number in range(3, 5):
            each.restore(f"peer {number}", Dealings(agreed=1e9))
    for voucher, peer, credits in heard:
        told.heard(f"peer {voucher}", f"peer {peer}", credits)
    by = ["peer 0", "peer 1"]
    own = [silent.own(peer) for peer in (*by, "peer 2")]
    assert own == [told.own(peer) for peer in (*by, "peer 2")]
    if max(own[0] + own[1], own[2]) >= OWN_DECIDES:
        assert told.outweighed("peer 2", by) == silent.outweighed("peer 2", by) == (own[0] + own[1] > own[2])
    for number in range(5):
        assert told.is_proved(f"peer {number}") == silent.is_proved(f"peer {number}")


def test_hearsay_counts_between_the_unknown() -> None:
    reputation = Reputation()
    reputation.agreed("voucher", 1000)
    assert not reputation.outweighed("odd", ["one", "other"])
    reputation.heard("voucher", "one", 500)
    assert reputation.outweighed("odd", ["one", "other"])
    reputation.agreed("odd", 6)
    assert reputation.own("odd") > OWN_DECIDES and not reputation.outweighed("odd", ["one", "other"])


def test_who_is_found_lying_vouches_for_nobody_and_nobody_for_it() -> None:
    reputation = Reputation()
    reputation.agreed("voucher", 1e6)
    reputation.agreed("peer", 1e3)
    reputation.heard("voucher", "peer", 1e6)
    with_hearsay = reputation.of("peer")
    assert with_hearsay > reputation.own("peer")
    reputation.struck("voucher", 1)
    assert reputation.own("voucher") > 0, "it has done much more than a strike takes"
    assert reputation.vouchers(10) == ["peer"]
    assert reputation.of("peer") == reputation.own("peer")
    reputation.struck("voucher", 0)  # the strike is forgiven
    assert reputation.of("peer") == with_hearsay
    reputation.struck("peer", 1)
    assert reputation.of("peer") == reputation.own("peer") > 0


def test_standing_by_hearsay_is_not_passed_on() -> None:
    reputation = Reputation()
    reputation.agreed("first", 1e6)
    reputation.heard("first", "second", 1e6)
    reputation.heard("second", "third", 1e6)
    assert reputation.of("second") > 0 and reputation.of("third") == 0
    assert reputation.vouchers(10) == ["first"]


def test_memory_is_bounded_and_hearsay_pushes_out_nobody_that_was_dealt_with() -> None:
    reputation = Reputation()
    reputation.agreed("friend", 1.0)
    for voucher in range(3 * MAX_VOUCHERS):
        for peer in range(2 * MAX_VOUCHED):
            reputation.heard(f"voucher {voucher}", f"peer {voucher} {peer}", 1.0)
    told = reputation._hearsay._told
    assert len(told) == MAX_VOUCHERS and all(len(each) == MAX_VOUCHED for each in told.values())
    assert [peer for peer, _ in reputation.dealings()] == ["friend"]
    for number in range(2 * MAX_REMEMBERED):
        reputation.paid(f"asker {number}", 0.0)
        reputation.struck(f"asker {number}", 0)
    assert [peer for peer, _ in reputation.dealings()] == ["friend"]
    for number in range(2 * MAX_REMEMBERED):
        reputation.answered(f"stranger {number}")
    assert len(reputation.dealings()) == MAX_REMEMBERED


def test_what_peers_weigh_is_told() -> None:
    reputation = Reputation()
    reputation.agreed("voucher", 100)
    reputation.agreed("liar", 1)
    reputation.struck("liar", 2)
    reputation.paid("payer", 50)
    reputation.restore("newcomer", Dealings())
    reputation.heard("voucher", "payer", 10)
    reputation.heard("voucher", "heard of", 20)
    reputation.heard("payer", "heard of", 20)
    reputation.heard("stranger", "sybil", 1e9)
    weights = reputation.weights()
    assert [each.peer for each in weights] == ["voucher", "payer", "heard of", "liar"]
    assert [each.vouchers for each in weights] == [0, 1, 2, 0]
    assert [each.strikes for each in weights] == [0, 0, 0, 2]
    assert [each.proved for each in weights] == [True, False, False, False]
    for each in weights:
        assert each.standing == reputation.of(each.peer)
        assert math.isclose(each.standing - each.hearsay, reputation.own(each.peer))
    assert weights[0].hearsay == 0 and weights[2].hearsay == weights[2].standing > 0
    assert reputation.weights(limit=2) == weights[:2]
