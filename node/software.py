"""What this node says that it runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version


@cache
def software() -> str:
    """Name and version."""
    return f"panal {version('panal')}"
