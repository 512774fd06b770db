"""What the owner forgives a peer: strikes, double signing; and what is kept of it all the same."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from market import tally
from market.evidence_sqlite import AuditBook
from market.ledger_sqlite import SqliteLedger
from market.quarantine import FIRST_QUARANTINE, FORGIVE_AFTER, Quarantine, Strikes
from market.receipt import EPOCH_SECONDS, Kind
from market.reputation import Dealings, Reputation
from market.tally import Tallies, Tally
from node.config.meaning import parse_config
from node.decode.convictions import Conviction, Convictions
from node.device.folder import NodeFolder
from node.market import findings
from node.market.audits_told import audits_told
from node.market.findings import SHOWN, Findings, found_earlier
from node.market.part import MarketPart
from routing.errors import LocalError
from tests.market_books import NOW, PRICE, Side, folder, greet, identity, say, settle
from tests.unit.test_quarantine import EVIDENCE

PAIRS = 1_000
COST = PAIRS * PRICE


@pytest.fixture
def pair() -> Iterator[tuple[Side, Side]]:
    """A payer and a payee with credit enough."""
    with folder() as path:
        sides = Side("payer", path), Side("payee", path)
        yield sides
        for side in sides:
            side.ledger.close()


# --- strikes ---


def test_who_is_pardoned_begins_anew() -> None:
    quarantine = Quarantine()
    last = quarantine.strike("liar", NOW - FIRST_QUARANTINE)
    last = quarantine.strike("liar", last.until)
    assert last.count == 2 and quarantine.holds("liar", NOW)
    assert quarantine.pardon("liar", NOW) == last
    assert not quarantine.holds("liar", NOW) and quarantine.of("liar", NOW) is None
    assert quarantine.pardon("liar", NOW) is None and quarantine.pardon("nobody", NOW) is None
    assert quarantine.strike("liar", NOW).until == NOW + FIRST_QUARANTINE


def test_the_book_keeps_what_was_pardoned_and_marks_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    strikes = Strikes(1, NOW + 600, NOW)
    with closing(AuditBook(path)) as book:
        book.strike("liar", strikes, EVIDENCE)
        book.strike("other", strikes, replace(EVIDENCE, peer_id="other"))
        book.pardon("liar", NOW + 5)
        book.pardon("who was never heard of", NOW + 5)
        assert dict(book.strikes()) == {"other": strikes}
        book.strike("liar", strikes, replace(EVIDENCE, at=NOW + 9))
        assert [(each.peer_id, each.at, each.pardoned) for each in book.evidence()] == [
            ("liar", NOW + 9, 0.0),
            ("other", NOW, 0.0),
            ("liar", NOW, NOW + 5),
        ]
        book.pardon("liar", NOW + 10)
    again = AuditBook.reading(path)
    assert again is not None
    with closing(again):
        assert [each.pardoned for each in again.evidence()] == [NOW + 10, 0.0, NOW + 10]
        with pytest.raises(LocalError, match="cannot be written"):
            again.pardon("other", NOW)
    assert AuditBook.reading(tmp_path / "none.db") is None and not (tmp_path / "none.db").exists()


def test_a_book_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with closing(AuditBook(path)) as book:
        book.strike("liar", Strikes(1, NOW + 600, NOW), EVIDENCE)
    with closing(sqlite3.connect(path)) as db:
        for table in ("checks", "pardons"):
            db.execute(f"drop table {table}")
        db.commit()
    reading = AuditBook.reading(path)
    assert reading is not None
    with closing(reading):
        assert reading.evidence() == [EVIDENCE] and reading.tallies() == []


def test_a_damaged_book_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with closing(AuditBook(path)) as book:
        book.strike("liar", Strikes(1, NOW + 600, NOW), EVIDENCE)
        book._db.execute("drop table evidence")
        with pytest.raises(LocalError, match=r"audit.db: cannot be read: .*; move it away"):
            book.evidence()


def test_how_audits_went_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tallies = Tallies()
    for agreed in (True, True, False):
        tallies.count("attic", "90af", agreed=agreed)
    tallies.count("cellar", "", agreed=False)
    tallies.count("attic", "", agreed=True)  # who does not tell any more had a class
    assert tallies.of("attic") == Tally(4, 3, "90af") and tallies.of("attic").differed == 1
    assert tallies.of("nobody") == Tally()
    with closing(AuditBook(tmp_path / "audit.db")) as book:
        book.keep_tallies(tallies.all())
        again = Tallies(book.tallies())
    assert again.all() == tallies.all() == [("cellar", Tally(1, 0, "")), ("attic", Tally(4, 3, "90af"))]
    monkeypatch.setattr(tally, "MAX_REMEMBERED", 2)
    again.count("loft", "", agreed=True)
    assert [peer for peer, _ in again.all()] == ["attic", "loft"]


def test_what_a_pardoned_peer_answers_from_then_on_spoils_nothing() -> None:
    convictions = Convictions()
    convictions.add(Conviction("liar", since=10.0, until=600.0, reason="it differs"))
    convictions.add(Conviction("other", since=10.0, until=600.0, reason="it differs"))
    convictions.pardon("liar", 50.0)
    assert convictions.count == 2, "what it spoiled before stays spoiled"
    assert convictions.against({"liar": 40.0}) and not convictions.against({"liar": 51.0})
    assert convictions.against({"other": 51.0})


def test_findings_pardon_in_memory_and_in_the_book(tmp_path: Path) -> None:
    barred: list[dict[str, str]] = []

    async def main() -> None:
        with closing(AuditBook(tmp_path / "audit.db")) as book:
            reputation, quarantine = Reputation(), Quarantine()
            reputation.restore("liar", Dealings(agreed=500.0))
            found = Findings(barred.append, book, reputation, quarantine)
            now = time.time()  # findings go by the machine's clock
            for number in range(SHOWN + 3):
                strikes = quarantine.strike("liar", now)
                reputation.struck("liar", strikes.count)
                await found.convicted(strikes, replace(EVIDENCE, at=now, layer=number))
            found.tallies.count("liar", "90af", agreed=False)
            found.bar()
            await found.keep()
            assert list(barred[-1]) == ["liar"] and barred[-1]["liar"].startswith(
                "gave false answers: not asked"
            )
            told = audits_told(found, None, 0.05, now)
            (peer,) = told.peers
            assert (peer.checked, peer.agreed, peer.strikes, peer.until) == (1, 0, 1, round(strikes.until, 1))
            assert peer.build == "90af" and peer.standing > 0, "500 right answers outweigh one strike"
            assert [each.layer for each in told.evidence] == list(range(SHOWN + 2, 2, -1))
            before = peer.standing
            assert await found.pardon("liar") == strikes
            assert await found.pardon("liar") is None
            assert barred[-1] == {} and book.strikes() == []
            told = audits_told(found, None, 0.05, now)
            (peer,) = told.peers
            assert (peer.strikes, peer.until) == (0, None) and peer.standing > before
            assert all(each.pardoned for each in told.evidence)
        with found_earlier(NodeFolder(tmp_path)) as earlier:
            assert earlier is not None
            again = audits_told(earlier, None, 0.05, now)
            assert again.peers == told.peers and again.evidence == told.evidence
        with found_earlier(NodeFolder(tmp_path / "nowhere")) as nothing:
            assert nothing is None

    trio.run(main)


# --- double signing, and settlements that wait ---


def test_who_restored_an_old_copy_is_pardoned_and_the_books_agree_again(pair: tuple[Side, Side]) -> None:
    """What it signs then contradicts what it signed before; nothing of that is its owner's will."""
    payer, payee = pair
    assert not payee.serve(payer, PAIRS, NOW)
    assert not settle(payer, payee, NOW)
    old = payer.path.with_suffix(".copy")
    with closing(sqlite3.connect(payer.path)) as db, closing(sqlite3.connect(old)) as copy:
        db.backup(copy)
    assert not payee.serve(payer, 2 * PAIRS, NOW)
    assert not settle(payer, payee, NOW)
    payer.ledger.close()
    for suffix in ("-wal", "-shm"):
        payer.path.with_name(payer.path.name + suffix).unlink(missing_ok=True)
    old.replace(payer.path)
    payer.restart()
    assert not payee.serve(payer, PAIRS, NOW)
    payer.account(payee).caught_up = True  # an owner's other program that does not greet
    step = payer.books.offer(payee.peer, NOW)
    assert step is not None
    payee.do(payee.books.received(payer.peer, payer.do(step), NOW))
    account = payee.account(payer)
    assert "say different things" in account.fault
    assert "signs double" in payee.serve(payer, PAIRS, NOW, arrives=False)

    with pytest.raises(LocalError, match="has not signed double"):
        payee.books.pardon("somebody", NOW)
    payee.do(payee.books.pardon(payer.peer, NOW + 1))
    with pytest.raises(LocalError, match="has not signed double"):
        payee.books.pardon(payer.peer, NOW)
    assert not account.fault and not account.caught_up
    (proof,) = payee.ledger.evidence()
    assert proof.pardoned == int(NOW + 1) and proof.peer == payer.peer
    payee.restart()
    assert not payee.account(payer).fault
    assert not settle(payer, payee, NOW), "they compare what they know first, and go on from there"
    assert payee.owed_by(payer) == 3 * COST == -payer.owed_by(payee)
    assert not payee.serve(payer, PAIRS, NOW)
    assert not settle(payer, payee, NOW)
    assert payee.owed_by(payer) == 4 * COST == -payer.owed_by(payee)


def test_a_ledger_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    side = Side("payee", tmp_path)
    side.ledger._db.execute("DROP TABLE pardon")
    with closing(SqliteLedger.reading(side.path)) as reading:
        assert reading.evidence() == []
    side.restart()
    assert side.ledger._db.execute("SELECT count(*) FROM pardon").fetchone() == (0,)
    side.ledger.close()


def test_a_settlement_that_waits_is_told_until_it_is_countersigned(pair: tuple[Side, Side]) -> None:
    payer, payee = pair
    assert not payee.serve(payer, PAIRS, NOW)
    assert not settle(payer, payee, NOW)

    def waiting() -> tuple[int, int]:
        """In memory and in the file."""
        ((one, other),) = zip(payee.books.balances(NOW), payee.ledger.balances(), strict=True)
        return one.waiting, other.waiting

    assert waiting() == (0, 0)
    payee.do(payee.books.settle(payer.peer, COST // 4, Kind.PAID, NOW))
    payee.do(payee.books.settle(payer.peer, COST // 2, Kind.FORGIVEN, NOW))
    assert waiting() == (COST // 4 + COST // 2, COST // 4 + COST // 2)
    payee.restart()
    assert waiting() == (COST // 4 + COST // 2, COST // 4 + COST // 2)
    greet(payee, payer, NOW)
    assert not settle(payee, payer, NOW)
    assert waiting() == (0, 0) and payee.owed_by(payer) == COST - COST // 4 - COST // 2


def test_a_settlement_countersigned_too_late_to_be_told_waits_neither_in_memory_nor_in_the_file(
    pair: tuple[Side, Side],
) -> None:
    """The reply is lost, and the hour ends: what is signed anew says nothing that the first did not."""
    payer, payee = pair
    assert not payee.serve(payer, PAIRS, NOW)
    assert not settle(payer, payee, NOW)
    payee.do(payee.books.settle(payer.peer, COST // 4, Kind.PAID, NOW))
    greet(payee, payer, NOW)
    offer = payee.books.offer(payer.peer, NOW)
    assert offer is not None
    payer.do(payer.books.received(payee.peer, payee.do(offer), NOW))
    later = NOW + EPOCH_SECONDS
    again = payee.books.offer(payer.peer, later)
    assert again is not None
    assert not say(payee, payer, payee.do(again), later).refused
    (in_memory,), (in_file,) = payee.books.balances(NOW), payee.ledger.balances()
    assert (in_memory.waiting, in_file.waiting) == (0, 0)
    assert in_memory.owes_us == in_file.owes_us == COST - COST // 4


# --- whose work counts ---


@pytest.mark.parametrize("audit", [0.05, 0.0])
def test_what_earlier_audits_found_holds_before_a_backbone_is_there(tmp_path: Path, audit: float) -> None:
    """With audits whoever was found right counts; without any, whoever was not found out."""
    text = f'[market]\nmode = "fixed"\naudit = {audit}\n'
    config = parse_config(text, tmp_path / "panal.toml", tmp_path / "store")
    folder = NodeFolder.of(config)
    with MarketPart.opened(config, identity("ann")) as part:
        assert part.books.payee.honours("anybody"), "nothing is known of anybody"
    now = time.time()
    with closing(AuditBook(folder.audit)) as book:
        book.strike("liar", Strikes(1, now - 5.0, now - 605.0), replace(EVIDENCE, at=now))
        book.keep_dealings([("proved", Dealings(agreed=4.0)), ("liar", Dealings(agreed=4.0))])

    async def main() -> None:
        with MarketPart.opened(config, identity("ann")) as part:
            honours = ("proved", "liar", "stranger")
            assert [part.books.payee.honours(each) for each in honours] == [True, False, not audit]
            pardoned = await part.pardon("liar")
            assert (pardoned.strikes, pardoned.until) == (1, None), (
                "its quarantine was over, the strike stood"
            )
            assert [part.books.payee.honours(each) for each in honours] == [True, True, not audit]
            with pytest.raises(LocalError, match="nothing stands against liar"):
                await part.pardon("liar")

    trio.run(main)


def test_what_time_forgives_weighs_no_more_in_a_process_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()

    async def main() -> None:
        with closing(AuditBook(tmp_path / "audit.db")) as book:
            book.strike("liar", Strikes(2, now - 60.0, now - 660.0), EVIDENCE)
            book.keep_dealings([("liar", Dealings(agreed=4.0))])
            with found_earlier(NodeFolder(tmp_path)) as known:
                assert known is not None
                for weeks, proved in ((0, False), (1, False), (2, True)):
                    clock = SimpleNamespace(time=lambda at=now + weeks * FORGIVE_AFTER: at)
                    monkeypatch.setattr(findings, "time", clock)
                    known._forgive()
                    assert known.reputation.is_proved("liar") == proved == known.honours("liar")

    trio.run(main)
