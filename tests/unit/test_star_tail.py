"""Eight servers 10 to 100 ms away and a replica of each: whom the star waits for, and how long.

On a mock clock, with every random number drawn from a seed: a minute of a swarm in a second, always the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import trio

from routing.dispatch.call import WireSettings
from routing.dispatch.plan import assign
from routing.dispatch.star import Star
from routing.estimates import HEDGE_BURST, HEDGE_SHARE, Estimates
from routing.table import CallShape, HolderTable
from routing.weighing import Weighing
from routing.wire.experts import ExpertsAnswer, ExpertsRequest
from routing.wire.holdings import Holdings, Slice
from tests.star_servers import LAYER, MODEL_ID, N_EXPERTS, Server, make_call, on_a_mock_clock

SLICES = 8
RTTS = np.linspace(0.010, 0.100, SLICES).tolist()
JITTER, LOSS = 0.005, 0.001
PACKETS, WIDE_PACKETS = 2, 14  # of request and answer: of a narrow model, and of one 2048 wide
LATE, LATE_SHARE = 0.5, 0.05
WARM_UP, CALLS = 60, 500


@dataclass
class FarServer(Server):
    """A server over a jittery line that loses a packet now and then, and may be late with some answers."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    late_share: float = 0.0
    packets: int = PACKETS
    lates: int = 0

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        self.asked.append(request)
        self.delay = self.rtt + float(self.rng.uniform(-JITTER, JITTER))
        if self.rng.random() < self.packets * LOSS:
            self.delay += 1.5 * self.rtt + 0.025  # what QUIC takes to find out and send it again
        if self.rng.random() < self.late_share:
            self.delay += LATE
            self.lates += 1
        await trio.sleep(self.delay)
        y = np.zeros((request.experts.size, request.n_out), np.float32)
        return ExpertsAnswer(
            request.call_id,
            request.layer,
            request.call_index,
            y,
            request.codec_back,
            request.combine,
            1000,
            0,
        )


@dataclass
class Seen:
    """Of the calls that count: seconds, expected of the slowest chosen, and what the swarm was asked."""

    took: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    requests: int = 0
    hedges: int = 0
    hedges_won: int = 0
    lates: int = 0
    doubted: int = 0
    marked: int = 0

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.took, share))


class FarSwarm:
    """Every slice at two servers, `offset` apart in the list of distances."""

    def __init__(
        self, offset: int, late: str = "", *, hedging: bool = True, seed: int = 1, packets: int = PACKETS
    ) -> None:
        self.servers: dict[str, FarServer] = {}
        self.estimates = Estimates()
        if not hedging:
            self.estimates.hedges.spend = lambda count, *, urgent=False: False  # type: ignore[method-assign]
        self.table = HolderTable(MODEL_ID.hex(), {(LAYER, 0): CallShape(N_EXPERTS, N_EXPERTS)})
        share = N_EXPERTS // SLICES
        for number in range(SLICES):
            for name, rtt in ((f"p{number}", RTTS[number]), (f"q{number}", RTTS[(number + offset) % SLICES])):
                rng = np.random.default_rng([seed, number, ord(name[0])])
                self.servers[name] = FarServer(
                    name, rtt=rtt, rng=rng, late_share=LATE_SHARE if name == late else 0.0, packets=packets
                )
                run = (number * share, number * share + share - 1)
                held = Slice("experts", MODEL_ID.hex(), "test", experts=[(LAYER, LAYER, [run])])
                self.table.connected(name, Holdings([1], "", [held], ["f32"], ["rows"], 16))
        self.star = Star(self.servers.get, None, self.estimates)
        self.weighing = Weighing(self.table, self.estimates, self.servers.get)

    def share(self, name: str) -> float:
        """Of what a server and its replica were asked, how much that server was."""
        asked = {each: len(self.servers[each + name[1:]].asked) for each in "pq"}
        return asked[name[0]] / sum(asked.values())

    def run(self, calls: int = CALLS, *, warm_up: int = WARM_UP) -> Seen:
        """So many calls one after the other, after some that do not count."""
        seen = Seen()

        async def test() -> None:
            for number in range(warm_up + calls):
                if number == warm_up:
                    before = sum(len(server.asked) for server in self.servers.values())
                    lates = sum(server.lates for server in self.servers.values())
                call = make_call(1, 8, seed=number)
                now = trio.current_time()
                self.weighing.look(now)
                holders = self.table.holders(LAYER, 0)
                _, stats = await self.star.dispatch(call, holders, WireSettings())
                if number >= warm_up:
                    chosen = [peer for peer, _ in assign(sorted(set(call.ids[0].tolist())), holders)]
                    seen.expected.append(max(self.servers[peer].rtt for peer in chosen))
                    seen.took.append(trio.current_time() - now)
                    seen.hedges += stats.hedges
                    seen.hedges_won += stats.hedges_won
                    seen.marked += len(stats.late)
                    seen.doubted += len(holders.reserve)
            seen.requests = sum(len(server.asked) for server in self.servers.values()) - before
            seen.lates = sum(server.lates for server in self.servers.values()) - lates

        on_a_mock_clock(test)
        return seen


def test_a_calm_swarm_is_as_quick_as_the_slowest_that_must_be_asked_and_hedges_next_to_nothing() -> None:
    for offset in (1, 4):
        swarm = FarSwarm(offset)
        seen = swarm.run()
        assert np.median(np.array(seen.took) / seen.expected) <= 1.1
        # Of each slice the nearer server is asked, unless the other one was quicker a moment ago.
        nearest = max(min(RTTS[n], RTTS[(n + offset) % SLICES]) for n in range(SLICES))
        assert seen.quantile(0.5) <= 1.15 * nearest
        # All that is late here are lost packets, 1 answer in 500.
        assert seen.hedges <= 0.01 * seen.requests
        assert seen.doubted <= 0.03 * 2 * SLICES * len(seen.took)


@pytest.mark.parametrize(("offset", "late"), [(0, "p3"), (1, "p0"), (1, "p4")])
def test_one_server_with_a_late_answer_in_twenty(offset: int, late: str) -> None:
    """Must hold 5: the 99th percentile is at most twice the median, for at most a twentieth more requests."""
    seen = FarSwarm(offset, late).run()
    assert seen.quantile(0.99) <= 2 * seen.quantile(0.5)
    assert seen.hedges <= 0.02 * seen.requests  # the issue asks for 0.05


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize(("offset", "late"), [(0, "p7"), (1, "p6")])
def test_no_hedge_is_in_time_for_the_farthest_so_its_replica_is_asked(
    offset: int, late: str, seed: int
) -> None:
    """Both 100 ms away, or 87 and the replica 100: a hedge is through after more than twice the median."""
    swarm = FarSwarm(offset, late, seed=seed)
    seen = swarm.run()
    assert seen.quantile(0.99) <= 2 * seen.quantile(0.5)
    assert seen.hedges <= 0.01 * seen.requests
    assert seen.quantile(0.5) <= 1.15 * max(min(RTTS[n], RTTS[(n + offset) % SLICES]) for n in range(SLICES))
    assert np.median(np.array(seen.took) / seen.expected) <= 1.1
    assert swarm.share(late) <= 0.35  # some of it before it was known


@pytest.mark.slow
def test_no_server_is_passed_over_for_what_the_network_loses_everywhere() -> None:
    """One packet in a thousand, 14 a call: of a server's answers 1.4 % are late, and nobody is to blame."""
    shares = []
    for seed in range(6):
        swarm = FarSwarm(1, seed=seed, packets=WIDE_PACKETS)
        seen = swarm.run(400)
        shares += [swarm.share(f"p{number}") for number in range(SLICES - 1)]
        assert seen.hedges <= 0.025 * seen.requests
        assert seen.quantile(0.5) <= 1.15 * RTTS[-2]
    assert np.mean(shares) >= 0.9
    assert np.mean(np.array(shares) < 0.7) <= 0.1


@pytest.mark.slow
def test_who_is_late_beyond_what_the_network_loses_is_passed_over_all_the_same() -> None:
    shares = []
    for seed in range(4):
        swarm = FarSwarm(1, "p6", seed=seed, packets=WIDE_PACKETS)
        seen = swarm.run(400)
        shares.append(swarm.share("p6"))
        assert seen.hedges <= 0.025 * seen.requests
    assert np.mean(shares) <= 0.5


@pytest.mark.slow
def test_who_is_not_late_any_more_is_asked_again() -> None:
    swarm = FarSwarm(1, "p6")
    swarm.run()
    p6 = swarm.servers["p6"]
    p6.late_share = 0.0
    swarm.run(1500, warm_up=0)  # some two minutes and a half
    before = len(p6.asked)
    swarm.run(100, warm_up=0)
    assert len(p6.asked) - before >= 50


def test_late_answers_are_what_is_hedged_and_hardly_any_is_waited_for() -> None:
    usual, seen = FarSwarm(1).run(), FarSwarm(1, "p0").run()
    assert seen.lates >= 4
    waited_for = sum(took > LATE for took in seen.took)
    assert waited_for <= 0.1 * seen.lates
    assert seen.hedges_won >= 0.9 * seen.lates
    assert seen.hedges - usual.hedges <= 2 * seen.lates


def test_without_hedges_and_estimates_each_late_answer_is_waited_for() -> None:
    """What the tests above would see if nothing were done."""
    swarm = FarSwarm(1, "p4", hedging=False)
    swarm.weighing.look(0.0)
    swarm.weighing.look = lambda now: None  # type: ignore[method-assign]
    seen = swarm.run()
    assert seen.lates >= 12 and sum(took > LATE for took in seen.took) == seen.lates
    assert seen.quantile(0.99) > 5 * seen.quantile(0.5)


def test_a_swarm_that_becomes_slower_as_a_whole_is_learnt_and_not_asked_twice() -> None:
    swarm = FarSwarm(1)
    swarm.run(calls=50)
    for server in swarm.servers.values():
        server.rtt += 0.080
    during = swarm.run(calls=60, warm_up=0)
    after = swarm.run(calls=300, warm_up=0)
    assert during.hedges <= HEDGE_BURST + HEDGE_SHARE * during.requests
    assert after.hedges <= 0.01 * after.requests
    assert np.median(np.array(after.took) / after.expected) <= 1.1


def test_the_replica_of_a_server_that_is_often_late_is_preferred_if_it_is_as_near() -> None:
    swarm = FarSwarm(0, "p3")
    swarm.run()
    assert swarm.share("p3") <= 0.35
