"""Plain-text tables: columns two spaces apart, numbers to the right, nothing a pipe could not read."""

from __future__ import annotations

import re
from collections.abc import Sequence

GAP = "  "

_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(\.[0-9]+)?(e[-+]?[0-9]+)?( ?[%A-Za-z/]{1,12})?", re.ASCII)


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table without a closing newline.

    Args:
        header: one title a column; all empty leaves the line out (a table of names and values).
        rows: as many cells each as `header`; a cell is shown by str(), None as "-".

    A column stands to the right if every cell of it is a number, with or without a unit.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under {len(header)} titles")
    columns = range(len(header))
    right = [is_of_numbers([row[i] for row in cells]) for i in columns]
    lines = ([list(header)] if any(header) else []) + cells
    widths = [max((len(line[i]) for line in lines), default=0) for i in columns]
    return "\n".join(
        GAP.join(line[i].rjust(widths[i]) if right[i] else line[i].ljust(widths[i]) for i in columns).rstrip()
        for line in lines
    )


def is_of_numbers(cells: Sequence[str]) -> bool:
    """Whether a column stands to the right: every cell is a number, with or without a unit, or "-"."""
    return bool(cells) and all(cell == "-" or _NUMBER.fullmatch(cell) is not None for cell in cells)
