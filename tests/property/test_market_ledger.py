"""Two nodes that compute for each other, over a network that loses, repeats and reorders, with crashes at any
point of a write and hours that pass. Whatever happens: no work is counted twice, no credit appears or is
lost, nobody honest is taken for a double signer, and when the two can talk again both say the same.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from market.receipt import EPOCH_SECONDS, Kind
from market.stream import GRACE
from tests.market_books import folder
from tests.market_crowd import PEERS, Crowd
from tests.market_world import CRASHES, STAGES, World

WAITS = (30, GRACE + 100, EPOCH_SECONDS - 1, EPOCH_SECONDS + GRACE + 1)
"""Seconds: within an epoch, out of its grace, just into the next, over one."""

SIDE = st.sampled_from([0, 1])
PEER = st.integers(0, PEERS - 1)
CRASH = st.sampled_from([*[""] * 9, *CRASHES])


class HonestPair(RuleBasedStateMachine):
    """hypothesis looks for the shortest way to break it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = folder()
        self.world = World(self._folder.__enter__())

    def teardown(self) -> None:
        try:
            self.world.agree()
        finally:
            self.world.close()
            self._folder.__exit__(None, None, None)

    @rule(server=SIDE, pairs=st.integers(1, 2_000))
    def work(self, server: int, pairs: int) -> None:
        self.world.work(server, pairs)

    @rule(server=SIDE, pairs=st.integers(1, 2_000), is_computed=st.booleans())
    def hedge(self, server: int, pairs: int, is_computed: bool) -> None:
        self.world.hedge(server, pairs, is_computed=is_computed)

    @precondition(lambda self: self.world.waits(0) or self.world.waits(1))
    @rule(side=SIDE, crash=CRASH, until=st.sampled_from(STAGES))
    def offer(self, side: int, crash: str, until: str) -> None:
        self.world.offer(side if self.world.waits(side) else 1 - side, crash, until)

    @precondition(lambda self: self.world.wire)
    @rule(data=st.data(), again=st.booleans(), crash=CRASH)
    def deliver(self, data: st.DataObject, again: bool, crash: str) -> None:
        self.world.deliver(-data.draw(st.integers(1, len(self.world.wire))), crash, again=again)

    @precondition(lambda self: self.world.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.world.wire.pop(-data.draw(st.integers(1, len(self.world.wire))))

    @rule(side=SIDE, share=st.floats(0.01, 1), kind=st.sampled_from([Kind.PAID, Kind.FORGIVEN]))
    def sign_off(self, side: int, share: float, kind: Kind) -> None:
        self.world.sign_off(side, share, kind)

    @rule(seconds=st.sampled_from(WAITS))
    def wait(self, seconds: int) -> None:
        self.world.now += seconds

    @rule(side=SIDE, crash=CRASH)
    def hello(self, side: int, crash: str) -> None:
        self.world.hello(side, crash)

    @rule(side=SIDE)
    def crash(self, side: int) -> None:
        self.world.crash(side)

    @invariant()
    def holds(self) -> None:
        self.world.check()


TestHonestPair = HonestPair.TestCase
TestHonestPair.settings = settings(
    max_examples=10, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def wander(world: World, rng: random.Random, steps: int) -> None:
    """The same, by chance alone: long, and busier than a search for the shortest."""
    for _ in range(steps):
        side = rng.randrange(2)
        crash = rng.choice(CRASHES) if rng.random() < 0.05 else ""
        match rng.choices(range(8), (30, 30, 20, 10, 4, 6, 3, 6))[0]:
            case 0:
                world.work(side, rng.randrange(1, 2_000))
            case 1:
                if world.waits(side):
                    world.offer(side, crash, rng.choice((*STAGES, STAGES[-1])))
            case 2:
                if world.wire:
                    world.deliver(rng.randrange(len(world.wire)), crash, again=rng.random() < 0.3)
            case 3:
                if world.wire:
                    world.wire.pop(rng.randrange(len(world.wire)))
            case 4:
                world.sign_off(side, rng.random(), rng.choice((Kind.PAID, Kind.FORGIVEN)))
            case 5:
                world.now += rng.choice(WAITS)
            case 6:
                world.hello(side, crash)
            case 7:
                world.hedge(side, rng.randrange(1, 2_000), is_computed=rng.random() < 0.7)
        world.check()


def test_two_nodes_that_wander_for_days_still_agree() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        with folder() as path:
            world = World(path)
            try:
                wander(world, random.Random(seed), 300)
                world.agree()
            finally:
                world.close()
            seen += world.seen
    # It has tested what it says: receipts that count, were behind, came too late; processes that died.
    assert seen["Countersigned"] > 400 and seen["BEHIND"] > 10 and seen["CLOSED"] > 3 and seen["crash"] > 50
    assert seen["claimed"] > 50


class FullBooks(RuleBasedStateMachine):
    """Peers come and go where there is room for few of them."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = folder()
        self.crowd = Crowd(self._folder.__enter__())

    def teardown(self) -> None:
        try:
            while self.crowd.under_way:
                self.crowd.write()
            self.crowd.check()
            self.crowd.crash()
            self.crowd.check()
        finally:
            self.crowd.close()
            self._folder.__exit__(None, None, None)

    @rule(number=PEER, credits=st.integers(1, 10**7), double=st.sampled_from([False] * 5 + [True]))
    def offer(self, number: int, credits: int, double: bool) -> None:
        self.crowd.offer(number, credits, double=double)

    @rule(number=PEER)
    def forgive(self, number: int) -> None:
        self.crowd.forgive(number)

    @rule(number=PEER, pairs=st.integers(1, 100))
    def serve(self, number: int, pairs: int) -> None:
        self.crowd.serve(number, pairs)

    @rule()
    def flush(self) -> None:
        self.crowd.flush()

    @precondition(lambda self: self.crowd.under_way)
    @rule()
    def write(self) -> None:
        self.crowd.write()

    @precondition(lambda self: self.crowd.under_way)
    @rule()
    def fail(self) -> None:
        self.crowd.fail()

    @rule()
    def crash(self) -> None:
        self.crowd.crash()

    @rule(hours=st.integers(1, 3))
    def wait(self, hours: int) -> None:
        self.crowd.wait(hours)

    @invariant()
    def holds(self) -> None:
        self.crowd.check()


TestFullBooks = FullBooks.TestCase
TestFullBooks.settings = TestHonestPair.settings


def test_where_peers_crowd_the_file_says_what_the_memory_does() -> None:
    """An account that makes room must not begin a step before that is written: the file would then know of
    its past only what came after."""
    seen: Counter[str] = Counter()
    for seed in range(12):
        rng = random.Random(seed)
        with folder() as path:
            crowd = Crowd(path)
            for _ in range(300):
                number = rng.randrange(PEERS)
                match rng.choices(range(8), (40, 30, 8, 6, 4, 4, 1, 2))[0]:
                    case 0:
                        crowd.offer(number, rng.randrange(1, 10**7), double=rng.random() < 0.15)
                    case 1:
                        crowd.write()
                    case 2:
                        crowd.serve(number, rng.randrange(1, 100))
                    case 3:
                        crowd.forgive(number)
                    case 4:
                        crowd.fail()
                    case 5:
                        crowd.flush()
                    case 6:
                        crowd.crash()
                    case 7:
                        crowd.wait(1)
                crowd.check()
            while crowd.under_way:
                crowd.write()
            crowd.check()
            crowd.close()
            seen += crowd.seen
    assert seen["written"] > 500 and seen["forgotten"] > 100 and seen["failed"] > 50 and seen["FULL"] > 50
