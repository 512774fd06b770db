"""What a line carries, as people write it: "20Mbit" a second. Pure."""

from __future__ import annotations

import re

from routing.errors import LocalError

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

MAX_BITS = 1e12
"""A terabit a second: more than any line carries, and a slip of the keyboard is told."""

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([kmg]bit)(?:/s)?", re.ASCII | re.IGNORECASE)


class RateError(LocalError):
    """A text that is no rate."""


def parse_rate(text: str) -> float:
    """Bits a second: "20Mbit", "1.5 Gbit/s", "500kbit".

    Raises:
        RateError: anything else, nothing at all, and more than there can be.
    """
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * UNITS[match[2].lower()] if match else 0.0
    if not 0 < rate <= MAX_BITS:
        raise RateError(f'{text[:40]!r} is no rate; write it like "20Mbit", "500kbit"')
    return rate
