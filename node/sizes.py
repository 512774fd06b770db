"""Amounts of memory as people write them: "4 GiB", "512MiB", or "50%" of something. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from routing.errors import LocalError

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}

MAX_BYTES = 1 << 50
"""A petabyte: no device has as much, and a slip of the keyboard is told."""

SHOWN_UNITS = ("TiB", "GiB", "MiB", "KiB")

_SIZE = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?([A-Za-z]{1,3}|%)", re.ASCII)


class SizeError(LocalError):
    """A text that is no amount of memory."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How much memory may be used. Exactly one of the two is set.

    Attributes:
        n_bytes: so many bytes.
        share: this share of a whole that `of` is told, above 0 and at most 1.
    """

    n_bytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> MemoryBudget:
        """Read "4 GiB", "512MB", "2.5 GB" or "50%"; the unit's case is free.

        Raises:
            SizeError: anything else, nothing at all, and more than there can be.
        """
        match = _SIZE.fullmatch(text.strip())
        if match is None or (match[2] != "%" and match[2].upper() not in UNITS):
            raise SizeError(f'{text[:80]!r} is no amount of memory; write it like "4 GiB", "512MB" or "50%"')
        amount = float(match[1])
        if match[2] == "%":
            if not 0 < amount <= 100:
                raise SizeError(f'"{text.strip()}" is no share; from above 0% to 100% is possible')
            return cls(share=amount / 100)
        n_bytes = round(amount * UNITS[match[2].upper()])
        if not 0 < n_bytes <= MAX_BYTES:
            raise SizeError(f'"{text.strip()}" is not an amount between a byte and {MAX_BYTES >> 40} TiB')
        return cls(n_bytes=n_bytes)

    def of(self, whole: int) -> int:
        """Bytes of a whole of so many; never more than it."""
        if self.share is not None:
            return min(whole, round(self.share * whole))
        assert self.n_bytes is not None
        return min(whole, self.n_bytes)

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.share * 100:.6g}%"
        assert self.n_bytes is not None
        return size_text(self.n_bytes)


def size_text(n_bytes: int) -> str:
    """A size as people read it, as exact as one decimal allows; what `parse` reads, but for rounding."""
    for unit in SHOWN_UNITS:
        if n_bytes >= UNITS[unit.upper()]:
            return f"{n_bytes / UNITS[unit.upper()]:.1f}".removesuffix(".0") + f" {unit}"
    return f"{n_bytes} B"
