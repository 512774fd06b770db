"""The star where answers are late: hedges, races, and whatever else may happen, on the test's own clock."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.dispatch.call import WireSettings
from routing.dispatch.errors import ExpertsUnavailable
from routing.dispatch.race import OVERRUN_SHARE
from routing.estimates import HEDGE_BURST, HEDGE_SHARE, Estimates, Fault
from routing.latency import KNOWN_OVERRUNS, PAUSE
from routing.trust import FIRST_DOUBT
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
)
from tests.star_servers import (
    THIRDS,
    Server,
    Swarm,
    Trouble,
    gone,
    make_call,
    nan,
    on_a_mock_clock,
    overloaded,
    short,
)

BOTH = {"a": range(16), "b": range(16)}


def test_a_late_answer_is_hedged_after_the_tail_of_what_was_measured() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        for seed in range(20):
            await swarm.ask(BOTH, seed=seed)
        assert not b.asked
        a.delay = 100.0
        took, stats = await swarm.ask(BOTH)
        # The median, the pause of a healthy device, and the other's answer on a first call.
        assert took == pytest.approx(0.02 + PAUSE + 0.02, abs=0.002)
        assert (stats.late, stats.hedges, stats.hedges_won, stats.failures) == (["a"], 1, 1, [])
        assert (stats.trips, stats.waves) == (1, 2)
        assert a.cancelled == 1 and b.cancelled == 0
        # Once is bad luck, twice in a row is not.
        assert not swarm.star.estimates.doubted("a", "direct", trio.current_time())
        await swarm.ask(BOTH)
        assert swarm.star.estimates.doubted("a", "direct", trio.current_time())
        assert not swarm.star.estimates.doubted("a", "direct", trio.current_time() + FIRST_DOUBT)

    on_a_mock_clock(test)


def test_the_late_one_may_still_win() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=50.0)
        swarm = Swarm(a, b)
        for seed in range(20):
            await swarm.ask(BOTH, seed=seed)
        a.delay = 0.5
        took, stats = await swarm.ask(BOTH)
        assert took == pytest.approx(0.5)
        assert (stats.hedges, stats.hedges_won, [each.peer_id for each in stats.servers]) == (1, 0, ["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert (a.cancelled, b.cancelled) == (0, 1)
        assert not swarm.star.estimates.doubted("a", "direct", trio.current_time())

    on_a_mock_clock(test)


@pytest.mark.parametrize("combine", list(Combine))
def test_a_hedge_may_take_several_servers_and_all_of_it_counts_or_none(combine: Combine) -> None:
    async def test() -> None:
        a, b, c = Server("a", delay=100.0), Server("b", delay=0.3), Server("c", delay=0.1)
        swarm = Swarm(a, b, c)
        held = {"a": range(16), "b": range(8), "c": range(8, 16)}
        took, stats = await swarm.ask(held, WireSettings(combine=combine))
        assert took == pytest.approx(
            swarm.star.estimates.patience("x", "", rtt=0, nbytes=9000, pairs=20) + 0.3, 0.1
        )
        assert (stats.hedges, stats.hedges_won) == (2, 2)
        asked = [set(server.asked[0].experts.tolist()) for server in (b, c)]
        assert not asked[0] & asked[1] and asked[0] | asked[1] == set(a.asked[0].experts.tolist())
        # c answers long before b; a, a moment before b: then it is a's answer alone that counts.
        fresh = Swarm(Server("a", delay=took - 0.01), Server("b", delay=0.3), Server("c", delay=0.1))
        again, stats = await fresh.ask(held, WireSettings(combine=combine))
        assert again == pytest.approx(took - 0.01)
        assert (stats.hedges, stats.hedges_won) == (2, 0)

    on_a_mock_clock(test)


def test_a_hedge_that_cannot_have_all_pairs_is_not_sent() -> None:
    async def test() -> None:
        a, b = Server("a", delay=6.0), Server("b")
        took, stats = await Swarm(a, b).ask({"a": range(16), "b": range(3)})
        assert took == pytest.approx(6.0)
        assert stats.hedges == 0 and not b.asked

    on_a_mock_clock(test)


def test_when_the_late_one_fails_the_hedge_is_waited_for() -> None:
    async def test() -> None:
        a, b = Server("a", delay=2.0, trouble=gone), Server("b", delay=3.0)
        swarm = Swarm(a, b)
        _, stats = await swarm.ask(BOTH)
        assert [failure.peer_id for failure in stats.failures] == ["a"]
        assert (stats.hedges, stats.hedges_won, stats.moved, len(b.asked)) == (1, 1, 0, 1)

    on_a_mock_clock(test)


def test_when_the_hedge_fails_the_late_one_is_waited_for_and_others_are_tried() -> None:
    async def test() -> None:
        a, b, c = Server("a", delay=5.0), Server("b", delay=0.1, trouble=gone), Server("c", delay=0.1)
        took, stats = await Swarm(a, b).ask(BOTH)
        assert took == pytest.approx(5.0) and [each.peer_id for each in stats.failures] == ["b"]
        took, stats = await Swarm(a, b, c).ask({**BOTH, "c": range(16)})
        assert took < 2.0 and [each.peer_id for each in stats.servers] == ["c"]

    on_a_mock_clock(test)


def test_when_all_fail_each_is_named() -> None:
    async def test() -> None:
        a, b = Server("a", delay=2.0, trouble=gone), Server("b", delay=0.1, trouble=nan)
        with pytest.raises(ExpertsUnavailable) as caught:
            await Swarm(a, b).ask(BOTH)
        assert set(caught.value.reasons) == {"a", "b"}

    on_a_mock_clock(test)


def test_a_bug_in_a_hedge_ends_its_call_and_nothing_else() -> None:
    def bug(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        raise ZeroDivisionError

    async def test() -> None:
        a, b = Server("a", delay=5.0), Server("b", delay=0.1, trouble=bug)
        swarm = Swarm(a, b)
        with pytest.raises(ZeroDivisionError):
            await swarm.ask(BOTH)
        a.delay, b.trouble = 0.1, None
        await swarm.ask(BOTH)

    on_a_mock_clock(test)


def test_a_star_works_in_one_event_loop_after_the_other() -> None:
    swarm = Swarm(Server("a", delay=100.0), Server("b", delay=0.1))

    async def test() -> None:
        took, stats = await swarm.ask({**BOTH})
        assert took < 2 and stats.hedges_won == 1

    on_a_mock_clock(test)
    swarm.star.estimates = Estimates()
    on_a_mock_clock(test)


def test_a_hang_is_hedged_by_a_third_when_the_second_hangs_too() -> None:
    async def test() -> None:
        hung, also = Server("a", delay=100.0), Server("b", delay=100.0)
        c = Server("c", delay=0.1)
        took, stats = await Swarm(hung, also, c).ask({**BOTH, "c": range(16)})
        assert took < 4.0
        assert stats.late == ["a", "b"] and (hung.cancelled, also.cancelled) == (1, 1)

    on_a_mock_clock(test)


def test_the_doubted_are_not_hedged_to_right_after_their_fault() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        for seed in range(3):
            await swarm.ask({"b": range(16)}, seed=seed)
        swarm.star.estimates.failed("b", "direct", Fault.WRONG, trio.current_time())
        a.delay = 5.0
        took, stats = await swarm.ask(BOTH)
        assert took == pytest.approx(5.0) and stats.hedges == 0

    on_a_mock_clock(test)


def test_who_is_usually_just_a_little_late_is_waited_for_where_others_would_take_longer() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.2, rtt=0.2)
        swarm = Swarm(a, b)
        hedges, marks = [], []
        for seed in range(400):
            a.delay = 0.06 if seed % 20 == 19 else 0.02
            took, stats = await swarm.ask(BOTH, seed=seed)
            assert took == pytest.approx(a.delay)
            if seed % 20 == 19:
                hedges.append(stats.hedges)
                marks.append(len(stats.late))
        # Each of the first might have been lost; now it is known that they come 25 ms late, long before b's.
        assert hedges == marks == [1] * KNOWN_OVERRUNS + [0] * (20 - KNOWN_OVERRUNS)
        a.delay = 100.0
        took, stats = await swarm.ask(BOTH)
        assert stats.hedges_won == 1 and took < 0.02 + PAUSE + OVERRUN_SHARE * 0.03 + 0.2
        # Where the other is quicker than that, it is asked at once.
        b.rtt = b.delay = 0.005
        for seed in range(20):
            await swarm.ask({"b": range(16)}, seed=seed)
        a.delay = 0.06
        took, stats = await swarm.ask(BOTH)
        assert stats.hedges_won == 1 and took < 0.05

    on_a_mock_clock(test)


def test_a_hang_is_hedged_out_of_the_reserve_when_little_lateness_has_spent_the_rest() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        for seed in range(20):
            await swarm.ask(BOTH, seed=seed)
        while swarm.star.estimates.hedges.spend(1):
            pass
        a.delay = 100.0
        took, stats = await swarm.ask(BOTH)
        assert stats.hedges_won == 1
        assert took == pytest.approx(3 * (0.02 + PAUSE) + 0.02, abs=0.002)

    on_a_mock_clock(test)


class BehindASocket(Server):
    """Between arrival and answer the loop has some turns to take, as with a connection."""

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        answer = await super().call(request)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        return answer


def test_an_answer_that_came_while_this_node_was_busy_is_not_late() -> None:
    async def test() -> None:
        a, b = BehindASocket("a", delay=0.01), BehindASocket("b", delay=0.01)
        swarm = Swarm(a, b)
        for seed in range(12):
            await swarm.ask(BOTH, seed=seed)
        lates: list[str] = []

        async def ask() -> None:
            lates.extend((await swarm.ask(BOTH))[1].late)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.005)
            time.sleep(0.2)  # the whole loop stands still
        assert not lates

    trio.run(test)


def test_a_swarm_that_is_slow_as_a_whole_is_not_asked_twice_as_much() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        turns = [{"a": range(16), "b": range(16)}, {"b": range(16), "a": range(16)}]
        for seed in range(20):
            await swarm.ask(turns[seed % 2], seed=seed)
        spent = 0
        delays = np.random.default_rng(5).exponential(1.0, 400)  # nothing to be learnt from the last ones
        for number, delay in enumerate(delays):
            a.delay = b.delay = float(delay)
            spent += (await swarm.ask(turns[number % 2]))[1].hedges
        assert 0 < spent <= HEDGE_BURST + HEDGE_SHARE * (400 + spent)

    on_a_mock_clock(test)


def test_an_overflow_is_traced_to_its_sender_within_the_pass() -> None:
    def huge(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        return replace(answer, y=np.full_like(answer.y, 3e38))

    async def test() -> None:
        servers = [Server("a"), Server("b", trouble=huge), Server("c"), Server("d")]
        swarm = Swarm(*servers)
        _, stats = await swarm.ask({**THIRDS, "d": [1, 4, 7, 10, 13]})
        assert [each.peer_id for each in stats.failures] == ["b"] and stats.moved == 1
        assert swarm.star.estimates.doubted("b", "another path", trio.current_time())

    on_a_mock_clock(test)


FATES: list[tuple[float, Trouble | None]] = [
    (0.02, None),
    (0.5, None),
    (3.0, None),
    (1e6, None),
    (0.05, gone),
    (2.0, gone),
    (0.05, nan),
    (1.5, short),
    (0.0, overloaded),
]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(FATES), st.integers(0, 2**16 - 1)), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from(list(Combine)),
)
def test_whatever_fails_and_hangs_the_bytes_are_those_of_one_machine(
    fates: list[tuple[tuple[float, Trouble | None], int]], seed: int, combine: Combine
) -> None:
    """One honest server holds everything; any number of others hold something and do as they like."""

    async def test() -> None:
        servers = [Server(f"p{number}", delay, trouble) for number, ((delay, trouble), _) in enumerate(fates)]
        held = {
            f"p{number}": [expert for expert in range(16) if bits >> expert & 1]
            for number, (_, bits) in enumerate(fates)
        }
        honest = Server("z", delay=0.3)
        swarm = Swarm(*servers, honest)
        for turn in range(3):
            _, stats = await swarm.ask({**held, "z": range(16)}, WireSettings(combine=combine), seed + turn)
            assert stats.hedges_won <= stats.hedges
        # No expert's rows are split, whoever was asked.
        for server in (*servers, honest):
            for request in server.asked:
                for number in set(request.experts.tolist()):
                    rows = request.experts.tolist().count(number)
                    assert rows in {int((make_call(seed=seed + t).ids == number).sum()) for t in range(3)}

    on_a_mock_clock(test)
