"""A node that never asks, and runs for weeks: time forgives what its earlier audits found all the same."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from market.evidence_sqlite import AuditBook
from market.quarantine import FORGIVE_AFTER, Strikes
from market.reputation import Dealings
from node.config.meaning import parse_config
from node.device.folder import NodeFolder
from node.market import findings
from node.market.part import MarketPart
from tests.market_books import identity
from tests.unit.test_quarantine import EVIDENCE


def test_a_strike_ends_where_nobody_keeps_the_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config('[market]\nmode = "fixed"\n', tmp_path / "panal.toml", tmp_path / "store")
    now = time.time()
    with closing(AuditBook(NodeFolder.of(config).audit)) as book:
        book.strike("liar", Strikes(2, now - 60.0, now - 660.0), EVIDENCE)
        book.keep_dealings([("liar", Dealings(agreed=4.0)), ("proved", Dealings(agreed=4.0))])
    with MarketPart.opened(config, identity("ann")) as part:
        for weeks, counts in ((0, False), (1, False), (2, True)):
            at = now + weeks * FORGIVE_AFTER
            monkeypatch.setattr(findings, "time", SimpleNamespace(time=lambda at=at: at))
            honours = part.books.payee.honours
            assert (honours("liar"), honours("proved"), honours("stranger")) == (counts, True, False)
