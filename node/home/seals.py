"""Which files of fetched cells were found right, and when: what spares reading them through again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from node.home.cell_file import CellFile, Stamp, cannot
from node.model.store import replace_file

SEALS_NAME = "seals.json"

MAX_SEALS_BYTES = 1 << 20
"""Of seals.json: 512 calls with as many experts are 100 KB."""


class Seal(msgspec.Struct, frozen=True):
    """What was found in a file.

    Attributes:
        stamp: of the file then.
        experts: that were there and right, as bits in hexadecimal.
    """

    stamp: Stamp
    experts: str


class Seals:
    """The seals of a folder. One that is missing, damaged or of a file changed since is as good as none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SEALS_NAME
        self._seals = self._read()

    def experts(self, file: CellFile) -> int | None:
        """What a file is known to hold, as bits; None if it must be read through."""
        seal = self._seals.get(file.path.name)
        if seal is None or seal.stamp != file.stamp():
            return None
        try:
            experts = int(seal.experts, 16)
        except ValueError:
            return None
        return experts if 0 <= experts < 1 << file.call.n_experts else None

    def put(self, file: CellFile, stamp: Stamp, experts: int) -> None:
        """These experts, as bits, were found right in a file that had this stamp afterwards."""
        self._seals[file.path.name] = Seal(stamp, f"{experts:x}")

    def drop(self, file: CellFile) -> None:
        self._seals.pop(file.path.name, None)

    def write(self) -> None:
        """
        Raises:
            LocalError: the disk is full, or fails.
        """
        try:
            replace_file(self._path, msgspec.json.encode(self._seals))
        except OSError as error:
            raise cannot(self._path, "written", error) from None

    def _read(self) -> dict[str, Seal]:
        try:
            if self._path.stat().st_size > MAX_SEALS_BYTES:
                return {}
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Seal])
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return {}
