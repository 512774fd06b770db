"""A file that is being fetched: what is proven is found again, whatever ended the process; nothing else."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.call_bits import numbers
from node.model.chunks import CHUNK_BYTES, digest_of, list_of
from node.share.blob import Blob, Part
from node.share.download import Download, IncomingUnits, Key
from node.share.growing import GrowingBlob, GrowingFile, straight
from node.share.room import require_room
from node.share.target import WrongBytes
from routing.errors import LocalError
from routing.wire.model_files import ModelFile

KEY = Key(ModelFile.TRUNK)
SIZES = [1000, 3 * CHUNK_BYTES + 7, 5, CHUNK_BYTES, 2 * CHUNK_BYTES]
CONTENTS = [random.Random(number).randbytes(size) for number, size in enumerate(SIZES)]
WHOLE = b"".join(CONTENTS)
BLOB = Blob(Part(len(data), digest_of([memoryview(data)])) for data in CONTENTS)
LISTS = [list_of([memoryview(CONTENTS[part])]) for part in BLOB.with_list]


@contextmanager
def grown(folder: Path, wanted: range = range(len(SIZES))) -> Iterator[GrowingBlob]:
    file = GrowingFile(folder / "data", BLOB.n_bytes)
    blob = GrowingBlob(BLOB, wanted, file, straight, folder / "lists")
    try:
        blob.look()
        yield blob
    finally:
        blob.close()
        file.close()


def give(blob: GrowingBlob, unit: int) -> None:
    """A unit comes; its list first, if it has one."""
    part = BLOB.part_of(unit)
    if part in BLOB.with_list and part not in blob.lists:
        number = BLOB.with_list.index(part)
        incoming = IncomingUnits(KEY._replace(lists=True), blob, number, 1)
        incoming.take(memoryview(LISTS[number]))
        blob.note_list(number)
    start, size = BLOB.span(unit)
    IncomingUnits(KEY, blob, unit, 1).take(memoryview(WHOLE)[start : start + size])
    blob.note(unit)


@settings(max_examples=30)
@given(st.sets(st.integers(0, BLOB.n_units - 1)))
def test_what_came_is_found_again(tmp_path_factory: pytest.TempPathFactory, units: set[int]) -> None:
    folder = tmp_path_factory.mktemp("grown")
    with grown(folder) as blob:
        for unit in units:
            give(blob, unit)
    with grown(folder) as blob:
        assert set(numbers(blob.lacking())) == set(range(BLOB.n_units)) - units
        assert blob.is_complete is (len(units) == BLOB.n_units)
        assert blob.lacking_bytes == sum(BLOB.span(unit)[1] for unit in numbers(blob.lacking()))
        for unit in numbers(blob.lacking()):
            give(blob, unit)
        assert blob.is_complete and not blob.lists_lacking()
    assert (folder / "data").read_bytes() == WHOLE


def test_bytes_that_changed_are_fetched_again(tmp_path: Path) -> None:
    with grown(tmp_path) as blob:
        for unit in range(BLOB.n_units):
            give(blob, unit)
    damaged = 4  # a chunk of the second part
    start, size = BLOB.span(damaged)
    with (tmp_path / "data").open("r+b") as file:
        file.seek(start + size // 2)
        file.write(bytes([WHOLE[start + size // 2] ^ 1]))
    with grown(tmp_path) as blob:
        assert numbers(blob.lacking()) == [damaged]
    os.truncate(tmp_path / "lists", 0)  # without the list the part's digest is all there is to go by
    with grown(tmp_path) as blob:
        assert numbers(blob.lacking()) == list(BLOB.units_of(1))
    (tmp_path / "lists").write_bytes(bytes(blob.lists_blob.n_bytes - 1) + b"x")
    with grown(tmp_path) as blob:
        assert numbers(blob.lacking()) == list(BLOB.units_of(1))
    with (tmp_path / "data").open("ab") as file:
        file.write(b"x")  # of another size: nothing of it can be believed to be in its place
    with grown(tmp_path) as blob:
        assert len(numbers(blob.lacking())) == BLOB.n_units


def test_only_what_is_wanted(tmp_path: Path) -> None:
    with grown(tmp_path, range(1, 3)) as blob:
        first, last = BLOB.units_of(1), BLOB.units_of(2)
        assert numbers(blob.lacking()) == [*first, *last] and numbers(blob.lists_lacking()) == [0]
        for unit in (*first, *last):
            give(blob, unit)
        assert blob.is_complete


def test_lists_come_before_chunks_and_a_while_ahead(tmp_path: Path) -> None:
    with grown(tmp_path) as blob:
        small = [*BLOB.units_of(0), *BLOB.units_of(2), *BLOB.units_of(3)]
        assert numbers(blob.provable) == small
        assert numbers(blob.lists_due(1)) == [0] and numbers(blob.lists_due(1 << 30)) == [0, 1]
        give(blob, BLOB.units_of(1).start)
        assert numbers(blob.provable) == sorted([*small, *BLOB.units_of(1)])
        assert not blob.lists_due(1) and numbers(blob.lists_due(1 << 30)) == [1]
        for unit in BLOB.units_of(1):
            give(blob, unit)
        assert numbers(blob.lists_due(1)) == [1]


@pytest.mark.parametrize("cut", [1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_what_is_wrong_is_never_in_its_place(tmp_path: Path, cut: int) -> None:
    first = BLOB.units_of(1).start
    start, size = BLOB.span(first, 3)
    data = bytearray(WHOLE[start : start + size])
    data[CHUNK_BYTES + 3] ^= 1  # in the second of three chunks
    with grown(tmp_path) as blob:
        give(blob, first)
    with grown(tmp_path) as blob:
        incoming = IncomingUnits(KEY, blob, first, 3)
        with pytest.raises(WrongBytes, match="the trunk"):
            incoming.take(memoryview(data)[:cut])
            incoming.take(memoryview(data)[cut:])
        assert incoming.complete == [first]  # what came before it is kept
    assert not any((tmp_path / "data").read_bytes()[BLOB.span(first + 1)[0] :])
    with grown(tmp_path) as blob:
        listed = IncomingUnits(KEY._replace(lists=True), blob, 1, 1)
        with pytest.raises(WrongBytes, match="a list of digests of the trunk"):
            listed.take(memoryview(LISTS[0])[: 2 * 32])
        assert BLOB.with_list[1] not in blob.lists


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_growing import BLOB, KEY, WHOLE, IncomingUnits, give, grown
with grown(Path(sys.argv[1])) as blob:
    for unit in range(4):
        give(blob, unit)
    start, size = BLOB.span(4)
    IncomingUnits(KEY, blob, 4, 1).take(memoryview(WHOLE)[start : start + size - 1])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_less_than_a_chunk(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with grown(tmp_path) as blob:
        assert numbers(blob.lacking()) == list(range(4, BLOB.n_units))


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """The system's limit of a file's size stands for the full disk: writing fails in the middle."""
    with grown(tmp_path) as blob:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_BYTES, before[1]))
            give(blob, 0)
            with pytest.raises(LocalError, match=r"data: cannot be written: .*the same command goes on"):
                for unit in range(1, BLOB.n_units):
                    give(blob, unit)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    with grown(tmp_path) as blob:
        assert 0 not in numbers(blob.lacking())
        for unit in numbers(blob.lacking()):
            give(blob, unit)
        assert blob.is_complete


def test_too_little_room_is_said_before(tmp_path: Path) -> None:
    require_room({tmp_path / "new": 1000, tmp_path: 0})
    assert (tmp_path / "new").is_dir()
    with pytest.raises(LocalError, match=r"64 TiB|65536 GiB are to be fetched, .* are free there; make room"):
        require_room({tmp_path: 1 << 45, tmp_path / "new": 1 << 45})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="cannot be used"):
        require_room({tmp_path / "file" / "below": 1})


def test_a_target_counts_bytes_but_not_lists(tmp_path: Path) -> None:
    download = Download(bytes(32))
    with grown(tmp_path) as blob:
        download.add(KEY, blob)
        lacking = download.lacking()
        assert list(lacking) == [KEY, KEY._replace(lists=True)]
        assert download.bytes_of(lacking) == BLOB.n_bytes
        assert download.units(KEY, 1) == -1  # of files peers hold all
        give(blob, 0)
        assert download.bytes_of(download.lacking()) == BLOB.n_bytes - SIZES[0]


def test_what_a_list_proves_is_asked_of_the_same_peer_right_behind_it(tmp_path: Path) -> None:
    download, lists = Download(bytes(32)), KEY._replace(lists=True)
    with grown(tmp_path) as blob:
        download.add(KEY, blob)
        small = blob.provable
        assert numbers(download.askable(lists, "x")) == [0, 1]
        download.taken(lists, 0, 1, "x")
        assert numbers(download.askable(KEY, "x") & ~small) == list(BLOB.units_of(1))
        assert download.askable(KEY, "y") == small
        chunk = IncomingUnits(KEY, blob, BLOB.units_of(1).start, 1)
        with pytest.raises(WrongBytes, match="without the list that proves it"):
            chunk.take(memoryview(WHOLE)[slice(BLOB.part_start(1), BLOB.part_start(1) + CHUNK_BYTES)])
        download.given_back(lists, 0, 1, "x")
        assert download.askable(KEY, "x") == small
        give(blob, BLOB.units_of(1).start)
        assert numbers(download.askable(KEY, "y") & ~small) == list(BLOB.units_of(1))
