"""The headers that every response gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate

HeaderList = list[tuple[bytes, bytes]]

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""A page of ours loads nothing that is not ours, and nobody frames it."""

DEFAULTS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""What a handler does not set itself."""


def complete(headers: Iterable[tuple[bytes, bytes]], now: float, *, closes: bool) -> HeaderList:
    """A response's headers with what is missing.

    Args:
        now: seconds since 1970.
        closes: the connection ends with this response.
    """
    found = [(name.lower(), value) for name, value in headers]
    names = {name for name, _ in found}
    found += [(name, value) for name, value in DEFAULTS if name not in names]
    found.append((b"date", formatdate(now, usegmt=True).encode()))
    if closes:
        found = [(name, value) for name, value in found if name != b"connection"]
        found.append((b"connection", b"close"))
    return found
