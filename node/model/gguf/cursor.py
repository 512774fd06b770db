"""Reading forward through a file's header without trusting a single length in it."""

from __future__ import annotations

import struct
from io import FileIO
from pathlib import Path

from node.model.gguf.errors import GGUFError

WINDOW_BYTES = 1 << 18  # read at once: few system calls for a big tokenizer, nothing for a broken file

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderCursor:
    """A position in an open file, and a small window of its bytes.

    Reads the file and does not map it, so a file that shrinks meanwhile is an error here and not a
    SIGBUS.
    """

    def __init__(self, file: FileIO, path: Path, file_size: int) -> None:
        self._file = file
        self._path = path
        self._size = file_size
        self._window = b""
        self._window_start = 0
        self.position = 0

    @property
    def remaining(self) -> int:
        return self._size - self.position

    def error(self, what: str, at: int | None = None) -> GGUFError:
        where = self.position if at is None else at
        return GGUFError(
            f"{self._path}: broken GGUF: {what} (at byte {where} of {self._size}): get or convert it again"
        )

    def require(self, count: int, what: str) -> None:
        """Refuse a claim of `count` more bytes than the file has, before anything is allocated."""
        if count > self.remaining:
            raise self.error(f"{what} needs {count} bytes, the file has {self.remaining} left")

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes. The caller has already checked `count` against its own limit."""
        self.require(count, what)
        start = self.position - self._window_start
        if start + count > len(self._window):
            self._fill(count)
            start = 0
        self.position += count
        return self._window[start : start + count]

    def take_direct(self, count: int, what: str) -> bytes:
        """As `take`, for long pieces: read once into their own memory, past the window."""
        self.require(count, what)
        data = self._read(count)
        if len(data) != count:
            raise self.error("the file shrank while it was read")
        self.position += count
        return data

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def end_of_strings(self, count: int, limit: int, what: str) -> int:
        """Where an array of `count` strings ends, from the position on, which stays.

        Args:
            limit: bytes the whole array may have.
        """
        first = self.position
        stop = min(self._size, first + limit)
        unpack = _U64.unpack_from
        window, last = self._window, len(self._window) - 8
        offset = first - self._window_start
        done = 0
        # A tokenizer passes here 800,000 times: what lies past the window is looked at only there.
        for done in range(count):  # noqa: B007 (its last value is in the error)
            if offset > last:
                self.position = self._window_start + offset
                if self.position + 8 > stop:
                    break
                self._fill(8)
                window, last, offset = self._window, len(self._window) - 8, 0
            offset += 8 + unpack(window, offset)[0]
        else:
            done = count
            self.position = self._window_start + offset
        end, self.position = self.position, first
        if done == count and end <= stop:
            return end
        if stop == self._size:
            raise self.error(f"{what} runs past the end of the file after {done} of {count} items")
        raise self.error(f"{what} is longer than {limit} bytes")

    def _fill(self, count: int) -> None:
        wanted = min(max(count, WINDOW_BYTES), self._size - self.position)
        self._window = self._read(wanted)
        self._window_start = self.position
        if len(self._window) < count:
            raise self.error("the file shrank while it was read")

    def _read(self, count: int) -> bytes:
        self._file.seek(self.position)
        return self._file.read(count)
