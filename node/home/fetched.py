"""Cells that came from peers, in the store: what is there, what is proven, and what is to go again.

    models/<model id>/cells/<layer>-<group>.cells    one file a MoE call (node.home.cell_file)
    models/<model id>/cells/seals.json               what was found in files that have not changed since
    models/<model id>/cells/lock                     held by the process that writes here

An expert counts only if its bytes were seen to have its digest. A seal remembers that for a file as long as
nobody writes to it; a file without a valid one, as a kill leaves it, is read through when it is opened. What
comes is put into a file only once it is proven (node.home.incoming). So nothing half-written or wrong is ever
used, by this process or by another that reads the same files, and what was complete is not fetched twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from node.home.call_bits import CallBits, CallKey, cells_of, numbers, run_bits
from node.home.cell_file import LEFTOVERS, CellFile, cannot
from node.home.incoming import IncomingCells
from node.home.seals import SEALS_NAME, Seals
from node.model.gguf.writer import DISK_MARGIN_BYTES
from node.model.manifest import ExpertCall, Manifest
from node.serve.cells import Cells
from node.share import fetch
from node.share.folder_lock import lock_folder
from node.share.requests import CellsAsked
from node.sizes import size_text
from routing.errors import LocalError
from routing.wire import cells as wire
from routing.wire.experts import Refusal

IN_USE = (
    "another panal fetches cells into it; wait until it is done, or give this one another store (store in "
    "the config, --store or $PANAL_STORE)"
)


class FetchedCells:
    """The cells of one model that were fetched; a context manager.

    Attributes:
        folder: where they are.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        writable: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Open what is there. Reads files without a valid seal through.

        Args:
            folder: of the model in the store (`StoredModel.folder`); "cells" is put below it.
            writable: cells are to be fetched or forgotten; one process at a time.
            progress: told of bytes looked at, and of how many there are.

        Raises:
            LocalError: another process writes here, or the folder cannot be used.
        """
        self.folder = folder / "cells"
        self.manifest = manifest
        self.model_id = manifest.model_id()
        self._calls: dict[CallKey, ExpertCall] = {(call.layer, call.index): call for call in manifest.calls}
        self._files: dict[CallKey, CellFile] = {}
        self._unsealed: set[CallKey] = set()
        self._lock = lock_folder(self.folder, IN_USE, cannot) if writable else None
        try:
            if writable:
                self._remove_leftovers()
            self._seals = Seals(self.folder)
            self._open_files(progress)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FetchedCells:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what is there ---

    def bits(self, key: CallKey) -> int:
        """The experts of a call that are there."""
        file = self._files.get(key)
        return 0 if file is None else sum(1 << int(expert) for expert in np.flatnonzero(file.present))

    def lacks(self, cells: CallBits) -> dict[CallKey, int]:
        """What of these cells is not there, in the same order."""
        lacking = {key: bits & ~self.bits(key) for key, bits in cells.items()}
        return {key: bits for key, bits in lacking.items() if bits}

    def bytes_of(self, cells: CallBits) -> int:
        """What these cells take."""
        return sum(bits.bit_count() * self._calls[key].bytes_per_cell for key, bits in cells.items())

    @property
    def n_bytes(self) -> int:
        """What all that is there takes."""
        return self.bytes_of({key: self.bits(key) for key in self._files.copy()})

    def add_to(self, cells: Cells, only: CallBits | None = None) -> None:
        """Have the kernels' side hold what is there; again later, it takes what has come meanwhile.

        On any thread: others may add files, or remove them, at the same time.

        Args:
            only: none but these.
        """
        held, masks = {}, {}
        for key, file in self._files.copy().items():
            mask = file.present.copy()
            if only is not None:
                mask &= [bool(only.get(key, 0) >> expert & 1) for expert in range(len(mask))]
            if mask.any():
                held[file.call.layer, file.call.group] = file.held
                masks[file.call.layer, file.call.group] = mask
        if held:
            cells.add(self.model_id, self.manifest, held, masks)

    # --- what comes and goes ---

    def require_room(self, n_bytes: int) -> None:
        """Refuse to begin what the disk cannot hold.

        Raises:
            LocalError: says how much is needed and how much is there.
        """
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise cannot(self.folder, "used", error) from None
        if n_bytes + DISK_MARGIN_BYTES > free:
            raise LocalError(
                f"{self.folder}: {size_text(n_bytes)} are to be fetched, {size_text(free)} are free there; "
                "make room, or give less memory to the home set"
            )

    def incoming(self, key: CallKey, first: int, count: int) -> IncomingCells:
        """A place for experts of a call that are not there yet.

        Raises:
            LocalError: the file cannot be made.
        """
        assert self._lock is not None, "opened for reading only"
        assert not self.bits(key) & run_bits(first, count), "what is there is never written again"
        self._unsealed.add(key)
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = CellFile(self._path(key), self._calls[key], writable=True)
        return IncomingCells(file, first, count)

    def fit(self, key: CallKey, first: int, count: int) -> int:
        """How many neighbours are asked for together: at least one."""
        return min(count, max(1, fetch.ASK_BYTES // self._calls[key].bytes_per_cell), wire.MAX_CELLS)

    def taken(self, key: CallKey, first: int, count: int, peer_id: str) -> None:
        """These are being asked of a peer."""

    def given_back(self, key: CallKey, first: int, count: int, peer_id: str) -> None:
        """These are not asked of it any more."""

    def request(
        self, key: CallKey, first: int, count: int, offset: int, length: int, call_id: int
    ) -> CellsAsked:
        """How a range of the bytes of experts is asked for."""
        model_id = bytes.fromhex(self.model_id)
        return CellsAsked(wire.CellsRequest(model_id, *key, call_id, first, count, offset, length))

    def missed(self, key: CallKey, refusal: Refusal) -> int:
        """The experts that a refusal names, as bits."""
        return sum(1 << expert for expert in set(refusal.missing))

    def note(self, key: CallKey, experts: Iterable[int]) -> None:
        """These have come, complete and right (`IncomingCells.complete`)."""
        self._unsealed.add(key)
        for expert in experts:
            self._files[key].present[expert] = True

    def seal(self) -> None:
        """Have what is there survive a power cut, and be believed next time. May wait for the disk.

        Raises:
            LocalError: the disk fails.
        """
        for key in list(self._unsealed):
            file = self._files.get(key)
            self._unsealed.discard(key)  # before: what comes meanwhile unseals it again
            if file is not None:
                bits = self.bits(key)
                self._seals.put(file, file.sync(), bits)
        self._seals.write()

    def forget(self, experts: Mapping[int, Iterable[int]]) -> int:
        """Remove cells, named as for `cells_of`, and give their room back; returns bytes.

        Runs that hold them stay valid for whoever has them, and see nothing of it; a new `Cells` is to take
        what is left (`add_to`). Not to be called while cells are being fetched.

        Raises:
            LocalError: the disk is full (the file of a layer is written anew), or fails.
        """
        assert self._lock is not None, "opened for reading only"
        before = self.n_bytes
        gone = cells_of(self.manifest, experts)
        for layer in {layer for layer, _ in gone}:
            kept = self.bits((layer, 0)) & ~gone.get((layer, 0), 0)
            needed = cells_of(self.manifest, {layer: numbers(kept)})
            for key in [key for key in self._files if key[0] == layer]:
                self._keep(key, self.bits(key) & ~gone.get(key, 0) | self.bits(key) & needed.get(key, 0))
        self._seals.write()
        return before - self.n_bytes

    def close(self) -> None:
        """Seal what is not sealed, and give the files up; runs in use stay valid."""
        try:
            if self._lock is not None and self._unsealed:
                self.seal()
        except LocalError:
            pass  # only a shortcut: without it the files are read through next time
        finally:
            for file in self._files.values():
                file.close()
            self._files.clear()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    # --- inside ---

    def _remove_leftovers(self) -> None:
        """What a process that was killed had not finished. Nobody else is at work here: the lock is ours."""
        for path in [*self.folder.glob(LEFTOVERS), *self.folder.glob(f".{SEALS_NAME}.*")]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise cannot(path, "removed", error) from None

    def _open_files(self, progress: Callable[[int, int], None]) -> None:
        to_look: list[tuple[CallKey, CellFile]] = []
        for key, call in self._calls.items():
            path = self._path(key)
            if not path.is_file():
                continue
            try:
                file = CellFile(path, call, writable=self._lock is not None)
            except LocalError:
                if self._lock is not None:
                    raise
                continue  # a file that is just being made
            self._files[key] = file
            experts = self._seals.experts(file)
            if experts is None:
                to_look.append((key, file))
            else:
                file.present[numbers(experts)] = True
        total = sum(file.call.n_experts * file.call.bytes_per_cell for _, file in to_look)
        done = 0
        for key, file in to_look:
            progress(done, total)
            file.look()
            self._unsealed.add(key)
            done += file.call.n_experts * file.call.bytes_per_cell
        if self._lock is not None and self._unsealed:
            self.seal()

    def _path(self, key: CallKey) -> Path:
        return self.folder / f"{key[0]}-{self._calls[key].group}.cells"

    def _keep(self, key: CallKey, kept: int) -> None:
        """Replace the file of a call by one with these experts only, or remove it."""
        file, gone = self._files[key], self.bits(key) & ~kept
        if not gone:
            return
        self._seals.drop(file)
        self._unsealed.discard(key)
        if kept:
            copy = self._files[key] = file.without(numbers(gone))
            self._seals.put(copy, copy.stamp(), kept)
        else:
            del self._files[key]
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                raise cannot(file.path, "removed", error) from None
        file.close()
