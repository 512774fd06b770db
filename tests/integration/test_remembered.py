"""Remembered peers in a real file: what is kept, and what survives kill -9, damage and other programs."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from routing import remembered as remembered_module
from routing.errors import LocalError
from routing.remembered import MAX_PEERS, RememberedPeers
from routing.wire.advert import SignedAdvert, decode_advert
from tests.adverts import NOW, SWARM, advert, identity, signed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "peers.sqlite"


def known(who: str | int, **fields: object) -> SignedAdvert:
    return decode_advert(signed(who, **fields)).prove()


def names(remembered: RememberedPeers) -> list[str]:
    return [peer.advert.name for peer in remembered.peers(SWARM)]


def test_what_was_remembered_is_there_next_time_without_slices(path: Path) -> None:
    first = RememberedPeers(path)
    first.remember(known("ana", name="ana", lifetime=10), NOW)
    first.remember(known("bea", name="bea"), NOW + 5)
    first.route_worked(str(identity("ana").peer_id), "/ip4/10.0.0.1/udp/1/quic-v1", NOW + 1)
    first.route_worked("12D3KooWstranger", "/ip4/10.0.0.2/udp/1/quic-v1", NOW + 1)
    first.close()
    again = RememberedPeers(path)
    ana, bea = again.peers(SWARM)  # who could be reached comes first
    assert (ana.advert.name, ana.seen, ana.route) == ("ana", NOW + 1, "/ip4/10.0.0.1/udp/1/quic-v1")
    assert (bea.advert.name, bea.seen, bea.route) == ("bea", NOW + 5, "")
    assert ana.advert.addresses == advert("ana").addresses and ana.advert.slices == []
    again.remember(known("bea", name="bea II", seq=2 * 10**12), NOW + 9)
    again.forget(ana.peer_id)
    assert names(again) == ["bea II"]
    again.close()


def test_peers_of_another_swarm_and_rows_others_have_written_are_not_given_out(path: Path) -> None:
    remembered = RememberedPeers(path)
    remembered.remember(known("ana", swarm_id=bytes(32)), NOW)
    remembered.remember(known("bea", name="bea"), NOW)
    remembered.close()
    data = signed("cid")
    with sqlite3.connect(path) as db:
        rows: list[tuple[str, object]] = [
            ("x", data),
            (str(identity("cid").peer_id), b"\x01" + bytes(64) + data[65:]),
            ("y", "text"),
            ("z", b""),
        ]
        db.executemany("INSERT INTO peer VALUES (?, ?, 0, '')", rows)
    db.close()
    again = RememberedPeers(path)
    assert names(again) == ["bea"]
    assert [peer.peer_id for peer in again.peers(bytes(32))] == [str(identity("ana").peer_id)]
    again.close()


def test_the_file_is_bounded_and_keeps_those_that_were_reached(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PEERS == 512
    monkeypatch.setattr(remembered_module, "MAX_PEERS", 5)
    remembered = RememberedPeers(path)
    remembered.remember(known("friend", name="friend"), NOW)
    remembered.route_worked(str(identity("friend").peer_id), "/ip4/10.0.0.1/udp/1/quic-v1", NOW)
    for number in range(10):
        remembered.remember(known(number, name=f"n{number}"), NOW + 1 + number)
    assert names(remembered) == ["friend", "n9", "n8", "n7", "n6"]
    remembered.close()


def test_our_own_numbers_grow_over_restarts_and_with_the_clock_set_back(path: Path) -> None:
    numbers = []
    for now in (NOW, NOW, NOW - 10**6, 0.0, NOW + 1):
        remembered = RememberedPeers(path)
        numbers += [remembered.next_seq(now), remembered.next_seq(now)]
        remembered.close()
    assert numbers == sorted(set(numbers))
    remembered = RememberedPeers(path)
    assert remembered.next_seq(NOW, at_least=numbers[-1] + 10**6) == numbers[-1] + 10**6 + 1
    remembered.close()


def test_only_the_owner_may_read(path: Path) -> None:
    remembered = RememberedPeers(path)
    remembered.remember(known("ana"), NOW)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) == 3, modes
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    remembered.close()
    path.chmod(0o644)
    RememberedPeers(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ---- damage -------------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mail (text)")
    db.close()


def of_a_later_version(path: Path) -> None:
    RememberedPeers(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()


def overwritten(path: Path) -> None:
    remembered = RememberedPeers(path)
    for number in range(50):
        remembered.remember(known(number), NOW)
    remembered.close()
    data = bytearray(path.read_bytes())
    data[4096:-4096] = os.urandom(len(data) - 8192)
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    remembered = RememberedPeers(path)
    for number in range(50):
        remembered.remember(known(number), NOW)
    remembered.close()
    path.write_bytes(path.read_bytes()[:10_000])


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_text("not a database" * 500), foreign, of_a_later_version, overwritten, cut_off],
    ids=["text", "foreign", "version", "overwritten", "cut off"],
)
def test_a_damaged_or_foreign_file_is_moved_aside(
    path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    path.parent.mkdir()
    damage(path)
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING, "panal.remembered"):
        remembered = RememberedPeers(path)
    (record,) = caplog.records
    text = record.getMessage()
    assert str(path) in text and "peers.sqlite.damaged-1" in text and "\n" not in text
    assert path.with_name("peers.sqlite.damaged-1").read_bytes() == before
    remembered.remember(known("ana", name="ana"), NOW)
    assert names(remembered) == ["ana"]
    remembered.close()
    path.write_text("again")
    RememberedPeers(path).close()
    assert path.with_name("peers.sqlite.damaged-2").read_text() == "again"


def test_damage_while_running_costs_the_memory_not_the_node(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remembered = RememberedPeers(path)
    for number in range(100):
        remembered.remember(known(number), NOW)
    first = remembered.next_seq(NOW)
    assert remembered._db is not None
    remembered._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    remembered._db.execute("PRAGMA cache_size = 0")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with sqlite3.connect(path) as db:  # so that the pages are read anew
        db.execute("PRAGMA user_version = 1")
    db.close()
    with caplog.at_level(logging.WARNING, "panal.remembered"):
        remembered.remember(known("ana", name="ana"), NOW)
    assert names(remembered) == ["ana"] and len(caplog.records) == 1
    assert remembered.next_seq(NOW) > first
    remembered.close()


def test_a_file_that_is_held_by_another_costs_the_memory_not_the_node(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_module, "BUSY_SECONDS", 0.05)
    remembered = RememberedPeers(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "panal.remembered"):
        remembered.remember(known("ana", name="ana"), NOW)
        assert remembered.next_seq(NOW) < remembered.next_seq(NOW)
        assert remembered.peers(SWARM) == []
    (record,) = caplog.records  # said once
    assert "goes on without" in record.getMessage()
    other.execute("ROLLBACK")
    other.close()
    remembered.remember(known("ana", name="ana"), NOW)
    assert names(remembered) == ["ana"]
    remembered.close()


def test_a_path_that_can_be_no_file_is_the_owners_mistake(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="not a regular file"):
        RememberedPeers(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="can't be made"):
        RememberedPeers(tmp_path / "file" / "peers.sqlite")


# ---- kill -9 ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    last_seq = 0
    for lines in (1, 3, 7, 40, 150):  # killed at other moments each time
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.remembering", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            told += process.stdout.readlines()
            process.stdout.close()
        finally:
            process.kill()
            process.wait()
        acknowledged = [tuple(map(int, line.split())) for line in told if line.endswith("\n")]
        remembered = RememberedPeers(path)
        kept = {peer.peer_id: peer for peer in remembered.peers(SWARM)}
        newest = {number: round_number for number, round_number, _ in acknowledged}
        for number, round_number in newest.items():
            peer = kept[str(identity(number).peer_id)]
            assert int(peer.route.removeprefix("round ")) >= round_number and peer.seen >= NOW + round_number
        numbers = [seq for *_, seq in acknowledged]
        assert numbers == sorted(set(numbers)) and numbers[0] > last_seq
        last_seq = remembered.next_seq(NOW)
        assert last_seq > numbers[-1]
        remembered.close()
    assert not caplog.records
