"""Tables on a terminal: by rich where there is one, as plain text elsewhere.

rich reads square brackets as markup and passes escape sequences on; so it is given `Text` alone, which it
shows as it is, and no text here holds anything unprintable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.cli.status_tables import Table
from node.cli.table import format_table, is_of_numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMN_CHARS = 28
"""A column wants as much as its longest cell needs, and not more than this: longer ones are wrapped."""

GAP = 2

STYLES = {"online": "green", "offline": "red", "error": "red", "warning": "yellow", "heard": "dim"}
"""Words that are shown in a colour where they stand alone."""


def show(tables: Sequence[Table]) -> None:
    """Print them."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False, markup=False, emoji=False)
        console.print(renderable(tables, console.width))
    else:
        print(plain(tables))


def plain(tables: Sequence[Table]) -> str:
    """All columns, for pipes and people without a terminal."""
    parts = []
    for table in tables:
        text = format_table(table.header, table.rows)
        parts.append(f"{table.title}\n{text}" if table.title else text)
    return "\n\n".join(parts)


def renderable(tables: Sequence[Table], width: int) -> RenderableType:
    """For rich.

    Args:
        width: of the terminal, in characters.
    """
    from rich.console import Group

    parts: list[RenderableType] = []
    for number, table in enumerate(tables):
        if number:
            parts.append("")
        parts.append(_rich_table(table, width))
    return Group(*parts)


def _rich_table(table: Table, width: int) -> RenderableType:
    from rich.table import Table as RichTable
    from rich.text import Text

    titled = any(table.header)
    made = RichTable(
        title=Text(table.title, "bold") if table.title else None,
        title_justify="left",
        box=None,
        show_header=titled,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    shown = _columns(table, width)
    for column in shown:
        is_name = not titled and column == 0
        made.add_column(
            Text(table.header[column], "dim"),
            style="bold" if is_name else "",
            no_wrap=is_name,
            overflow="fold",  # an address is to be copied
            justify="right" if titled and is_of_numbers([row[column] for row in table.rows]) else "left",
        )
    for row in table.rows:
        made.add_row(*(Text(row[column], STYLES.get(row[column], "")) for column in shown))
    return made


def _columns(table: Table, width: int) -> list[int]:
    """Those that there is room for."""
    wants = [
        min(max(map(len, (title, *(row[column] for row in table.rows)))), COLUMN_CHARS) + GAP
        for column, title in enumerate(table.header)
    ]
    left_out: set[int] = set()
    for spare in table.spare:
        if sum(want for column, want in enumerate(wants) if column not in left_out) <= width + GAP:
            break
        left_out.add(spare)
    return [column for column in range(len(wants)) if column not in left_out]
