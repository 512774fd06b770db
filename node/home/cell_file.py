"""The fetched experts of one MoE call: a file with a place for each of them, of which many may be empty.

Each tensor of the call is stacked whole, as in a model's file, and begins at a multiple of ALIGNMENT; there
is no header, the manifest says where everything is. What was not fetched is a hole and takes no room on the
disk. So experts that come one by one lie where the kernels want them, and all that are there are one run of
`HeldExperts` without a copy.

The file itself proves what it holds: an expert is there if its bytes have its digest.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from node.model.digests import expert_digest
from node.model.held import HeldExperts, HeldTensor
from node.model.manifest import ExpertCall
from routing.errors import LocalError

ALIGNMENT = 4096
"""A page: kernels ask for 32 bytes, and holes end at pages."""

COPY_BYTES = 4 << 20
"""Copied at once from a file to another."""

LEFTOVERS = ".*.cells.*"
"""What a killed process may leave beside the files: what was to replace one."""

Mask = npt.NDArray[np.bool_]


class Stamp(NamedTuple):
    """What changes when a file is replaced or written to."""

    inode: int
    size: int
    mtime_ns: int


class CellFile:
    """A file of one call, mapped.

    Attributes:
        present: [n_experts], those whose bytes are there and right.
        held: all places as one run for the kernels; of use are those in `present`.
    """

    def __init__(self, path: Path, call: ExpertCall, *, writable: bool) -> None:
        """Open it; if writable, made if need be.

        Raises:
            LocalError: it cannot be opened, or is not as large as the manifest says.
        """
        self.path = path
        self.call = call
        self.present: Mask = np.zeros(call.n_experts, np.bool_)
        self._starts, self._size = _layout(call)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, 0o644)
        except OSError as error:
            raise cannot(path, "opened", error) from None
        try:
            if writable and os.fstat(self._fd).st_size != self._size:
                os.ftruncate(self._fd, 0)
                os.ftruncate(self._fd, self._size)
            if os.fstat(self._fd).st_size != self._size:
                raise LocalError(f"{path}: is not as large as its model's manifest says; remove it")
            self._map = memoryview(mmap.mmap(self._fd, self._size, access=mmap.ACCESS_READ))
        except OSError as error:
            os.close(self._fd)
            raise cannot(path, "made", error) from None
        except LocalError:
            os.close(self._fd)
            raise
        self.held = self._hold()

    @property
    def temporary(self) -> str:
        """How names of files begin that are there only while this one is worked on (`LEFTOVERS`)."""
        return f".{self.path.name}."

    def stamp(self) -> Stamp:
        status = os.fstat(self._fd)
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def look(self) -> None:
        """Find out which experts are there, by their digests."""
        for expert in range(self.call.n_experts):
            self.present[expert] = expert_digest(self._parts(expert)) == self.call.digest(expert)

    def write(self, expert: int, offset: int, data: memoryview) -> None:
        """Put bytes of an expert that is not there yet in their place; they must be proven, others may read.

        Args:
            offset: of the bytes in the expert, its tensors one after another in the manifest's order.

        Raises:
            LocalError: the disk is full, or fails.
        """
        for place, part in self._places(expert, offset, data):
            while part:
                try:
                    written = os.pwrite(self._fd, part, place)
                except OSError as error:
                    raise cannot(self.path, "written", error) from None
                place, part = place + written, part[written:]

    def sync(self) -> Stamp:
        """Make what was written until now survive a power cut; the stamp as of then."""
        try:
            os.fsync(self._fd)
            return self.stamp()
        except OSError as error:
            raise cannot(self.path, "written", error) from None

    def without(self, experts: Iterable[int]) -> CellFile:
        """Replace the file by one that lacks these experts. Who has mapped the old one keeps it as it was."""
        temporary = self.path.with_name(self.temporary + secrets.token_hex(4))
        gone = set(experts)
        copy = CellFile(temporary, self.call, writable=True)
        try:
            for expert in np.flatnonzero(self.present):
                if int(expert) not in gone:
                    offset = 0
                    for part in self._parts(int(expert)):
                        for start in range(0, len(part), COPY_BYTES):
                            piece = part[start : start + COPY_BYTES]
                            copy.write(int(expert), offset + start, piece)
                        offset += len(part)
                    copy.present[expert] = True
            copy.sync()
            temporary.replace(self.path)
            copy.path = self.path
        except BaseException:
            copy.close()
            temporary.unlink(missing_ok=True)
            raise
        return copy

    def close(self) -> None:
        """Give the file up. Its memory goes with the last view of it, as that of runs still in use."""
        os.close(self._fd)
        del self._map

    def _hold(self) -> HeldExperts:
        call = self.call
        tensors = {}
        for tensor, start in zip(call.tensors, self._starts, strict=True):
            view = self._map[start : start + call.n_experts * tensor.bytes_per_expert]
            data = np.frombuffer(view, np.uint8)
            tensors[tensor.role] = HeldTensor(tensor.type, (*tensor.shape, call.n_experts), data)
        return HeldExperts(call.recipe, tensors, 0, call.n_experts, call.n_in, call.n_out)

    def _parts(self, expert: int) -> Iterator[memoryview]:
        """An expert's tensors, in the manifest's order."""
        for tensor, start in zip(self.call.tensors, self._starts, strict=True):
            size = tensor.bytes_per_expert
            yield self._map[start + expert * size : start + (expert + 1) * size]

    def _places(self, expert: int, offset: int, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Where in the file the pieces of an expert's bytes belong."""
        for tensor, start in zip(self.call.tensors, self._starts, strict=True):
            size = tensor.bytes_per_expert
            if offset < size and data:
                yield start + expert * size + offset, data[: size - offset]
            data = data[max(0, size - offset) :]
            offset = max(0, offset - size)


def cannot(path: Path, what: str, error: OSError) -> LocalError:
    return LocalError(
        f"{path}: cannot be {what}: {error.strerror}; make room, or choose another store (store in the "
        f"config, --store or $PANAL_STORE)"
    )


def _layout(call: ExpertCall) -> tuple[list[int], int]:
    """Where each tensor of a call begins, in the manifest's order, and the file's size."""
    starts, end = [], 0
    for tensor in call.tensors:
        starts.append(end)
        end += -(-call.n_experts * tensor.bytes_per_expert // ALIGNMENT) * ALIGNMENT
    return starts, end
