"""Which slices are on this device: slice files, ones that are being fetched, and the cells of home sets.

STORE/slices.json names the slice files that were cut or fetched here; others are found where one looks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from node.home.fetched import FetchedCells
from node.inspection import runs
from node.model.gguf.errors import GGUFError
from node.model.slice_file import read_slice
from node.model.store import Store, replace_file
from node.share.folder_lock import lock_folder
from node.share.slice_download import WORK_SUFFIX, parse_slice_name
from routing.errors import LocalError

NAME = "slices.json"

MAX_NOTED = 4096
"""Names in slices.json; the oldest go."""


@dataclass(frozen=True)
class SliceHere:
    """Cells of a model on this device.

    Attributes:
        path: the file; of one that is being fetched, the name it will get; of a home set, its folder.
        kind: "file", "fetching" or "home".
        model_id: as far as it is known: 12 digits of one that is being fetched.
        layers, experts: as people write them; "" for a home set, whose cells lie anywhere.
        cells: experts of layers; of what is being fetched, all that it will have.
        n_bytes: on the disk.
        share: how much of it is there, 0 to 1; of what is being fetched about.
    """

    path: Path
    kind: str
    model_id: str
    layers: str
    experts: str
    cells: int | None
    n_bytes: int
    share: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "model_id": self.model_id,
            "layers": self.layers,
            "experts": self.experts,
            "cells": self.cells,
            "bytes": self.n_bytes,
            "complete": self.share >= 1,
            "share": round(self.share, 4),
        }


def note_slices(store: Store, paths: Iterable[Path]) -> None:
    """Remember slice files, so that they are found again; it is only a help."""
    known = _noted(store)
    new = [str(path.resolve()) for path in paths]
    kept = [path for path in known if path not in new] + new
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        replace_file(store.root / NAME, msgspec.json.encode(kept[-MAX_NOTED:]))
    except (OSError, UnicodeEncodeError):
        pass


def find_slices(store: Store, folders: Sequence[Path], files: Sequence[Path]) -> list[SliceHere]:
    """All slices that are known, or lie in these folders; a file that is none is passed over.

    Args:
        files: further ones that may be slices.
    """
    candidates = [*map(Path, _noted(store)), *files]
    for folder in folders:
        if not folder.is_dir():
            raise LocalError(f"{folder}: is no folder")
        candidates += sorted(folder.glob("*.gguf"))
        candidates += [path.with_name(path.name.removesuffix(WORK_SUFFIX)) for path in _unfinished(folder)]
    found: dict[Path, SliceHere] = {}
    for path in candidates:
        key = path.resolve()
        each = None if key in found else (_file(key) or _fetching(key))
        if each is not None:
            found[key] = each
    return [*sorted(found.values(), key=lambda each: str(each.path)), *_homes(store)]


def remove_slice(path: Path) -> int:
    """Remove a slice file, or what has come of one; returns the bytes that were freed.

    Raises:
        LocalError: it is no slice, is being fetched just now, or cannot be removed.
    """
    work = path if path.name.endswith(WORK_SUFFIX) else path.with_name(path.name + WORK_SUFFIX)
    name = work.name.removesuffix(WORK_SUFFIX)
    freed = 0
    if work.is_dir() and parse_slice_name(name) is not None:
        freed += sum(_on_disk(each) for each in work.iterdir())
        lock = lock_folder(work)
        try:
            shutil.rmtree(work)
        except OSError as error:
            raise LocalError(f"{work}: cannot be removed: {error.strerror}") from None
        finally:
            os.close(lock)
        if path == work or not path.exists():
            return freed
    read_slice(path)  # anything else is not ours to remove
    try:
        freed += _on_disk(path)
        path.unlink()
    except OSError as error:
        raise LocalError(f"{path}: cannot be removed: {error.strerror}") from None
    return freed


def remove_home(store: Store, model_id: str) -> int:
    """Remove the fetched cells of a model's home set; returns the bytes that were freed.

    Raises:
        LocalError: no such model, it has none, or another process uses them.
    """
    stored = store.get(model_id)
    folder = stored.folder / "cells"
    if not folder.is_dir():
        raise LocalError(f"model {model_id}: nothing of it was fetched for a home set")
    with FetchedCells(stored.folder, stored.manifest) as fetched:
        freed = fetched.n_bytes
        for path in folder.iterdir():
            if path.suffix == ".cells" or path.name == "seals.json":
                path.unlink()
    return freed


def _noted(store: Store) -> list[str]:
    try:
        return msgspec.json.decode((store.root / NAME).read_bytes(), type=list[str])
    except (OSError, ValueError):
        return []


def _unfinished(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.glob(f"*{WORK_SUFFIX}"))
        if parse_slice_name(path.name.removesuffix(WORK_SUFFIX)) is not None
    ]


def _file(path: Path) -> SliceHere | None:
    try:
        piece = read_slice(path)
    except (GGUFError, OSError):
        return None
    layers = sorted({name.layer for name in piece.tensors})
    experts = list(piece.experts)
    cells = len(layers) * len(experts)
    return SliceHere(path, "file", piece.model_id, runs(layers), runs(experts), cells, _on_disk(path), 1.0)


def _fetching(path: Path) -> SliceHere | None:
    """What has come of a slice file, by the room it takes: digests alone would tell exactly."""
    data = path.with_name(path.name + WORK_SUFFIX) / "data"
    parsed = parse_slice_name(path.name)
    try:
        size = data.stat().st_size
    except OSError:
        return None
    if parsed is None or not size:
        return None
    model_id, layers, experts = parsed
    n_bytes = _on_disk(data)
    share = min(n_bytes / size, 0.999)
    return SliceHere(
        path, "fetching", model_id, runs(list(layers)), runs(list(experts)), None, n_bytes, share
    )


def _homes(store: Store) -> list[SliceHere]:
    found = []
    for folder in sorted((store.root / "models").glob("*/cells")):
        files = list(folder.glob("*.cells"))
        n_bytes = sum(map(_on_disk, files))
        if not n_bytes:
            continue
        model_id = folder.parent.name
        cells: int | None = None
        try:
            stored = store.get(model_id)
            with FetchedCells(stored.folder, stored.manifest, writable=False) as fetched:
                n_bytes = fetched.n_bytes
                cells = sum(
                    fetched.bits((call.layer, 0)).bit_count()
                    for call in stored.manifest.calls
                    if not call.index
                )
        except LocalError:
            pass  # damaged, or an older panal's: it is there all the same
        found.append(SliceHere(folder, "home", model_id, "", "", cells, n_bytes, 1.0))
    return found


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
