"""Fixtures of the page's tests: one chromium for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.browser.staged import StagedBoard, staged
from tests.browser.tab import Tab, find_chromium

OpenTab = Callable[..., Tab]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """The browser. Without it, or without what drives it, the tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = find_chromium()
    if path is None:
        pytest.skip("needs chromium: apt-get install chromium, or name one in PANAL_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that root in a container does not have; only pages of ours are opened.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[OpenTab]:
    """tab(url, width=, height=, dark=) -> a page of its own, in which nothing may go wrong until the end."""
    with ExitStack() as ends:

        def opened(url: str, **looks: Any) -> Tab:
            made = Tab(chromium, url, **looks)
            ends.callback(made.close)
            return made

        yield opened


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StagedBoard, str]]:
    """A staged node; each test has it tell what it needs."""
    with staged(tmp_path_factory.mktemp("staged")) as (board, url):
        yield board, url
