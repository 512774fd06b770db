"""Whose answers were false is no replica for the node that found it out, however well it answers."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from market.evidence_sqlite import AuditBook
from market.quarantine import Strikes
from node.app.serving import ServingPart
from node.config.meaning import parse_config
from node.device.folder import NodeFolder
from node.market.part import MarketPart
from node.swarm.node import Role, SwarmNode
from routing.identity import Identity
from routing.wire.holdings import Slice
from tests.adverts import MODEL, identity
from tests.integration.test_status_peers import hear
from tests.integration.test_swarm_node import place
from tests.unit.test_quarantine import EVIDENCE

LIAR, HONEST = identity("liar").peer_id, identity("honest").peer_id


@pytest.mark.parametrize("audit", [0.05, 0.0])
def test_a_convicted_peer_counts_for_nothing_until_it_is_pardoned(tmp_path: Path, audit: float) -> None:
    config = parse_config(
        f'[[serve]]\nmodel = "model.gguf"\n[market]\nmode = "scarcity"\naudit = {audit}\n',
        tmp_path / "panal.toml",
        tmp_path / "store",
    )
    now = time.time()
    (tmp_path / "store").mkdir()

    async def main() -> None:
        with MarketPart.opened(config, Identity.generate()) as part:
            node = SwarmNode(place(control=False), Role(serves=True))
            try:
                part.sell(node, ServingPart(config, part))
                sales = part.sales
                assert sales is not None
                for name in ("liar", "honest"):
                    slices = [Slice("experts", MODEL, "qwen3moe", experts=[(0, 3, [(0, 7)])])]
                    hear(node, identity(name), slices=slices)
                    sales._probing._known.answered(identity(name).peer_id, "", trio.current_time())
                answers = sales.answers()
                assert (answers.weight(LIAR), answers.weight(HONEST)) == (0.0, 1.0)
                assert set(answers.answered) == {HONEST} and answers.silent == {LIAR}
                await part.pardon(LIAR)
                assert sales.answers().weight(LIAR) == 1.0
            finally:
                node.close()

    with closing(AuditBook(NodeFolder.of(config).audit)) as book:
        book.strike(LIAR, Strikes(1, now + 500, now), replace(EVIDENCE, peer_id=LIAR))
    trio.run(main)
