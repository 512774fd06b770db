"""Quotes from a pricing node to the tables of others, over real sockets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import trio

from market.answering import Answers
from market.price_book import PriceBook
from node.config.settings import MarketConfig
from node.market.pricing import Pricing
from node.market.quote_memory import QuoteMemory
from node.swarm.announcing import Offered
from node.swarm.node import Role, SwarmNode
from tests.integration.test_swarm_node import HELD, MODEL, address, node, place, serving
from tests.served import run

BASE = 1_000
PATIENCE = 60.0
"""Seconds for what takes one: machines that run tests are busy."""


class Seller:
    """A node that asks what its demand says, looking five times a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs = np.zeros(4, np.int64)
        self.pricing: Pricing | None = None
        self.role = Role(serves=True, offered=self._offered)

    def demand(self) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
        return {(MODEL, 0): self.pairs}

    def open(self, made: SwarmNode) -> Pricing:
        self.pricing = Pricing(
            MarketConfig(mode="scarcity"),
            made.table,
            lambda: [HELD],
            lambda model_id: {0: BASE},
            self,
            lambda: 1_000.0,
            lambda: Answers.of(dict.fromkeys(made.links.serving, "")),
            made.offer_changed,
            memory=QuoteMemory(self.folder / "quotes"),
            lifetime=made.place.swarm.advert_seconds,
            period=0.2,
        )
        made.offer_changed()
        return self.pricing

    def _offered(self) -> Offered:
        quotes = [] if self.pricing is None else self.pricing.offered()
        return Offered(slices=[HELD], versions=[1], quotes=quotes)


def asked(at: SwarmNode, of: SwarmNode, expert: int) -> int:
    """What the advert of one node, as another has it, asks for a pair; 0 if nothing."""
    row = at.table.get(of.identity.peer_id)
    quote = None if row is None else row.advert.quote(MODEL)
    return 0 if quote is None else PriceBook.of(quote).total(0, np.array([expert], np.uint16))


@pytest.mark.slow
def test_what_a_server_asks_follows_its_work_in_the_tables_of_others(tmp_path: Path) -> None:
    async def test() -> None:
        seller = Seller(tmp_path)
        async with (
            node(place(), serving("other")) as other,
            node(place(address(other)), seller.role) as sells,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(seller.open(sells).run)
            with trio.fail_after(PATIENCE):
                while not asked(other, sells, 0):
                    await trio.sleep(0.02)
                while asked(other, sells, 0) < 2 * BASE or asked(other, sells, 1) * 2 > asked(
                    other, sells, 0
                ):
                    seller.pairs = seller.pairs + np.array([200, 0, 0, 0])
                    await trio.sleep(0.05)
            row = other.table.get(sells.identity.peer_id)
            assert row is not None
            (quote,) = row.advert.quotes
            assert quote.until >= row.advert.issued_at + row.advert.lifetime
            assert seller.pricing is not None
            assert seller.pricing.quotes.valid(quote.number, row.advert.issued_at)
            own = other.table.get(other.identity.peer_id)
            assert own is not None and own.advert.quotes == []
            nursery.cancel_scope.cancel()

    run(test)
