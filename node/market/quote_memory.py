"""The file that keeps what a server has asked: callers may pay by it after a restart too."""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from market.quotes import OwnQuotes
from routing.errors import LocalError
from routing.private_file import read_private, write_private

log = logging.getLogger("panal.market")

MAX_BYTES = 8 * 2**20
"""256 quotes of 6,000 bytes, for five models."""


class QuoteMemory:
    """Quotes that outlive a process, in one small file that is written anew each time.

    Args:
        path: None: nothing outlives the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def recalled(self, now: float, lifetime: int) -> OwnQuotes:
        """What was asked and is not over; nothing if the file cannot be read.

        Args:
            lifetime: seconds that this node's adverts live.
        """
        if self._path is None or not self._path.exists():
            return OwnQuotes(lifetime)
        try:
            return OwnQuotes.restored(read_private(self._path, "quotes", MAX_BYTES), now, lifetime)
        except LocalError as error:
            log.warning(
                "what this node asked before its start is not known; some callers are refused: %s", error
            )
            return OwnQuotes(lifetime)

    async def save(self, encoded: bytes) -> None:
        """Write `OwnQuotes.encoded` down."""
        path = self._path
        if path is None:
            return
        try:
            await trio.to_thread.run_sync(lambda: write_private(path, encoded, "quotes", replace=True))
        except LocalError as error:
            log.warning("after a restart some callers of now will be refused: %s", error)


FORGETFUL = QuoteMemory(None)
