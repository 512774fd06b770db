"""Newcomers of one network share a quarter of the day's credit, whatever is forgotten of them meanwhile."""

from __future__ import annotations

from pathlib import Path

from market.registry import MAX_STRANGERS
from node.app.serving import ServingPart
from node.config.meaning import parse_config
from node.market.part import MarketPart
from node.market.priced import MAX_MET, PricedCalls
from node.swarm.node import Role, SwarmNode
from routing.identity import Identity
from tests.integration.test_swarm_node import place
from tests.market_books import NOW, PRICE, Side, folder
from tests.unit.test_market_bounds import POOL, TERMS, call


def test_a_network_is_remembered_longer_than_its_strangers_account() -> None:
    with folder() as path:
        side = Side("ann", path, TERMS)
        calls = PricedCalls(side.books.payee, side.prices, lambda: NOW, lambda peer: "net")
        for _ in range(3):
            request = call(POOL // PRICE)
            if not calls.refusal("caller", request):
                calls.served("caller", request)
            for number in range(MAX_STRANGERS + 100):  # who says hello and no more
                side.books.account(f"stranger {number}")
        drawn = sum(side.books.payee.pool.drawn().values())
        assert drawn == POOL, "the network's part, once"
        side.ledger.close()


def test_what_is_not_known_of_a_caller_is_asked_again() -> None:
    with folder() as path:
        side, found = Side("ann", path, TERMS), dict[str, str]()
        calls = PricedCalls(side.books.payee, side.prices, lambda: NOW, found.get)
        assert not calls.refusal("caller", call(1)) and side.books.account("caller").subnet == ""
        found["caller"] = "net"
        assert not calls.refusal("caller", call(1)) and side.books.account("caller").subnet == "net"
        for number in range(MAX_MET + 50):
            found[f"other {number}"] = "another net"
            calls.refusal(f"other {number}", call(1))
        assert len(calls._met) == MAX_MET
        side.ledger.close()


def test_callers_networks_are_known_before_the_market_runs(tmp_path: Path) -> None:
    """They come as soon as the node listens; the market's tasks begin when all of it is up."""
    config = parse_config(
        '[[serve]]\nmodel = "model.gguf"\n[market]\nmode = "fixed"\n',
        tmp_path / "panal.toml",
        tmp_path / "store",
    )
    (tmp_path / "store").mkdir()
    with MarketPart.opened(config, Identity.generate()) as part:
        node = SwarmNode(place(control=False), Role(serves=True))
        try:
            assert part._whence("caller") is None
            part.sell(node, ServingPart(config, part))
            assert part._node is node and part._whence("caller") is None, "nobody is connected"
        finally:
            node.close()
