"""What passes cost is shared among the answers in them to the last micro-credit, whatever they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.decode.continuous.accounts import Accounts
from node.decode.continuous.ask import Ask
from node.decode.continuous.asked import Asked
from node.decode.ledger import PassDone, TripsLedger
from node.decode.members import Made, Member
from node.engine.sampler import SamplingSettings
from routing.dispatch.call import CallStats, ServerStats

PEERS = "abc"
MEMBERS = 4

call = st.dictionaries(st.sampled_from(PEERS), st.integers(0, 50), max_size=3)
passes = st.tuples(
    st.lists(st.integers(0, 7), min_size=MEMBERS, max_size=MEMBERS).filter(any),
    st.lists(call, max_size=4),
    st.booleans(),
)


def asked() -> Asked:
    return Asked(Ask((1,), 9, SamplingSettings()), lambda news: None, 0.0)


@given(st.lists(passes, max_size=12))
def test_answers_together_cost_what_was_paid(
    made: list[tuple[list[int], list[dict[str, int]], bool]],
) -> None:
    nobody: Any = None
    asks = {Member(number, number, [1], nobody, 9): asked() for number in range(MEMBERS)}
    accounts = Accounts()
    paid: Counter[str] = Counter()
    for rows, calls, fails in made:
        shared = TripsLedger()
        for prices in calls:
            servers = [ServerStats(peer, 0.1, 0.0, 0, 1, price) for peer, price in prices.items()]
            shared.count_faults(CallStats(servers=servers))
            paid.update(prices)
        shares = [(member, count) for member, count in zip(asks, rows, strict=True) if count]
        if fails:
            accounts.failed(shared, shares, asks)
        else:
            accounts.made(shared, Made([], shares, PassDone(sum(rows))), asks)
    total: Counter[str] = Counter()
    for each in asks.values():
        total.update(each.ledger.cost_by_peer)
        assert each.ledger.report().cost == sum(each.ledger.report().cost_by_peer.values())
    assert +total == +paid
    told = accounts.stats(0.0, slots=1, active=0, reading=0, waiting=0, queue=1, cached=0).trips
    assert told.cost == paid.total() and Counter(told.cost_by_peer) == +paid
