"""What a node asks: from adverts in a real table, signed demand and capacity to the quotes of its own
advert."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from market.answering import Answers
from market.price_book import PriceBook
from node.config.settings import MarketConfig
from node.market.base_prices import base_prices
from node.market.pricing import PERIOD, Pricing
from node.market.quote_memory import QuoteMemory
from node.model import recipe as R
from node.model.gguf.types import TENSOR_TYPES
from node.model.manifest import ExpertCall, ExpertTensor, Manifest
from routing.adverts import AdvertTable
from routing.wire.advert import sign_advert
from routing.wire.holdings import Slice
from routing.wire.quote import Quote
from tests.adverts import MODEL, NOW, SWARM, advert, identity

BASE = 2_500
LAYERS = (0, 1)
OTHERS = ("ana", "ben", "carla")


def held(first: int, last: int, layers: tuple[int, int] = LAYERS) -> Slice:
    return Slice("experts", MODEL, "qwen3moe", experts=[(*layers, [(first, last)])])


class World:
    """A server's surroundings; it holds experts 0 to 7 of two layers unless a test says otherwise."""

    def __init__(self, **market: Any) -> None:
        self.market = MarketConfig(**({"mode": "scarcity"} | market))
        self.table = AdvertTable(SWARM, str(identity("me").peer_id), 9, lambda advert, now: "")
        self.slices: Sequence[Slice] = [held(0, 7)]
        self.served: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
        self.pairs_per_second = 100.0
        self.answered: dict[str, str] = {}  # and the network of each
        self.silent: set[str] = set()
        self.changes = 0
        self.now = NOW

    def demand(self) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
        return self.served

    def _changed(self) -> None:
        self.changes += 1

    def pricing(self, path: Path | None = None) -> Pricing:
        return Pricing(
            self.market,
            self.table,
            lambda: self.slices,
            lambda model_id: dict.fromkeys(range(48), BASE),
            self,
            lambda: self.pairs_per_second,
            lambda: Answers.of(self.answered, self.silent),
            self._changed,
            memory=QuoteMemory(path),
            clock=lambda: self.now,
        )

    def hear(self, *names: str, answered: bool = True, network: str = "", **fields: Any) -> None:
        """Peers that hold the same cells announce themselves."""
        for name in names:
            value = advert(name, **({"slices": [held(0, 7)], "issued_at": int(self.now)} | fields))
            assert self.table.offer(sign_advert(value, identity(name)), self.now, from_peer="").changed
            if answered:
                self.answered[value.peer_id] = network

    def serve(self, expert: int, pairs: int, layer: int = 0) -> None:
        """Receipts cover so many more pairs."""
        counts = self.served.setdefault((MODEL, layer), np.zeros(expert + 1, np.int64))
        self.served[MODEL, layer] = counts = np.pad(counts, (0, max(0, expert + 1 - len(counts))))
        counts[expert] += pairs

    def look(self, pricing: Pricing, times: int = 1, **pairs: int) -> bool:
        """Some periods, with these pairs through experts (`e0=...`) of layer 0 in each."""

        async def main() -> bool:
            return await pricing.look(PERIOD)

        is_news = False
        for _ in range(times):
            self.now += PERIOD
            for name, number in pairs.items():
                self.serve(int(name[1:]), number)
            is_news |= trio.run(main)
        return is_news


def asked(pricing: Pricing, expert: int = 0, layer: int = 0) -> int:
    quotes = pricing.offered()
    assert len(quotes) == 1
    sign_advert(
        advert("me", issued_at=quotes[0].until - 1_320, quotes=quotes), identity("me")
    )  # it can be said
    return PriceBook.of(quotes[0]).total(layer, np.array([expert], np.uint16))


def test_before_anything_is_known_every_cell_is_at_its_base_price() -> None:
    pricing = World().pricing()
    assert [asked(pricing, expert, layer) for expert in (0, 7) for layer in LAYERS] == [BASE] * 4
    assert list(pricing.offered()[0].runs(0)) == [(0, 7, BASE)] and list(pricing.offered()[0].runs(2)) == []


def test_a_fixed_price_follows_nothing() -> None:
    world = World(mode="fixed", price=150)
    pricing = world.pricing()
    number = pricing.offered()[0].number
    assert not world.look(pricing, times=9, e0=10_000)
    assert asked(pricing) == 3_750 and pricing.offered()[0].number == number


def test_who_does_not_know_its_capacity_yet_is_not_dear_for_a_little_work() -> None:
    world = World()
    world.pairs_per_second = 0.0
    world.hear(*OTHERS)
    pricing = world.pricing()
    for _ in range(9):
        world.look(pricing, **{f"e{expert}": 20 for expert in range(8)})
    assert asked(pricing) <= 2 * BASE


def test_an_idle_server_among_enough_others_comes_down_to_the_floor_in_20_periods() -> None:
    world = World()
    world.hear(*OTHERS)
    pricing = world.pricing()
    world.look(pricing, times=20)
    assert BASE // 4 <= asked(pricing) < BASE // 4 * 1.1


def test_the_hot_cell_of_a_busy_server_is_dearer_than_its_others() -> None:
    world = World()
    world.hear(*OTHERS)
    pricing = world.pricing()
    world.look(pricing, times=20, e0=3_000, e1=500, e2=1)
    hot, warm, cold = (asked(pricing, expert) for expert in range(3))
    assert hot > warm > cold and hot > BASE
    assert asked(pricing, 0, 1) == asked(pricing, 1, 1)  # nobody asked for that layer


def test_the_only_holder_asks_more_and_less_again_when_others_answer() -> None:
    world = World()
    pricing = world.pricing()
    world.look(pricing, times=20)
    alone = asked(pricing)
    world.hear(*OTHERS)
    world.look(pricing, times=20)
    assert alone > 3 * asked(pricing)


def test_replicas_of_peers_only_heard_of_count_half_and_claims_move_nothing_more() -> None:
    def price(heard: int, answered: int, silent: int = 0) -> int:
        world = World()
        names = [f"silent {number}" for number in range(silent)]
        world.hear(*names, answered=False)
        world.silent = {identity(name).peer_id for name in names}
        world.hear(*(f"heard {number}" for number in range(heard)), answered=False)
        world.hear(*(f"answered {number}" for number in range(answered)))
        pricing = world.pricing()
        world.look(pricing, times=30)
        return asked(pricing)

    assert price(heard=2, answered=0) == price(heard=0, answered=1) == price(heard=3, answered=0)
    assert price(heard=10, answered=0) == price(heard=10, answered=10) == price(heard=0, answered=2)
    assert price(heard=0, answered=1, silent=10) == price(heard=0, answered=1) > price(heard=2, answered=1)


def test_what_answers_in_one_network_is_one_replica_and_the_rest_hearsay() -> None:
    world = World()
    network = "203.0.113.0/24"
    world.hear("ana", "ben", "carla", network=network, slices=[held(0, 3)])
    world.hear("dora", network=network, slices=[held(2, 5)])
    pricing = world.pricing()
    world.look(pricing, times=30)
    apart = [asked(pricing, cell) for cell in range(8)]
    assert apart[:2] == apart[2:4], "three or four of one network are one, and two or three of hearsay"
    assert apart[0] < apart[4] == apart[5] < apart[6] == apart[7]
    world.hear("emil", slices=[held(0, 7)])
    world.look(pricing, times=30)
    assert asked(pricing, 0) < asked(pricing, 6)


def test_other_cells_of_others_are_no_replicas() -> None:
    world = World()
    pricing = world.pricing()
    world.hear("ana", slices=[held(4, 7), Slice("layers", "00" * 32, "qwen3moe", layers=[(0, 1)])])
    world.hear("ben", slices=[held(0, 300, (1, 40))])
    world.look(pricing, times=30)
    scarce, rare, common = asked(pricing, 0, 0), asked(pricing, 4, 0), asked(pricing, 4, 1)
    assert scarce > rare > common


def test_trifles_are_no_news_and_no_new_quote() -> None:
    world = World()
    world.hear(*OTHERS)
    pricing = world.pricing()
    world.look(pricing, times=30, e0=400)
    number = pricing.offered()[0].number
    while pricing.offered()[0].number == number:  # until it is replaced because of its age
        assert not world.look(pricing, e0=400)
    number = pricing.offered()[0].number
    rng = np.random.default_rng(7)
    for _ in range(9):
        assert not world.look(pricing, e0=int(rng.integers(360, 440)))
    assert pricing.offered()[0].number == number
    world.look(pricing, times=6, e0=6_000)
    assert pricing.offered()[0].number > number


def test_a_quote_is_replaced_before_an_advert_would_outlive_it() -> None:
    world = World(mode="fixed")
    pricing = world.pricing()
    numbers = set()
    for _ in range(60):
        world.look(pricing)
        quote = pricing.offered()[0]
        assert quote.until - world.now >= 600 + 60  # the advert is issued within a period
        numbers.add(quote.number)
    assert 4 <= len(numbers) <= 8


def test_a_cell_just_taken_is_priced_at_once_at_what_peers_that_answer_ask() -> None:
    world = World()
    until = int(NOW) + 1_320
    world.hear("ana", slices=[held(0, 9)], quotes=[Quote(MODEL, 1, until, [4_000], [(0, 1, [19])])])
    world.hear("ben", slices=[held(0, 9)], quotes=[Quote(MODEL, 2, until, [6_000], [(0, 0, [17])])])
    world.hear("eve", answered=False, quotes=[Quote(MODEL, 3, until, [10**9], [(0, 1, [19])])])
    pricing = world.pricing()
    world.slices = [held(0, 7)]
    pricing.offered()
    world.look(pricing, times=25)
    settled = asked(pricing, 0)
    world.slices = [held(0, 9)]
    assert asked(pricing, 0) == settled  # what is held already keeps its price
    assert 4_600 < asked(pricing, 8) < 5_400 and 3_700 < asked(pricing, 9) < 4_300
    world.slices = [held(0, 7), Slice("experts", "00" * 32, "qwen3moe", experts=[(0, 0, [(0, 3)])])]
    assert [quote.model_id for quote in pricing.offered()] == ["00" * 32, MODEL]


def test_a_paused_node_asks_nothing_and_then_what_it_asked_before() -> None:
    world = World()
    world.hear(*OTHERS)
    pricing = world.pricing()
    world.look(pricing, times=12)
    before, number = asked(pricing), pricing.offered()[0].number
    world.slices = []
    assert pricing.offered() == [] and not world.look(pricing)
    assert pricing.quotes.valid(number, world.now)  # answers under way are paid
    world.slices = [held(0, 7)]
    assert asked(pricing) == before != BASE


def test_a_whole_model_with_a_price_for_each_cell_fits_an_advert() -> None:
    """48 x 128 cells, each as popular as chance wants it: the least that runs can shorten."""
    world = World()
    world.slices = [Slice("experts", MODEL, "qwen3moe", experts=[(0, 47, [(0, 127)])])]
    world.hear(*OTHERS, slices=world.slices)
    pricing = world.pricing()
    popular = np.exp(np.random.default_rng(2).normal(5, 1, (48, 128))).astype(np.int64)
    world.pairs_per_second = 2 * int(popular.sum()) / PERIOD
    for period in range(1, 21):
        for layer in range(48):
            world.served[MODEL, layer] = period * popular[layer]
        world.look(pricing)
    quotes = pricing.offered()
    value = advert("me", issued_at=int(world.now), slices=list(world.slices), quotes=quotes)
    assert len(sign_advert(value, identity("me"))) < 6_600
    prices = np.array([PriceBook.of(quotes[0]).prices(layer, 128) for layer in range(48)])
    wanted = BASE * np.sqrt(popular / popular.mean())
    off = np.abs(np.log2(prices / np.clip(wanted, BASE / 4, 16 * BASE)))
    assert np.median(off) < 0.2 and np.mean(off < 0.4) > 0.95  # most of it is play


def test_what_was_asked_may_be_paid_by_after_a_restart(tmp_path: Path, caplog: Any) -> None:
    world, path = World(), tmp_path / "quotes"

    async def main() -> int:
        pricing = world.pricing(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pricing.run)
            number = pricing.offered()[0].number
            with trio.fail_after(30):
                while not path.exists():
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return number

    number = trio.run(main)
    assert path.stat().st_mode & 0o777 == 0o600
    world.now += 60
    later = world.pricing(path)
    assert later.quotes.valid(number, world.now)
    assert later.offered()[0].number > number
    assert not world.pricing(None).quotes.valid(number, world.now)

    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert not world.pricing(path).quotes.valid(number, world.now)
    assert "is open to other users" in caplog.text and "some callers are refused" in caplog.text


def test_prices_go_on_where_an_earlier_process_left_them(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "quotes"
    world.hear(*OTHERS)
    pricing = world.pricing(path)
    world.look(pricing, times=9)
    fallen = asked(pricing)
    assert fallen < BASE / 2
    trio.run(QuoteMemory(path).save, pricing.quotes.encoded())
    world.now += 60
    assert asked(world.pricing(path)) == fallen
    world.now += 86_400
    assert asked(world.pricing(path)) == BASE, "what was asked a day ago is no guide"


def test_it_looks_each_period_and_says_so_when_prices_have_changed() -> None:
    world = World()
    world.hear(*OTHERS)
    pricing = world.pricing()

    async def main() -> list[int]:
        seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pricing.run)
            await trio.sleep(PERIOD - 1)
            seen.append(world.changes)
            world.serve(0, 50_000)
            await trio.sleep(2 * PERIOD)
            seen.append(world.changes)
            nursery.cancel_scope.cancel()
        return seen

    early, later = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert early == 0 and later >= 1
    assert asked(pricing, 0) > asked(pricing, 1)


def _call(
    layer: int, group: str, n_experts: int, shapes: Sequence[tuple[str, int, tuple[int, int]]]
) -> ExpertCall:
    tensors = tuple(ExpertTensor(role, type_id, shape) for role, type_id, shape in shapes)
    recipe = R.Recipe("none", R.Input())  # prices look at tensors only
    return ExpertCall(layer, group, n_experts, n_experts, 256, 256, recipe, tensors, "")


def test_bases_come_from_the_manifest_and_are_of_a_layers_first_call() -> None:
    types = {kind.name: number for number, kind in TENSOR_TYPES.items()}
    q4, q8 = types["Q4_K"], types["Q8_0"]

    def shapes(type_id: int, n_ff: int) -> list[tuple[str, int, tuple[int, int]]]:
        return [("down.weight", type_id, (n_ff, 2048)), ("up.weight", type_id, (2048, n_ff))]

    calls = (
        _call(0, "exps", 128, shapes(q4, 768)),
        _call(1, "exps", 128, shapes(q8, 768)),
        _call(2, "exps", 128, shapes(q4, 768)),
        _call(2, "chexps", 64, shapes(q4, 256)),
    )
    bases = base_prices(Manifest(3, "grovemoe", ("experts",), calls, ()))
    weights = 2 * 768 * 2048
    assert bases[0] == (weights * 9 // 16 + weights // 2) // 2_048
    assert bases[0] < bases[1] < 2 * bases[0]
    assert bases[2] == bases[0]  # what further calls cost: node.market.further


@pytest.mark.parametrize("mode", ["fixed", "scarcity"])
def test_an_advert_without_expert_slices_carries_no_quote(mode: str) -> None:
    world = World(mode=mode)
    world.slices = [Slice("layers", MODEL, "qwen3moe", layers=[(0, 3)])]
    assert world.pricing().offered() == []
