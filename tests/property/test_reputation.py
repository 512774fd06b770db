"""Standing starts at nothing, grows with dealings, and is never better for two identities than for one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from market.reputation import HEARSAY, Dealings, Reputation, standing

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
