"""Experts on their way from a peer: held apart until their digests are right, then put in their places.

Another process may compute with what is in a file as soon as it looks right there. So nothing unproven is
ever in a place, and what a bad source sends costs no more than the time it took.
"""

from __future__ import annotations

from tempfile import SpooledTemporaryFile

from node.home.cell_file import COPY_BYTES, CellFile, cannot
from node.model.chunks import ContentHasher
from node.share import target

IN_MEMORY_BYTES = 4 << 20
"""Of an expert that is coming: most are smaller. Of a larger one all is in a file without a name beside the
others, so that a handful of sources with experts of 100 MB each do not take the memory."""


class IncomingCells:
    """Experts of one call on their way from a peer, in one run, byte by byte in order.

    Attributes:
        complete: those that have come, are right and in their places. They are not `present` yet: that is for
            the thread that reads it to note.
    """

    def __init__(self, file: CellFile, first: int, count: int) -> None:
        self.file = file
        self.first = first
        self.count = count
        self.size = count * file.call.bytes_per_cell
        self.complete: list[int] = []
        self._taken = 0
        self._coming: _Coming | None = None

    def take(self, data: memoryview) -> None:
        """The next bytes of the run's blob. Whatever is raised, `complete` says what came before it.

        Raises:
            WrongBytes: an expert is there to the end and not what the manifest says.
            LocalError: the disk is full, or fails.
        """
        cell_bytes = self.file.call.bytes_per_cell
        while data:
            number, within = divmod(self._taken, cell_bytes)
            piece, data = data[: cell_bytes - within], data[cell_bytes - within :]
            if self._coming is None:
                self._coming = _Coming(self.file, self.first + number)
            self._coming.add(piece)
            self._taken += len(piece)
            if within + len(piece) == cell_bytes:
                self._coming.put_in_place()
                self.complete.append(self.first + number)
                self.close()

    def close(self) -> None:
        """Give up what has come of an expert that is not complete."""
        if self._coming is not None:
            self._coming.close()
            self._coming = None


class _Coming:
    """One expert, as far as it has come."""

    def __init__(self, file: CellFile, expert: int) -> None:
        self._file = file
        self._expert = expert
        self._hasher = ContentHasher()
        self._bytes = SpooledTemporaryFile(  # noqa: SIM115 - it lives as long as this object
            IN_MEMORY_BYTES, dir=str(file.path.parent), prefix=file.temporary
        )

    def add(self, piece: memoryview) -> None:
        self._hasher.update(piece)
        try:
            self._bytes.write(piece)
        except OSError as error:
            raise cannot(self._file.path, "written", error) from None

    def put_in_place(self) -> None:
        if self._hasher.digest() != self._file.call.digest(self._expert):
            raise WrongBytes(self._file.call.layer, self._expert)
        offset = 0
        try:
            self._bytes.seek(0)
            while piece := self._bytes.read(COPY_BYTES):
                self._file.write(self._expert, offset, memoryview(piece))
                offset += len(piece)
        except OSError as error:
            raise cannot(self._file.path, "written", error) from None

    def close(self) -> None:
        try:
            self._bytes.close()
        except OSError:
            pass  # what a full disk has not taken yet; it is not wanted any more


class WrongBytes(target.WrongBytes):
    """What was sent as an expert is not that expert; the caller knows who sent it.

    Attributes:
        layer, expert: its numbers.
    """

    def __init__(self, layer: int, expert: int) -> None:
        super().__init__(f"expert {expert} of layer {layer}")
        self.layer = layer
        self.expert = expert
