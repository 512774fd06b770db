"""Two real servers that ask for something, a backbone that pays: what answers cost, and where they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from market.budget import DAY_SECONDS, Purse, UsedUp
from market.preference import Prefer, tariff
from node.decode.answer import Answer, answer
from node.decode.batch_answers import answer_all
from node.decode.batch_report import BatchAnswer
from node.decode.continuous.ask import Ask
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.continuous.report import AnswerReport
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.engine.sampler import SamplingSettings
from node.engine.tokenizer import Tokenizer
from node.serve.cells import Cells
from node.swarm.place import Place
from routing.dispatch.call import MoeCall
from routing.dispatch.plan import ServerCall
from routing.identity import Identity
from routing.wire.experts import ExpertsAnswer, ExpertsRequest
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of, run, serving

Parts = Callable[..., ModelParts]

GREEDY = SamplingSettings()
SECOND = 10_000_000
PROMPT = "def read_config(path):\n    with open(path) as file:\n"
WAIT = 120.0


NOON = 20_000.5 * DAY_SECONDS


class LongDay(Purse):
    """A purse for whom midnight never comes."""

    def pay(self, amount: int, now: float) -> None:
        super().pay(amount, NOON)

    def today(self, now: float) -> int:
        return super().today(NOON)

    def check(self, now: float) -> None:
        super().check(NOON)


class Shop:
    """A backbone over two servers, whose answers this source of prices has it pay for.

    Attributes:
        asks: micro-credits a pair, by peer; paid: what was owed to each so far; pairs: they computed.
        n_used: experts of a token in a layer.
    """

    def __init__(self, live: LiveBackbone, peers: Sequence[str], n_layers: int) -> None:
        self.live = live
        self.peers = peers
        self.asks: dict[str, float] = {}
        self.paid: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self.n_used = 0
        self._n_layers = n_layers
        live.port.purse = LongDay()
        live.port.watch_answers(self._pay)

    def price(self, *asks: int, prefer: Prefer = "cheap") -> None:
        """From now on the servers ask this."""
        self.asks = dict(zip(self.peers, map(float, asks), strict=True))
        self.live.port.price_by(tariff(prefer, SECOND, lambda peer_id, layer: self.asks[peer_id]))

    def _pay(
        self, call: MoeCall, part: ServerCall, request: ExpertsRequest, answer: ExpertsAnswer, path: str
    ) -> int:
        cost = int(self.asks[part.peer_id]) * request.experts.size
        self.paid[part.peer_id] += cost
        self.pairs[part.peer_id] += request.experts.size
        self.n_used = call.ids.shape[1]
        return cost

    @property
    def total(self) -> int:
        return sum(self.paid.values())

    def most(self, rows: int) -> int:
        """What a pass of so many rows costs at most."""
        return rows * self.n_used * self._n_layers * int(max(self.asks.values()))


@asynccontextmanager
async def shop(model: ModelParts, cells: Sequence[Cells]) -> AsyncIterator[Shop]:
    async with serving(model, cells[0]) as (_, one), serving(model, cells[1]) as (_, two):
        place = Place.among([address_of(one), address_of(two)], identity=Identity.generate())
        settings = BackboneSettings(threads=1, context=256, deadline=30.0)
        async with live_backbone(model.library, model.stored, place=place, settings=settings) as live:
            await live.covered()
            layers = len({call.layer for call in model.manifest.calls})
            yield Shop(live, [str(one.identity.peer_id), str(two.identity.peer_id)], layers)


@asynccontextmanager
async def decoding(live: LiveBackbone, sessions: int, *, prefix_cache: bool = True) -> AsyncIterator[Decoder]:
    decoder = Decoder(live, DecoderSettings(sessions=sessions, prefix_cache=prefix_cache))
    async with trio.open_nursery() as nursery:
        await nursery.start(decoder.run)
        yield decoder
        nursery.cancel_scope.cancel()


def halves(model: ModelParts) -> list[Cells]:
    count = model.manifest.calls[0].n_experts
    return [cells_of(model, [range(count // 2)]), cells_of(model, [range(count // 2, count)])]


def wholes(model: ModelParts) -> list[Cells]:
    return [cells_of(model, [range(model.manifest.calls[0].n_experts)]) for _ in range(2)]


async def read(decoder: Decoder, ask: Ask) -> tuple[list[int], AnswerReport]:
    async with decoder.ask(ask) as answering:
        tokens = [chosen.token async for chosen in answering]
    return tokens, answering.report


async def read_all(decoder: Decoder, asks: Sequence[Ask]) -> list[tuple[list[int], AnswerReport]]:
    found: dict[int, tuple[list[int], AnswerReport]] = {}

    async def one(number: int, ask: Ask) -> None:
        found[number] = await read(decoder, ask)

    async with trio.open_nursery() as nursery:
        for number, ask in enumerate(asks):
            nursery.start_soon(one, number, ask)
    return [found[number] for number in range(len(asks))]


def by_peer(reports: Sequence[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in reports:
        total.update(each)
    return total


LONGEST = 32
"""Tokens of a prompt here, so of a pass."""


def test_answers_cost_what_was_paid_and_end_at_their_budgets(parts: Parts) -> None:
    """One swarm for all that a decoder pays: exact shares, an answer's budget, the day's."""
    model = parts("demo")
    asks = [Ask(tuple(model.tokens(5 + 9 * n, seed=n)), 6 + n, GREEDY, f"{n % 2}") for n in range(4)]
    alike = [Ask(tuple(model.tokens(20, seed=9)), 4, SamplingSettings(0.8, seed=n)) for n in range(3)]

    async def main() -> None:
        async with shop(model, halves(model)) as bought:
            purse = bought.live.port.purse
            bought.price(7, 11)
            # Of passes that many were in, of one prompt that is read once for three: exact shares.
            async with decoding(bought.live, sessions=4) as decoder:
                answers = await read_all(decoder, [*asks, *alike])
                reports = [report.trips for _, report in answers]
                assert bought.total > 0 and set(bought.paid) == set(bought.peers)
                assert by_peer([each.cost_by_peer for each in reports]) == bought.paid
                assert all(each.cost == sum(each.cost_by_peer.values()) for each in reports)
                assert decoder.stats().trips.cost == bought.total == purse.today(NOON)
            free = [tokens for tokens, _ in answers]

            # What was read before costs nothing again: not here, so that costs can be told in advance.
            async with decoding(bought.live, sessions=4, prefix_cache=False) as decoder:
                # An answer's budget: the same text, cut short by the pass that reaches it.
                _, report = await read(decoder, asks[3])
                purse.answer = report.trips.cost - bought.most(3)
                before = Counter(bought.paid)
                tokens, report = await read(decoder, asks[3])
                assert report.stopped == "budget" and 0 < len(tokens) < len(free[3])
                assert tokens == free[3][: len(tokens)]
                assert by_peer([report.trips.cost_by_peer]) == bought.paid - before
                assert purse.answer <= report.trips.cost < purse.answer + bought.most(1)

                # The day's: all end, together beyond it by no more than a pass, and none begins.
                purse.answer, spent = None, bought.total
                purse.day = spent + sum(report.trips.cost for _, report in answers[:4]) // 2
                cut = await read_all(decoder, asks)
                assert "budget" in {report.stopped for _, report in cut}
                assert all(tokens == free[n][: len(tokens)] for n, (tokens, _) in enumerate(cut))
                assert sum(report.trips.cost for _, report in cut) == bought.total - spent
                assert purse.day <= bought.total < purse.day + bought.most(LONGEST)
                refused = decoder.stats().refused
                with pytest.raises(UsedUp, match=r"market\.budget_day"):
                    await read(decoder, asks[0])
                assert decoder.stats().refused == refused + 1
                purse.day = None
                tokens, report = await read(decoder, asks[0])
                assert tokens == free[0] and report.stopped == "length"

    run(main, seconds=WAIT)


def test_text_and_prompts_of_a_command_count_too(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with shop(model, halves(model)) as bought:
            live, purse = bought.live, bought.live.port.purse
            bought.price(7, 11)

            def generate() -> Answer:
                live.backbone.context.clear()
                return answer(live, PROMPT, 12, GREEDY, lambda text: None)

            whole = await live.in_thread(generate)
            assert whole.trips.cost == bought.total == purse.today(NOON) > 0
            assert whole.stopped == "length" and not whole.budget

            # A port's ledger goes on from answer to answer; an answer's budget begins anew.
            purse.answer = whole.trips.cost // 2
            cut = await live.in_thread(generate)
            assert cut.stopped == "budget" and 0 < len(cut.tokens) < 12
            assert cut.tokens == whole.tokens[: len(cut.tokens)] and "market.budget_answer" in cut.budget
            assert bought.total == cut.trips.cost < 2 * whole.trips.cost

            purse.answer, purse.day = None, bought.total
            with pytest.raises(UsedUp):
                await live.in_thread(generate)
            purse.day = None

            prompts = [
                Tokenizer(live.backbone.model).encode(text) for text in (PROMPT, "import os\n", "x = [")
            ]
            told: list[BatchAnswer] = []

            def batch(lanes: int, times: int = 1) -> list[BatchAnswer]:
                told.clear()
                before = bought.total
                report = answer_all(live, prompts * times, 128, lanes, 6, GREEDY, told.append)
                assert report.trips.cost == bought.total - before == sum(each.cost for each in told)
                return list(told)

            full = await live.in_thread(batch, 2)
            assert [each.stopped for each in full] == ["length"] * 3 and all(each.cost for each in full)
            purse.answer = min(each.cost for each in full) // 2
            short = await live.in_thread(batch, 2)
            assert [each.stopped for each in short] == ["budget"] * 3
            assert all(a.tokens == b.tokens[: len(a.tokens)] for a, b in zip(short, full, strict=True))
            purse.answer, purse.day = None, bought.total + full[0].cost // 2
            some = await live.in_thread(batch, 1, 6)
            assert [each.prompt for each in some] == list(range(1, 19))
            assert {each.stopped for each in some} == {"budget"}
            assert [each.prompt for each in some if not each.budget] == [17, 18]  # not begun
            with pytest.raises(UsedUp):
                await live.in_thread(batch, 1)

    run(main, seconds=WAIT)


def test_the_cheap_one_gets_the_work_and_prices_may_change(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with shop(model, wholes(model)) as bought:
            live = bought.live

            async def until_all_goes_to(cheap: int) -> None:
                """Until a whole answer's work went there: a busy machine may make a server late for once."""
                while True:
                    bought.pairs.clear()
                    live.backbone.context.clear()
                    await live.in_thread(answer, live, PROMPT, 8, GREEDY, lambda text: None)
                    assert bought.pairs.total() > 0
                    if set(bought.pairs) == {bought.peers[cheap]}:
                        return

            bought.price(300, 100)
            await until_all_goes_to(1)
            bought.price(100, 300)
            await until_all_goes_to(0)

    run(main, seconds=WAIT)
