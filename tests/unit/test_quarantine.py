"""Strikes: doubled, kept with their evidence, forgiven; and what rests on false answers."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from market import evidence_sqlite
from market.evidence_sqlite import AuditBook, Evidence
from market.quarantine import (
    FIRST_QUARANTINE,
    FORGIVE_AFTER,
    LAST_QUARANTINE,
    MAX_STRIKES,
    Quarantine,
    Strikes,
)
from market.reputation import Dealings
from node.decode.convictions import Conviction, Convictions, Spoiled
from routing.errors import LocalError

NOW = 1_800_000_000.0
EVIDENCE = Evidence(
    at=NOW,
    peer_id="liar",
    model_id="ab" * 32,
    layer=3,
    call_index=0,
    pairs=8,
    request=bytes(32),
    answer=bytes([1]) * 32,
    other="home",
    other_answer=bytes([2]) * 32,
    cosine=0.5,
    length=0.01,
    reason="differs",
)


def test_each_strike_doubles_up_to_a_week() -> None:
    quarantine, now, seconds = Quarantine(), NOW, []
    for _ in range(20):
        strikes = quarantine.strike("liar", now)
        seconds.append(strikes.until - now)
        assert quarantine.holds("liar", now) and not quarantine.holds("liar", strikes.until)
        assert quarantine.barred(now) == {"liar": strikes.until}
        now = strikes.until
    assert seconds[:3] == [FIRST_QUARANTINE, 2 * FIRST_QUARANTINE, 4 * FIRST_QUARANTINE]
    assert seconds[-1] == LAST_QUARANTINE and strikes.count == MAX_STRIKES
    assert not quarantine.barred(now) and not quarantine.holds("honest", NOW)


def test_what_comes_to_light_during_a_quarantine_counts_once() -> None:
    quarantine = Quarantine()
    first = quarantine.strike("liar", NOW)
    assert quarantine.strike("liar", NOW + 1) == first


def test_a_clock_that_was_years_ahead_keeps_nobody_out_for_years() -> None:
    quarantine = Quarantine()
    quarantine.strike("peer", NOW + 4 * 365 * 86_400)
    assert not quarantine.holds("peer", NOW) and not quarantine.barred(NOW)
    again = quarantine.strike("peer", NOW)
    assert again.count == 2 and quarantine.holds("peer", NOW + 1)


def test_clean_time_takes_strikes_back_one_by_one() -> None:
    quarantine = Quarantine()
    last = quarantine.strike("peer", NOW)
    for _ in range(2):
        last = quarantine.strike("peer", last.until)
    assert quarantine.of("peer", last.until) == last
    for forgiven in range(3):
        at = last.until + forgiven * FORGIVE_AFTER + 1
        found = quarantine.of("peer", at)
        assert found is not None and found.count == 3 - forgiven
    assert quarantine.of("peer", last.until + 3 * FORGIVE_AFTER) is None
    again = quarantine.strike("peer", last.until + 2 * FORGIVE_AFTER + 1)
    assert again.count == 2, "one was left, and this one"
    assert quarantine.all(again.at) == {"peer": again}


def test_the_book_keeps_strikes_evidence_and_dealings(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    book = AuditBook(path)
    assert path.stat().st_mode & 0o777 == 0o600
    strikes = Strikes(2, NOW + 60, NOW)
    book.strike("liar", strikes, EVIDENCE)
    book.strike("liar", replace(strikes, count=3), replace(EVIDENCE, layer=4))
    book.keep_dealings([("a", Dealings(5, 0.5, 2.0)), ("b", Dealings())])
    book.keep_dealings([("a", Dealings(6, 0.5, 2.0))])
    book.close()
    again = AuditBook(path)
    assert again.strikes() == [("liar", replace(strikes, count=3))]
    assert again.evidence() == [replace(EVIDENCE, layer=4), EVIDENCE]
    assert again.evidence(1) == [replace(EVIDENCE, layer=4)]
    assert again.dealings() == [("a", Dealings(6, 0.5, 2.0))]
    again.close()


def test_the_book_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_sqlite, "MAX_EVIDENCE", 5)
    monkeypatch.setattr(evidence_sqlite, "MAX_REMEMBERED", 3)
    book = AuditBook(tmp_path / "audit.db")
    for number in range(9):
        book.strike(f"peer {number}", Strikes(1, NOW + number, NOW), replace(EVIDENCE, layer=number))
    assert [each.layer for each in book.evidence(100)] == [8, 7, 6, 5, 4]
    assert {peer for peer, _ in book.strikes()} == {"peer 6", "peer 7", "peer 8"}
    book.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(LocalError, match=r"audit.db.*move it away"):
        AuditBook(path)


def test_a_strike_is_there_with_its_evidence_or_not_at_all(tmp_path: Path) -> None:
    book = AuditBook(tmp_path / "audit.db")
    with pytest.raises(sqlite3.Error):
        book.strike("liar", Strikes(1, NOW, NOW), replace(EVIDENCE, layer="no number"))  # type: ignore[arg-type]
    assert book.strikes() == [] and book.evidence() == []
    book.close()


def test_what_was_computed_before_the_last_right_answer_is_believed() -> None:
    convictions = Convictions()
    convictions.add(Conviction("liar", since=10.0, until=20.0, reason="it differs"))
    assert convictions.count == 1
    for at, spoilt in ((9.0, False), (10.0, False), (10.5, True), (20.0, True), (21.0, False)):
        assert (convictions.against({"liar": at, "honest": 15.0}) is not None) == spoilt
    assert convictions.against({"honest": 15.0}) is None and convictions.against({}) is None
    found = convictions.against({}, {"liar": 12.0})
    assert found is not None
    error = found.error()
    assert isinstance(error, Spoiled) and "liar" in str(error) and error.peer == "liar"
