"""Further calls of a layer (grovemoe's chunk experts) are paid for like others, to whoever answers them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from market.books import Books
from market.credit_line import Terms
from market.ledger import LedgerState
from market.quotes import OwnQuotes
from market.receipt import CREDIT, Kind
from node.app.serving import ServingPart
from node.config.meaning import parse_config
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.market.base_prices import base_prices
from node.market.further import Further, shares
from node.market.part import MarketPart
from node.market.priced import PricedCalls
from node.market.quotes_port import OwnPrices
from node.serve.server import ExpertServer
from node.swarm.place import Place
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.wire.advert import Advert
from routing.wire.codecs import Codec
from routing.wire.experts import Combine, ExpertsRequest, RefusalCode, Refused
from tests.adverts import advert
from tests.model_parts import ModelParts, rows
from tests.served import address_of, cells_of, connected, run, serving

SETTINGS = BackboneSettings(threads=1, context=256, deadline=20.0)
TOKENS = 12


@pytest.fixture
def grove(parts: Callable[..., ModelParts]) -> ModelParts:
    return parts("grovemoe")


class Shop:
    """A server of all cells that keeps books."""

    def __init__(self, grove: ModelParts, server: ExpertServer, endpoint: Endpoint, credit: int) -> None:
        self.server, self.endpoint = server, endpoint
        self.peer_id = endpoint.identity.peer_id
        prices = OwnPrices()
        prices.quotes = OwnQuotes()
        cells = {
            layer: (np.arange(8), base + np.arange(8)) for layer, base in base_prices(grove.manifest).items()
        }
        prices.quotes.issue(grove.stored.model_id, cells, time.time(), 4_000)
        self.advert = advert(self.peer_id, quotes=prices.quotes.current)
        self.books = Books(endpoint.identity, Terms(credit, credit), prices, LedgerState())
        self.calls = PricedCalls(self.books.payee, prices, time.time)
        self.calls.further = Further(lambda model_id: server.cells.manifest(model_id))
        server.accounts = self.calls

    def unsigned_of(self, payer: Identity) -> int:
        return self.books.account(payer.peer_id).unsigned


@asynccontextmanager
async def shop(grove: ModelParts, credit: int = 10**6 * CREDIT) -> AsyncIterator[Shop]:
    cells = cells_of(grove, [])
    held = {(call.layer, call.group): grove.held[call.layer, call.group] for call in grove.manifest.calls}
    cells.add(grove.stored.model_id, grove.manifest, held)
    async with serving(grove, cells) as (server, endpoint):
        yield Shop(grove, server, endpoint, credit)


@pytest.fixture
def payer(tmp_path: Path) -> Iterator[tuple[MarketPart, Identity]]:
    config = parse_config('[market]\nmode = "fixed"\naudit = 0.0\n', tmp_path / "panal.toml", tmp_path)
    identity = Identity.generate()
    with MarketPart.opened(config, identity) as part:
        yield part, identity


@asynccontextmanager
async def asking(
    grove: ModelParts, payer: tuple[MarketPart, Identity], shops: list[Shop]
) -> AsyncIterator[LiveBackbone]:
    part, identity = payer
    adverts = {str(each.peer_id): each.advert for each in shops}

    def told(peer_id: str) -> Advert | None:
        return adverts.get(peer_id)

    part._quoted._advert = told
    place = Place.among([address_of(each.endpoint) for each in shops], identity=identity)
    async with live_backbone(grove.library, grove.stored, place=place, settings=SETTINGS) as live:
        live.port.estimates.hedges._left = -1e9  # an answer that comes second is computed and not paid for
        await live.covered()
        async with part.attached(live):
            yield live


def due(part: MarketPart, shop: Shop) -> int:
    return part.books.account(shop.peer_id).issuing(True, Kind.WORK).due_credits


def test_payer_and_payee_count_alike_also_where_another_answers_the_further_call(
    grove: ModelParts, payer: tuple[MarketPart, Identity]
) -> None:
    async def test() -> None:
        part, identity = payer
        async with AsyncExitStack() as stack:
            shops = [await stack.enter_async_context(shop(grove)) for _ in range(2)]
            live = await stack.enter_async_context(asking(grove, payer, shops))
            tokens = grove.tokens(TOKENS)
            with grove.plain() as plain:
                expected = plain.run(rows(tokens)).tobytes()
            answered: dict[tuple[int, int], str] = {}
            turned_away: list[str] = []
            for each in shops:

                def refusal(
                    peer_id: str,
                    request: ExpertsRequest,
                    each: Shop = each,
                    before: Callable[[str, ExpertsRequest], str] = each.calls.refusal,
                ) -> str:
                    """Once, whoever has answered a layer's first call does not answer its further one."""
                    is_further = answered.get((request.layer, request.call_index - 1)) == each.peer_id
                    if is_further and not turned_away:
                        turned_away.append(each.peer_id)
                        return "not now"
                    return before(peer_id, request)

                def served(
                    peer_id: str,
                    request: ExpertsRequest,
                    each: Shop = each,
                    before: Callable[[str, ExpertsRequest], None] = each.calls.served,
                ) -> None:
                    answered[request.layer, request.call_index] = each.peer_id
                    before(peer_id, request)

                each.calls.refusal = refusal  # type: ignore[method-assign]
                each.calls.served = served  # type: ignore[method-assign]
            found = await live.in_thread(live.backbone.run, rows(tokens))
            assert found.tobytes() == expected
            assert turned_away, "the call went elsewhere"
            assert any(answered[layer, 1] != answered[layer, 0] for layer, index in answered if index)
            owed = [(due(part, each), each.unsigned_of(identity)) for each in shops]
            assert all(one == other for one, other in owed) and sum(one for one, _ in owed) > 0

    run(test, seconds=60)


def test_a_model_with_further_calls_costs_what_its_pairs_weigh(
    grove: ModelParts, payer: tuple[MarketPart, Identity]
) -> None:
    async def test() -> None:
        part, identity = payer
        async with shop(grove) as one, asking(grove, payer, [one]) as live:
            asked: list[ExpertsRequest] = []
            before = one.calls.served

            def served(peer_id: str, request: ExpertsRequest) -> None:
                asked.append(request)
                before(peer_id, request)

            one.calls.served = served  # type: ignore[method-assign]
            await live.in_thread(live.backbone.run, rows(grove.tokens(TOKENS)))
            bases, share = base_prices(grove.manifest), shares(grove.manifest)
            expected = [
                sum(bases[each.layer] + int(expert) for expert in each.experts)
                for each in asked
                if each.call_index == 0
            ]
            further = [each for each in asked if each.call_index]
            assert len(further) == len(expected) > 0
            for each in further:
                mine = share[each.layer, each.call_index]
                group = mine.n_cells // mine.n_experts
                price = sum(bases[each.layer] + group * int(expert) for expert in each.experts)
                expected.append(price * mine.weight // mine.of)
                assert 0 < expected[-1] < price
            assert one.unsigned_of(identity) == due(part, one) == sum(expected)
            assert part.spending.purse.today(time.time()) in (0, sum(expected))
            demand = dict(one.books.payee._uncovered.take(identity.peer_id, 1, 1))
            assert sum(int(pairs.sum()) for pairs in demand.values()) == sum(
                each.pairs for each in asked if each.call_index == 0
            ), "demand is of cells, once"

    run(test, seconds=60)


def test_a_node_knows_what_further_calls_of_its_models_cost(
    grove: ModelParts, payer: tuple[MarketPart, Identity]
) -> None:
    async def test() -> None:
        part, _ = payer
        asked = alone(grove)
        assert part.accounts.further is not None and part.accounts.further.share(asked) is None
        async with shop(grove) as one:
            part._serving = ServingPart(part._config)
            assert part.accounts.further.share(asked) is None
            part._serving.server = one.server
            known = part.accounts.further.share(asked)
            assert known == shares(grove.manifest)[asked.layer, asked.call_index]
            assert part.accounts.further.share(replace(asked, layer=99)) is None

    run(test, seconds=60)


def alone(grove: ModelParts, n: int = 4) -> ExpertsRequest:
    """A further call that follows no first one: so many rows, each to two experts."""
    call = next(call for call in grove.manifest.calls if call.index)
    return ExpertsRequest(
        bytes.fromhex(grove.stored.model_id), call.layer, call.index, 1,
        np.ones((n, call.n_in), np.float32), np.full(n, 2, np.uint16),
        np.tile(np.array([0, 1], np.uint16), n), np.ones(2 * n, np.float32), call.n_out,
        Codec.F32, Codec.F32, Combine.ROWS, 20_000,
    )  # fmt: skip


def test_who_has_no_credit_gets_no_further_calls_either(grove: ModelParts) -> None:
    """Asked for alone, a further call was a seventh of a cell's work for nothing."""

    async def test() -> None:
        asked, n = alone(grove), 4
        async with shop(grove, credit=1) as one, connected(one.endpoint) as connection:
            with pytest.raises(Refused) as caught:
                await QuicExpertPeer(connection).call(asked)
            assert caught.value.refusal.code is RefusalCode.UNPAID
            assert one.server.counts.calls == 0
        async with shop(grove) as one, connected(one.endpoint) as connection:
            for number in range(3):
                await QuicExpertPeer(connection).call(replace(asked, call_id=number))
            (debtor,) = one.books.balances(time.time())
            share = shares(grove.manifest)[asked.layer, asked.call_index]
            base = base_prices(grove.manifest)[asked.layer]
            price = n * (2 * base + share.n_cells // share.n_experts) * share.weight // share.of
            assert debtor.unsigned == 3 * price > 0

    run(test, seconds=60)
