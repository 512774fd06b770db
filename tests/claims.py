"""Runs of pytest side by side that share out the test files: whoever comes to one first, claims it.

    pytest --claims=FOLDER      in each of them, with one empty folder for all

A file's tests stay together, so what its fixtures start is started once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--claims`."""
    parser.addoption("--claims", type=Path, help="the folder in which runs side by side claim test files")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own, of what is claimed: the next file is, when the last test of one begins."""
    folder = session.config.getoption("--claims")
    if folder is None or session.config.option.collectonly or session.testsfailed:
        return None  # what could not be collected: pytest says so
    claimed = claimed_items(session.items, folder)
    item = next(claimed, None)
    while item is not None:
        following = next(claimed, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def claimed_items(items: Iterable[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Those whose file nobody else has claimed."""
    claimed: dict[str, bool] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file not in claimed:
            claimed[file] = claim(folder / quote(file, safe=""))
        if claimed[file]:
            yield item


def claim(path: Path) -> bool:
    """Whether it was free, and is ours now."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True
