"""Cells as runs."""

from __future__ import annotations

Runs = list[tuple[int, int, list[tuple[int, int]]]]
"""Cells, compactly: [first layer, last layer, [[first expert, last expert], ...]] each, both included; as in
`/panal/slices/1`."""
