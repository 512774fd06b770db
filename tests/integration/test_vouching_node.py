"""Vouching in a whole node: who asks, and whether it tells."""

from __future__ import annotations

import functools
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from market.price_book import PriceBook
from market.receipt import CREDIT
from market.reputation import HEARSAY, standing
from market.vouch_wire import PROTOCOL_ID
from node.app.running import Running, run_node
from node.config import load_config
from node.config.meaning import parse_config
from node.market import settling, vouching
from node.market.part import MarketPart
from routing.identity import Identity
from tests.integration.test_settling import EXPERTS, MODEL, settled, side, work
from tests.integration.test_vouching import OWN, until
from tests.served import address_of
from tests.swarm_process import Home


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are asked at once, and receipts signed."""
    monkeypatch.setattr(vouching, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(settling, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(settling, "QUIET_SECONDS", 0.02)


def test_telling_can_be_switched_off(tmp_path: Path) -> None:
    for text, tells in (("", True), ("vouch = true\n", True), ("vouch = false\n", False)):
        config = parse_config(
            f'[market]\nmode = "fixed"\n{text}', tmp_path / "panal.toml", tmp_path / f"store {text.strip()}"
        )
        with MarketPart.opened(config, Identity.generate()) as part:
            assert (PROTOCOL_ID in part.handlers) is tells


@pytest.mark.slow
def test_a_node_with_audits_asks_and_one_without_does_not(
    tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running node of this process; A, its server, has paid B."""

    async def look(running: Running, audits: bool) -> None:
        node = running.node
        async with AsyncExitStack() as sides:
            a, b = [await sides.enter_async_context(side(tmp_path, f"{name}{audits}")) for name in "ab"]
            with trio.fail_after(120):
                await running.answering.ready()
                await a.endpoint.connect(address_of(b.endpoint))
                paid = work(a, b, 7)
                await settled(a, b, paid)
                await node.endpoint.connect(address_of(a.endpoint))
                part = opened[-1]
                assert a.prices.quotes is not None
                book = PriceBook.of(a.prices.quotes.current[0])
                a.books.payee.served(node.endpoint.peer_id, MODEL, 0, EXPERTS, time.time())
                part.books.payer.answered(a.peer_id, MODEL, 0, EXPERTS, book, time.time())
                part.settler.answered(a.peer_id)
                await until(lambda: part.books.has_receipts(a.peer_id))
                if not audits:
                    assert part.auditor is None and part._asker is None
                    return
                assert part.auditor is not None
                reputation = part.auditor.reputation
                reputation.agreed(a.peer_id, OWN)
                await until(lambda: reputation.of(b.peer_id) > 0)
                assert reputation.of(b.peer_id) == pytest.approx(standing(HEARSAY * paid / CREDIT))

    opened: list[MarketPart] = []
    made = MarketPart.__init__

    def noted(part: MarketPart, *arguments: Any) -> None:
        made(part, *arguments)
        opened.append(part)

    monkeypatch.setattr(MarketPart, "__init__", noted)
    for audits in (True, False):
        rest = (
            f'[backbone]\nmodel = "{demo_model}"\ncontext = 64\n[http]\nlisten = "off"\n'
            f'[market]\nmode = "fixed"\naudit = {0.05 if audits else 0.0}\n'
        )
        lines = 'lan = false\ncontrol = "off"'
        folder = tmp_path / f"node{audits}"
        home = Home(folder, tmp_path / "store", demo_model, "0-11", swarm=lines, rest=rest)
        config = load_config(home.config)
        trio.run(functools.partial(run_node, config, on_ready=functools.partial(look, audits=audits)))
