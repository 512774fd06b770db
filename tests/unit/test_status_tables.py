"""A status on a terminal: what is said, in how much room, and that nothing in it is obeyed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from node.cli.status_tables import Table, duration, models_table, overview, peers_table, size
from node.cli.terminal import plain, renderable
from node.status import facts
from tests.status_facts import AT, node, offline, peer, status

HOSTILE = "[bold red]x[/] \x1b]0;owned\x07\x1b[2J \u202eevil\nline [link=file:///etc/passwd]y"


def on_terminal(tables: list[Table], width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False, markup=False, emoji=False)
    console.print(renderable(tables, width))
    return out.getvalue()


def test_overview_says_what_matters() -> None:
    text = plain(overview(status()))
    for words in (
        "kitchen, panal 0.1.0, up 1 h 0 min",
        "paused by hand",
        "public: uninvited packets arrive: 2 peers had some sent",
        "small: 16 cells, 3 GiB: layers 0-3: experts 0-3",
        "3.8 GiB in RAM: 295.6 MiB its own, 3.5 GiB of mapped files",
        "1 online (1 punched), 0 heard, 1 offline",
        "2 of 8 at work, 0 of 64 waiting",
        "24.38",
        "412 calls run again, 409 agreed; not asked: 1 (panal market audits)",
        "panal resume ends it",
    ):
        assert words in text


def test_peers_and_models() -> None:
    text = plain(peers_table(status()))
    assert (
        "punched" in text and "41.3 ms" in text and "0.2%" in text and "no sign of life for 4 PINGs" in text
    )
    table, reasons = peers_table(status())
    assert "no sign of life for 4 PINGs" not in plain([table])
    assert reasons.title == "offline" and reasons.rows[0][1] == "no sign of life for 4 PINGs"
    text = plain(models_table(status()))
    assert "4 x 8" in text and "0 to 2, mean 1.4" in text and "layer 3: experts 4-7" in text


def test_what_is_not_known_is_a_dash() -> None:
    bare = node(
        memory=facts.Memory(), load=facts.Load(), relay=facts.Relay(), serves=[], state="nothing", pause=None
    )
    text = plain(overview(status(node=bare, peers=[], models=[], gateway=None, answers=[], warnings=[])))
    assert "has nothing to serve" in text and "memory   -" in text
    assert plain(peers_table(status(peers=[])))
    assert plain(models_table(status(models=[])))
    never = offline("x", last_seen=None, name="")
    assert "never" in plain(peers_table(status(peers=[never])))


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_narrow_terminals_lose_columns_and_no_lines_are_too_long(width: int) -> None:
    for tables in (overview(status()), peers_table(status()), models_table(status())):
        for line in on_terminal(tables, width).splitlines():
            shown = _without_styles(line)
            assert len(shown.rstrip()) <= width
    names = _without_styles(on_terminal(peers_table(status()), width))
    assert "online" in names or width < 40


def test_a_whole_address_can_be_copied_from_a_narrow_terminal() -> None:
    text = _without_styles(on_terminal(overview(status()), 60))
    joined = "".join(line[9:].rstrip() for line in text.splitlines())
    assert node().addresses[0] in joined


@pytest.mark.parametrize("where", ["plain", "terminal"])
def test_hostile_names_are_inert(where: str) -> None:
    told = status(
        node=node(name=HOSTILE),
        peers=[
            peer(name=HOSTILE, version=HOSTILE, address=HOSTILE),
            offline("b", name=HOSTILE, reason=HOSTILE),
        ],
        warnings=[facts.Warning("peer", "warning", HOSTILE, HOSTILE, AT)],
    )
    for tables in (overview(told), peers_table(told)):
        text = plain(tables) if where == "plain" else _without_styles(on_terminal(tables, 400))
        assert "[bold red]x[/]" in text  # shown as it is written
        assert all(char.isprintable() for char in text.replace("\n", ""))
        assert "file:///etc/passwd" in text and "\u202e" not in text


def test_amounts() -> None:
    assert [size(each) for each in (0, 0.4, 1_000, 1_024, 48_113.0, 3.2e9, 5 << 40)] == [
        "0 B", "0 B", "1000 B", "1 KiB", "47 KiB", "3 GiB", "5 TiB",
    ]  # fmt: skip
    assert [duration(each) for each in (-3, 59, 60, 3_660, 90_000)] == [
        "0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h",
    ]  # fmt: skip


def _without_styles(text: str) -> str:
    """Without the colours that rich itself adds; whatever else begins with ESC stays, to be found."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)
