"""Bytes in parts that each have a digest, cut into the units that are asked for and proven one by one. Pure.

The parts are the cells of a MoE call, the tensors of a trunk, or a single file. A part of up to CHUNK_BYTES
is a unit, proven by its digest. A larger one has a unit for each chunk, proven by the part's list; the lists
of a blob's large parts are a blob of their own, in which each list is a unit, proven by the part's digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from node.model.chunks import CHUNK_BYTES, DIGEST_BYTES, chunk_count, chunk_proves, list_bytes, list_proves
from routing.errors import LocalError

MAX_PART_BYTES = 4 << 30
"""Of a part: its list of 512 KiB is proven as one. The largest tensor of a trunk known has 2.4 GB."""


@dataclass(frozen=True)
class Part:
    """Bytes with a digest (node.model.chunks)."""

    size: int
    digest: bytes


class Blob:
    """Parts one after another.

    Attributes:
        n_units, n_bytes: of all.
        with_list: numbers of the parts that have a list.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        """
        Raises:
            LocalError: a part is larger than can be fetched.
        """
        self.parts = tuple(parts)
        for part in self.parts:
            if part.size > MAX_PART_BYTES:
                raise LocalError(f"{part.size} bytes in one piece, at most {MAX_PART_BYTES} can be fetched")
        chunks = np.array([chunk_count(part.size) for part in self.parts], np.int64)
        self._first_unit = np.concatenate([[0], np.cumsum(chunks)])
        self._part_of = np.repeat(np.arange(len(self.parts)), chunks)
        sizes = np.array([part.size for part in self.parts], np.int64)
        self._part_start = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(self._first_unit[-1]) - self._first_unit[self._part_of]
        self._start = np.append(self._part_start[self._part_of] + within * CHUNK_BYTES, self._part_start[-1])
        self.n_units = int(self._first_unit[-1])
        self.n_bytes = int(self._part_start[-1])
        self.with_list = tuple(number for number, part in enumerate(self.parts) if list_bytes(part.size))

    def part_of(self, unit: int) -> int:
        """The part that a unit belongs to."""
        return int(self._part_of[unit])

    def units_of(self, part: int) -> range:
        """The units of a part."""
        return range(int(self._first_unit[part]), int(self._first_unit[part + 1]))

    def part_start(self, part: int) -> int:
        """Where a part begins, in bytes."""
        return int(self._part_start[part])

    def span(self, first: int, count: int = 1) -> tuple[int, int]:
        """Where neighbouring units begin, and how many bytes they have."""
        start = int(self._start[first])
        return start, int(self._start[first + count]) - start

    def fit(self, first: int, count: int, n_bytes: int) -> int:
        """How many of these neighbours have so many bytes together; at least one."""
        end = int(np.searchsorted(self._start, int(self._start[first]) + n_bytes, side="right")) - 1
        return max(1, min(count, end - first))

    def proves(self, unit: int, data: memoryview, lists: dict[int, bytes]) -> bool:
        """Whether these are a unit's bytes.

        Args:
            lists: by part; that of a part with a list must be among them.
        """
        number = self.part_of(unit)
        part = self.parts[number]
        if not list_bytes(part.size):
            return chunk_proves(data, part.digest)
        at = (unit - int(self._first_unit[number])) * DIGEST_BYTES
        return chunk_proves(data, lists[number][at : at + DIGEST_BYTES])


class ListBlob:
    """The lists of a blob's large parts, one after another; a unit is a list.

    Attributes:
        blob: whose lists these are.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        sizes = [list_bytes(blob.parts[part].size) for part in blob.with_list]
        self._start = [0, *(int(end) for end in np.cumsum(sizes))] if sizes else [0]

    @property
    def n_units(self) -> int:
        return len(self.blob.with_list)

    @property
    def n_bytes(self) -> int:
        return self._start[-1]

    def part(self, unit: int) -> int:
        """The part that a list is of."""
        return self.blob.with_list[unit]

    def span(self, first: int, count: int = 1) -> tuple[int, int]:
        """Where neighbouring lists begin, and how many bytes they have."""
        return self._start[first], self._start[first + count] - self._start[first]

    def fit(self, first: int, count: int, n_bytes: int) -> int:
        """How many of these neighbours are the lists of so many bytes together; at least one."""
        total = 0
        for number in range(count):
            total += self.blob.parts[self.part(first + number)].size
            if number and total > n_bytes:
                return number
        return count

    def proves(self, unit: int, data: memoryview) -> bool:
        """Whether these bytes are a list."""
        return list_proves(data, self.blob.parts[self.part(unit)].digest)
