"""What a process has in memory, by kind, from /proc (Linux)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True)
class Resident:
    """Bytes of a process in memory.

    Attributes:
        anonymous: RssAnon: its own, which the system cannot drop.
        files: RssFile: pages of mapped files that it has touched; the page cache's, shared and droppable.
    """

    anonymous: int
    files: int


@dataclass(frozen=True)
class ServerMemory:
    """An expert server at three moments.

    Attributes:
        cells: bytes of the experts it serves, all mapped.
        listening: when it had mapped them; decoded: after the decode rounds, which read nearly all of them;
        prefilled: after prompts, whose rows need scratch memory of the kernels and of the wire.
    """

    cells: int
    listening: Resident
    decoded: Resident
    prefilled: Resident


def resident(pid: int) -> Resident:
    """Zeros where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return Resident(0, 0)
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}

    def size(field: str) -> int:
        return int(found[field].split()[0]) * KIB if field in found else 0

    return Resident(size("RssAnon"), size("RssFile"))
