"""What a large swarm asks is told without keeping callers waiting."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from node.config.meaning import parse_config
from node.market.part import MarketPart
from node.market.told import QUOTES_AT_ONCE
from node.swarm.node import Role, SwarmNode
from routing.identity import Identity
from routing.wire.holdings import Slice
from routing.wire.quote import Quote
from tests.adverts import MODEL, identity
from tests.integration.test_status_peers import hear
from tests.integration.test_swarm_node import place

PEERS = 40


def test_others_run_while_all_quotes_are_told(tmp_path: Path) -> None:
    config = parse_config('[market]\nmode = "fixed"\n', tmp_path / "panal.toml", tmp_path / "store")
    (tmp_path / "store").mkdir()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        with MarketPart.opened(config, Identity.generate()) as part:
            node = SwarmNode(place(control=False), Role(serves=True))
            try:
                slices = [Slice("experts", MODEL, "qwen3moe", experts=[(0, 3, [(0, 7)])])]
                for number in range(PEERS):
                    quote = Quote(MODEL, 1, int(time.time()) + 1_320, [400], [(0, 3, [7 * 2 + 1])])
                    hear(node, identity(number), number, slices=slices, quotes=[quote])
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(turn)
                    await trio.lowlevel.checkpoint()
                    before, told = turns, await part.told(node).quotes()
                    nursery.cancel_scope.cancel()
                assert {each.peer for each in told} == {identity(number).peer_id for number in range(PEERS)}
                assert turns - before >= PEERS // QUOTES_AT_ONCE - 1
            finally:
                node.close()

    trio.run(main)
