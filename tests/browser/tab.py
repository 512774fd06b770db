"""One page in the browser, and an eye on what goes wrong in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent.parent

NAMES = ("chromium", "chromium-browser", "google-chrome")

LOOKING = (Path(__file__).parent / "looking.js").read_text(encoding="utf-8")
"""What is asked of a page: `looking.NAME(...)`."""

WAIT_MS = 10_000
"""For what the page shows a second after the node knows it; the machine may be busy."""


def find_chromium() -> str | None:
    """The browser: PANAL_CHROMIUM, or the system's."""
    named = os.environ.get("PANAL_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def artefacts() -> Path:
    """Where screenshots are kept."""
    folder = Path(os.environ.get("PANAL_ARTEFACTS") or ROOT / "build" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Tab:
    """A page that is open.

    Attributes:
        page: playwright's.
        troubles: errors on its console, of its scripts, and of its content security policy.
        requests: everything it asked for, as URLs.
    """

    def __init__(
        self, browser: Any, url: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        self.url = url.rstrip("/")
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        self.page = self._context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dialog)
        self.page.add_init_script(LOOKING)
        self.page.goto(self.url + "/")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def live(self) -> Tab:
        """Wait until it shows what the node tells."""
        self.shows("#feed", "live")
        return self

    def shows(self, selector: str, text: str, *, seconds: float = WAIT_MS / 1000) -> None:
        """Wait until an element's text is this."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(text, timeout=seconds * 1000)

    def has(self, selector: str, text: str, *, seconds: float = WAIT_MS / 1000) -> None:
        """Wait until an element has this in its text."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_contain_text(text, timeout=seconds * 1000)

    def count(self, selector: str, number: int, *, seconds: float = WAIT_MS / 1000) -> None:
        """Wait until there are so many elements."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(number, timeout=seconds * 1000)

    def text(self, selector: str) -> str:
        """What an element says now."""
        return str(self.page.locator(selector).inner_text())

    def hidden(self, selector: str) -> bool:
        return not self.page.locator(selector).is_visible()

    def peer(self, peer_id: str) -> str:
        """The selector of a peer's row."""
        return f'tr[data-peer="{peer_id}"]'

    def asks(self, script: str, argument: Any = None) -> Any:
        """The value of a function of `looking`, or of any other."""
        return self.page.evaluate(script, argument)

    def keep(self, name: str) -> None:
        """A screenshot, kept as an artefact of the tests."""
        self.page.screenshot(path=artefacts() / f"{name}.png", full_page=True)

    def forgive(self, *texts: str) -> None:
        """Troubles that must have come, each with one of these in it."""
        strange = [each for each in self.troubles if not any(text in each for text in texts)]
        assert not strange, strange
        self.troubles.clear()

    def close(self) -> None:
        """Close it, once; an error if anything was wrong."""
        if self.page.is_closed():
            return
        self.troubles += [f"policy: {each}" for each in self.page.evaluate("() => looking.violations")]
        self._context.close()
        assert not self.troubles, self.troubles
        own = urlsplit(self.url).netloc
        foreign = [each for each in self.requests if urlsplit(each).netloc != own]
        assert self.requests and not foreign, foreign
