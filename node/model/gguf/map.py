"""A model's tensors as views of read-only maps: no copies, no memory of our own (RssAnon)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.split import ModelFile, PartFile


class MappedModel:
    """All parts of a model mapped; a context manager.

    A file that is replaced after `open_model` read it is refused here; one that is replaced later
    stays readable as it was (the map holds the old file). One that is shrunk or written to in place
    while mapped cannot be guarded against: reading past its new end kills the process (SIGBUS).
    `check_unchanged` tells of it where that is in time.
    """

    def __init__(self, model: ModelFile) -> None:
        """Map every part.

        Raises:
            GGUFError: a part can't be opened, or is not the file whose header was read.
        """
        self.model = model
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            for part in model.parts:
                mapped = _map_part(part)
                self._maps.append(mapped)
                self._views.append(memoryview(mapped))
            undo.pop_all()

    def tensor_view(self, name: str) -> memoryview:
        """The bytes of a tensor, read-only, without a copy. Valid until it is released, also past `close`.

        Raises:
            GGUFError: there is no such tensor.
        """
        tensor = self.model.tensors.get(name)
        if tensor is None:
            raise GGUFError(f"{self.model.path}: has no tensor {shown(name)}")
        return self._views[tensor.part][tensor.offset : tensor.offset + tensor.n_bytes]

    def check_unchanged(self) -> None:
        """One `stat` a part: refuse to go on with a file that was changed, shrunk or replaced.

        Raises:
            GGUFError: names the part.
        """
        for part, mapped in zip(self.model.parts, self._maps, strict=True):
            try:
                if mapped.size() == part.stamp.size and _is_same(part, part.path.stat()):
                    continue
            except OSError as error:
                raise GGUFError(
                    f"{part.path}: {error.strerror} since it was opened: put it back, restart"
                ) from error
            raise GGUFError(f"{part.path}: was changed since it was opened: restart to use it")

    def close(self) -> None:
        """Give up the maps. The memory of views still held goes with the last of them."""
        views: Sequence[memoryview | mmap.mmap] = [*self._views, *self._maps]
        for view in views:
            try:
                view.release() if isinstance(view, memoryview) else view.close()
            except BufferError:  # someone still holds a view of it: Python unmaps when that one goes
                pass
        self._views.clear()
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_same(part: PartFile, status: os.stat_result) -> bool:
    stamp = part.stamp
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) == (
        stamp.device,
        stamp.inode,
        stamp.size,
        stamp.mtime_ns,
    )


def _map_part(part: PartFile) -> mmap.mmap:
    try:
        with part.path.open("rb") as file:
            if not _is_same(part, os.fstat(file.fileno())):
                raise GGUFError(
                    f"{part.path}: was changed while it was opened: try again when it is complete"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise GGUFError(
            f"{part.path}: cannot map: {error}: check the file and the limit of open files"
        ) from error
