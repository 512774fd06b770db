"""A file that is being fetched: what is proven goes to its place at once, and survives a kill there.

Nothing is written down about what is there: whoever opens the file again finds out by the digests. Of a part
that was on its way the chunks are found by its list, which lies beside the file and is proven itself.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from node.home.call_bits import numbers, run_bits
from node.model.chunks import CHUNK_BYTES, DIGEST_BYTES, list_bytes, list_proves
from node.share.blob import Blob, ListBlob
from routing.errors import LocalError

Places = Callable[[int, int], Iterator[tuple[int, int]]]
"""(offset in a blob, bytes) -> where in the file its pieces are: (offset, bytes)."""


class GrowingFile:
    """A file of a known size, full of holes at first."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, or make it.

        Raises:
            LocalError: it cannot be made.
        """
        self.path = path
        self.size = size
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot(path, "opened", error) from None
        try:
            if os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, 0)
                os.ftruncate(self._fd, size)
        except OSError as error:
            os.close(self._fd)
            raise cannot(path, "made", error) from None

    def write(self, offset: int, data: memoryview) -> None:
        """
        Raises:
            LocalError: the disk is full, or fails.
        """
        while data:
            try:
                written = os.pwrite(self._fd, data, offset)
            except OSError as error:
                raise cannot(self.path, "written", error) from None
            offset, data = offset + written, data[written:]

    def read(self, offset: int, size: int) -> bytes:
        """
        Raises:
            LocalError: the disk fails.
        """
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise cannot(self.path, "read", error) from None

    def has_data(self, offset: int, size: int) -> bool:
        """Whether anything was ever written there, as far as the file system can tell."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA) < offset + size
        except OSError as error:
            return error.errno != errno.ENXIO  # it has no data from there to its end

    def sync(self) -> None:
        """Have what was written survive a power cut.

        Raises:
            LocalError: the disk fails.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise cannot(self.path, "written", error) from None

    def close(self) -> None:
        """Give it up."""
        os.close(self._fd)


class GrowingBlob:
    """A blob that is being fetched into a file.

    Attributes:
        blob, lists_blob: what it is.
        lists: of the parts whose list is known.
        present: [n_units], those whose bytes are there and right.
        wanted: the parts that are to come.
        provable: units that can be proven, as bits: those of parts whose list is known, or that have none.
    """

    def __init__(self, blob: Blob, wanted: range, file: GrowingFile, places: Places, lists: Path) -> None:
        """
        Args:
            places: where in the file the blob's bytes are.
            lists: the file beside it in which lists are kept.

        Raises:
            LocalError: a file cannot be made, or the disk fails.
        """
        self.blob = blob
        self.lists_blob = ListBlob(blob)
        self.lists: dict[int, bytes] = {}
        self.present = bytearray(blob.n_units)
        self.wanted = wanted
        self.file = file
        self._places = places
        self._lists = GrowingFile(lists, self.lists_blob.n_bytes) if self.lists_blob.n_units else None
        self._left = {part: len(blob.units_of(part)) for part in wanted}
        self.provable = 0
        for part in wanted:
            if not list_bytes(blob.parts[part].size):
                self._can_prove(part)

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted is there."""
        return not any(self._left.values())

    def lacking(self) -> int:
        """The wanted units that are not there, as bits."""
        first, last = self.blob.units_of(self.wanted.start), self.blob.units_of(self.wanted.stop - 1)
        return sum(1 << unit for unit in range(first.start, last.stop) if not self.present[unit])

    @property
    def lacking_bytes(self) -> int:
        """What has yet to come."""
        return sum(self.blob.span(unit)[1] for unit in numbers(self.lacking()))

    def lists_lacking(self) -> int:
        """The lists that are needed and not known, as bits."""
        return sum(
            1 << unit
            for unit, part in enumerate(self.blob.with_list)
            if self._left.get(part) and part not in self.lists
        )

    def look(self, progress: Callable[[int], None] = lambda n_bytes: None) -> None:
        """Find out what is there.

        Args:
            progress: told of bytes looked at since its last call.

        Raises:
            LocalError: the disk fails.
        """
        self._read_lists()
        for part in self.wanted:
            self._look_at(part)
            progress(self.blob.parts[part].size)

    def put(self, unit: int, data: memoryview) -> None:
        """Put a unit, which must be proven, in its place.

        Raises:
            LocalError: the disk is full, or fails.
        """
        offset, _ = self.blob.span(unit)
        for place, size in self._places(offset, len(data)):
            self.file.write(place, data[:size])
            data = data[size:]

    def put_list(self, unit: int, data: memoryview) -> None:
        """Take a list, which must be proven.

        Raises:
            LocalError: the disk is full, or fails.
        """
        assert self._lists is not None
        self._lists.write(self.lists_blob.span(unit)[0], data)
        self.lists[self.lists_blob.part(unit)] = bytes(data)

    def note(self, unit: int) -> None:
        """A unit has come."""
        if not self.present[unit]:
            self.present[unit] = 1
            self._left[self.blob.part_of(unit)] -= 1

    def note_list(self, unit: int) -> None:
        """A list has come."""
        self._can_prove(self.lists_blob.part(unit))

    def lists_due(self, n_bytes: int) -> int:
        """The lists to ask for now, as bits: of the next parts, until so much can be asked for."""
        found = total = 0
        for unit, part in enumerate(self.blob.with_list):
            left = self._left.get(part, 0)
            if not left:
                continue
            if part not in self.lists:
                found |= 1 << unit
            total += left * CHUNK_BYTES
            if total >= n_bytes:
                break
        return found

    def close(self) -> None:
        """Give the file of lists up; the blob's own file is its maker's."""
        if self._lists is not None:
            self._lists.close()

    def _can_prove(self, part: int) -> None:
        units = self.blob.units_of(part)
        self.provable |= run_bits(units.start, len(units))

    def _read_lists(self) -> None:
        """The lists that are there and right."""
        if self._lists is None:
            return
        for unit in range(self.lists_blob.n_units):
            start, size = self.lists_blob.span(unit)
            if self._lists.has_data(start, size):
                data = self._lists.read(start, size)
                if self.lists_blob.proves(unit, memoryview(data)):
                    self.lists[self.lists_blob.part(unit)] = data
                    self.note_list(unit)

    def _look_at(self, part: int) -> None:
        """Note the units of a part that are there."""
        start, size = self.blob.part_start(part), self.blob.parts[part].size
        if not any(self.file.has_data(*place) for place in self._places(start, size)):
            return
        found = bytearray()
        for unit in self.blob.units_of(part):
            found += blake3(self._read(*self.blob.span(unit))).digest()
        digest = self.blob.parts[part].digest
        known = self.lists.get(part) if list_bytes(size) else digest
        if known is None:
            if not list_proves(memoryview(found), digest):
                return
            known = bytes(found)
        for number, unit in enumerate(self.blob.units_of(part)):
            at = slice(number * DIGEST_BYTES, (number + 1) * DIGEST_BYTES)
            if found[at] == known[at]:
                self.note(unit)

    def _read(self, offset: int, size: int) -> bytes:
        return b"".join(self.file.read(*place) for place in self._places(offset, size))


def straight(offset: int, size: int) -> Iterator[tuple[int, int]]:
    """`Places` of a blob that is the file."""
    yield offset, size


def cannot(path: Path, what: str, error: OSError) -> LocalError:
    return LocalError(
        f"{path}: cannot be {what}: {error.strerror}; make room or mend it, and the same command goes on "
        "where it was"
    )
