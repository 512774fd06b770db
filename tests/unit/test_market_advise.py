"""`panal market advise`: what it takes and how it tells."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from market.evidence_sqlite import AuditBook
from market.quarantine import Strikes
from node.cli import market_advise
from node.cli.frame import run_command
from node.config import load_config
from node.line_rate import RateError, parse_rate
from node.market.advice_report import AdviceReport, LayerAdvice
from node.market.served_memory import ServedMemory
from node.market.served_rate import DAY, ServedRate
from tests.unit.test_quarantine import EVIDENCE


def test_rates_as_people_write_them() -> None:
    assert parse_rate("20Mbit") == market_advise._uplink("20MBIT/s") == 20e6
    assert parse_rate("1.5 Gbit/s") == 1.5e9
    assert parse_rate(" 500kbit ") == 5e5
    for text in ("", "20", "0Mbit", "fast", "20MB", "-3Mbit", "9999999Gbit", "2e3kbit"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no rate"):
            market_advise._uplink(text)
        with pytest.raises(RateError, match="is no rate"):
            parse_rate(text)


def report(**fields: object) -> AdviceReport:
    base: dict[str, object] = {
        "model_id": "ab" * 32,
        "memory": 8 << 20,
        "n_bytes": 7 << 20,
        "uplink": None,
        "servers": 5,
        "answered": 4,
        "heard": 1,
        "tokens_a_day": 1e6,
        "is_measured": False,
        "hold": {"0-1": "0-31"},
        "take": {"1": "0-31"},
        "give": {"4": "0-7"},
        "lacking": 12,
        "uncovered": 3,
        "scarce": {"7": "3"},
        "income": 12_500_000,
        "income_now": 9_000_000,
        "layers": (
            LayerAdvice(0, 32, 32, 32, {"the whole layer here saves messages": 32}, 4.25, 6_000_000),
            LayerAdvice(1, 0, 0, 32, {}, 3, 0),
            LayerAdvice(4, 0, 8, 32, {}, 9, 0),
        ),
    }
    return AdviceReport(**(base | fields))  # type: ignore[arg-type]


def test_a_report_for_people() -> None:
    lines = market_advise.told(report()).splitlines()
    assert lines[:3] == [
        "model      abababababab, other servers: 5 (answered: 4)",
        "hold       layers 0-1: experts 0-31: 7 MiB of 8 MiB",
        "now        take layers 1: experts 0-31",
    ]
    assert "give up layers 4: experts 0-7" in lines[3]
    assert lines[4] == "income     12.50 credits a day, 9.00 by what is held now"
    assert "an assumption: no receipts say more yet" in lines[5]
    assert "12 cells with fewer than three other holders, 3 with none" in lines[6]
    assert [line.split()[0] for line in lines[8:]] == ["layer", "0", "4"], (
        "layers of which there is nothing say none"
    )


def test_a_report_where_all_is_well() -> None:
    text = market_advise.told(report(take={}, give={}, lacking=0, uncovered=0, is_measured=True))
    assert "nothing to take" in text and "scarce     nothing" in text and "assumption" not in text
    assert "tokens a day in the swarm, by what this node served\n" in text


def test_what_a_config_names_is_held_while_no_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'identity = "identity.key"\n'
        '[[serve]]\nmodel = "a.gguf"\nlayers = "1-2"\nexperts = "0,3-9"\n'
        '[[serve]]\nmodel = "a.gguf"\nlayers = "4"\n'
        '[[serve]]\nmodel = "a.gguf"\nmemory = "1GiB"\n'
        '[[serve]]\nmodel = "b.gguf"\n'
    )
    config = load_config(file)
    experts = {1: 8, 2: 4, 3: 8, 4: 8}
    a, b = config.serve[0].model, config.serve[3].model
    assert market_advise._named_bits(config, a, experts) == {1: 0b11111001, 2: 0b1001, 4: 0b11111111}
    assert market_advise._named_bits(config, b, experts) == {
        layer: (1 << n) - 1 for layer, n in experts.items()
    }


def test_work_that_was_written_down_counts_while_no_node_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('identity = "identity.key"\n[market]\nmode = "fixed"\n')
    config = load_config(file)
    memory = ServedMemory(tmp_path / "served.bin", "me")
    rates = {"ab" * 32: ServedRate(0.0, 1_800.0, {2: np.array([60.0, 0.0])})}
    assert market_advise._served(config, "ab" * 32, "me") == {}
    memory.save(memory.encoded(rates, time.time()))
    found = market_advise._served(config, "ab" * 32, "me")
    assert list(found) == [2] and found[2] == pytest.approx([60 * DAY / 1_800, 0.0])
    assert market_advise._served(config, "cd" * 32, "me") == {} and not capsys.readouterr().err
    (tmp_path / "served.bin").write_bytes(b"not so")
    assert market_advise._served(config, "ab" * 32, "me") == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("panal: what this node served is not known: ") and "damaged" in line


def test_who_gave_false_answers_is_no_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text('identity = "identity.key"\n[market]\nmode = "fixed"\n')
    config, now = load_config(file), time.time()
    assert market_advise._barred(config) == ()
    with closing(AuditBook(tmp_path / "audit.db")) as book:
        for name, until in (("liar", now + 500), ("forgiven", now - 500)):
            book.strike(name, Strikes(1, until, now - 1_000), replace(EVIDENCE, peer_id=name))
    assert set(market_advise._barred(config)) == {"liar"} and not capsys.readouterr().err
    (tmp_path / "audit.db").write_bytes(b"not so" * 1_000)
    for beside in ("audit.db-wal", "audit.db-shm"):
        (tmp_path / beside).unlink(missing_ok=True)
    assert market_advise._barred(config) == ()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("panal: who gave false answers is not known: ")


@pytest.mark.parametrize(
    ("lines", "flags", "says"),
    [
        ("", [], "give MODEL"),
        ("", ["abcdef01"], "give --memory"),
        ("", ["abcdef01", "--memory", "1GiB"], "no such model"),
        ('[[serve]]\nmodel = "abcdef01"\n', [], "give --memory"),
        ("", ["--memory", "much"], "no amount of memory"),
        ("", ["--uplink", "fast"], "no rate"),
    ],
)
def test_what_was_not_said_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, flags: list[str], says: str
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'store = "store"\nidentity = "identity.key"\n{lines}', encoding="utf-8")
    try:
        code = run_command(["market", "advise", "-c", str(config), *flags])
    except SystemExit as error:
        code = int(error.code or 0)
    told = capsys.readouterr()
    assert code == 2 and not told.out
    assert says in told.err and len(told.err.splitlines()) == 1
