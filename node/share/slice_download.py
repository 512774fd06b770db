"""A slice file that is being fetched: it has another name until it is complete.

    DIR/<name>.part/data     the slice file, with holes where nothing has come yet
    DIR/<name>.part/lists-*  lists of digests of its experts (node.share.growing)
    DIR/<name>.part/lock     held by the process that fetches
    DIR/<name>               the slice file, complete: the same bytes that `panal slice cut` would write

The name is made of the model id and the ranges only: nothing that a peer says is in it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from node.model.manifest import ExpertCall, Manifest
from node.model.slice_file import plan_slice, read_slice
from node.model.store import SHORT_ID
from node.share.blob import Blob, Part
from node.share.download import Download, Key
from node.share.folder_lock import lock_folder
from node.share.growing import GrowingBlob, GrowingFile, Places, cannot
from routing.errors import LocalError

WORK_SUFFIX = ".part"

_NAME = re.compile(
    r"(?P<id>[0-9a-f]{12})-layers-(?P<l0>\d{1,5})-(?P<l1>\d{1,5})-experts-(?P<e0>\d{1,5})-(?P<e1>\d{1,5})\.gguf"
)


class SliceDownload:
    """One slice file; a context manager that holds its lock.

    Attributes:
        target: the file, once it is complete.
        is_there: it is complete already, from before.
        n_bytes: of its experts.
    """

    def __init__(self, folder: Path, manifest: Manifest, layers: range, experts: range) -> None:
        """
        Raises:
            LocalError: the model has no such layers or experts; another file has the name.
        """
        self.manifest = manifest
        self.plan = plan_slice(manifest, layers, experts)
        self.target = folder / slice_name(manifest.model_id(), layers, experts)
        self.work = folder / f"{self.target.name}{WORK_SUFFIX}"
        self._layers, self._experts = layers, experts
        self._blobs: dict[Key, GrowingBlob] = {}
        self._file: GrowingFile | None = None
        self._lock: int | None = None
        self.n_bytes = sum(
            len(self.plan.runs[call.group]) * call.bytes_per_cell
            for call in manifest.calls
            if call.layer in layers
        )
        self.is_there = self.target.exists()
        if self.is_there:
            self._check_target()

    @property
    def cells(self) -> int:
        """Experts of layers in it."""
        return sum(layer in self._layers for layer in self.manifest.layers()) * len(self._experts)

    @property
    def lacking_bytes(self) -> int:
        """What has yet to come."""
        return sum(blob.lacking_bytes for blob in self._blobs.values())

    def open(self, progress: Callable[[int], None] = lambda n_bytes: None) -> None:
        """Make the file if need be, and find out what is there.

        Args:
            progress: told of bytes looked at since its last call.

        Raises:
            LocalError: another process fetches it, or the folder cannot be used.
        """
        self._lock = lock_folder(self.work)
        layout = self.plan.lay_out(self.target)
        self._file = GrowingFile(self.work / "data", layout.total)
        self._file.write(0, memoryview(layout.head))
        starts = {
            (call.layer, call.group, role): start
            for (call, role), start in zip(self.plan.calls, layout.starts, strict=True)
        }
        for call in self.manifest.calls:
            if call.layer not in self._layers:
                continue
            blob = Blob(Part(call.bytes_per_cell, call.digest(expert)) for expert in range(call.n_experts))
            grown = GrowingBlob(
                blob,
                self.plan.runs[call.group],
                self._file,
                _places(call, self.plan.runs[call.group], starts),
                self.work / f"lists-{call.layer}-{call.index}",
            )
            self._blobs[Key(None, call.layer, call.index)] = grown
            grown.look(progress)

    def add_to(self, download: Download) -> None:
        """Have it fetched."""
        for key, blob in self._blobs.items():
            download.add(key, blob)

    def finish(self) -> bool:
        """Give it its name if it is complete; whether it is.

        Raises:
            LocalError: the disk fails.
        """
        if self._file is None or not all(blob.is_complete for blob in self._blobs.values()):
            return False
        self._file.sync()
        try:
            (self.work / "data").replace(self.target)
            sync_folder(self.target.parent)
        except OSError as error:
            raise cannot(self.target, "written", error) from None
        self.is_there = True
        self.close()
        shutil.rmtree(self.work, ignore_errors=True)
        return True

    def close(self) -> None:
        """Give the files up. What has come stays."""
        for blob in self._blobs.values():
            blob.close()
        self._blobs.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_target(self) -> None:
        piece = read_slice(self.target)
        found = (piece.model_id, piece.layers, piece.experts)
        if found != (self.manifest.model_id(), self._layers, self._experts):
            raise LocalError(f"{self.target}: is another slice than its name says; move it away")


def slice_name(model_id: str, layers: range, experts: range) -> str:
    """The name of a fetched slice file."""
    return (
        f"{model_id[:SHORT_ID]}-layers-{layers.start}-{layers.stop - 1}"
        f"-experts-{experts.start}-{experts.stop - 1}.gguf"
    )


def parse_slice_name(name: str) -> tuple[str, range, range] | None:
    """The beginning of the model id, layers and experts; None if it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layers = range(int(match["l0"]), int(match["l1"]) + 1)
    return match["id"], layers, range(int(match["e0"]), int(match["e1"]) + 1)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _places(call: ExpertCall, run: range, starts: Mapping[tuple[int, str, str], int]) -> Places:
    """Where in a slice file the bytes of a call's experts are, which lie there tensor by tensor."""
    placed = [
        (tensor.bytes_per_expert, starts[call.layer, call.group, tensor.role]) for tensor in call.tensors
    ]

    def places(offset: int, size: int) -> Iterator[tuple[int, int]]:
        while size:
            expert, within = divmod(offset, call.bytes_per_cell)
            for one, start in placed:
                if within >= one:
                    within -= one
                    continue
                count = min(one - within, size)
                if not count:
                    break
                yield start + (expert - run.start) * one + within, count
                offset, size, within = offset + count, size - count, 0

    return places
