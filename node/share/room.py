"""Whether a disk has room for what is to be fetched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from node.model.gguf.writer import DISK_MARGIN_BYTES
from node.sizes import size_text
from routing.errors import LocalError


def require_room(needed: Mapping[Path, int]) -> None:
    """Refuse to begin what the disks cannot hold. Folders are made.

    Args:
        needed: bytes by folder; folders of one disk are counted together.

    Raises:
        LocalError: says how much is needed and how much is free.
    """
    disks: dict[int, tuple[Path, int]] = {}
    for folder, n_bytes in needed.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            disk = folder.stat().st_dev
        except OSError as error:
            raise LocalError(f"{folder}: cannot be used: {error.strerror}") from None
        first, before = disks.get(disk, (folder, 0))
        disks[disk] = (first, before + n_bytes)
    for folder, n_bytes in disks.values():
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise LocalError(f"{folder}: cannot be used: {error.strerror}") from None
        if n_bytes and n_bytes + DISK_MARGIN_BYTES > free:
            raise LocalError(
                f"{folder}: {size_text(n_bytes)} are to be fetched, {size_text(free)} are free there; make "
                "room, or choose another folder (-o DIR; --store DIR for the trunk)"
            )
