"""What this node spends: its budgets, kept over restarts, and how it weighs prices when it asks."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from market.budget import Purse
from market.preference import tariff
from routing.errors import LocalError
from routing.tariff import Prices

if TYPE_CHECKING:
    from node.config import MarketConfig
    from node.decode.live_backbone import LiveBackbone
    from node.device.folder import NodeFolder

log = logging.getLogger("panal.market")

SAVE_SECONDS = 2.0
"""How much of the day's spending may be forgotten by who is killed. Who ends in peace forgets nothing."""

MAX_FILE_BYTES = 4096
"""Of the file: a few days and their totals."""

MODE = 0o600


class _Days(msgspec.Struct):
    """The file: micro-credits by day since 1970."""

    spent: dict[int, int]


class Spending:
    """A node's purse, in its folder. One process has it at a time (node.market.books_lock).

    Attributes:
        purse: what has been spent.

    Raises:
        LocalError: the file cannot be read.
    """

    def __init__(self, market: MarketConfig, folder: NodeFolder) -> None:
        self._market = market
        self._path = folder.spent
        self._cannot_write = ""
        self.purse = Purse(market.budget_answer, market.budget_day, _read(self._path))

    def attach(self, live: LiveBackbone, prices: Prices) -> None:
        """Have a backbone pay from this purse, and weigh what servers ask as the config prefers.

        Args:
            prices: micro-credits a pair that a peer asks for in a layer.
        """
        live.port.purse = self.purse
        live.port.price_by(tariff(self._market.prefer, self._market.second, prices))

    async def run(self) -> None:
        """Keep what is spent, until cancelled."""
        while True:
            await trio.sleep(SAVE_SECONDS)
            await trio.to_thread.run_sync(self.save)

    def save(self) -> None:
        """Keep what is spent, if that has changed."""
        days = self.purse.unsaved()
        if days is None:
            return
        try:
            _write(self._path, days)
        except OSError as error:
            self.purse.not_saved()
            if str(error) != self._cannot_write:  # it is tried again in two seconds
                log.warning(
                    "%s: cannot be written: %s; a restart forgets what today has cost", self._path, error
                )
            self._cannot_write = str(error)
        else:
            self._cannot_write = ""

    def close(self) -> None:
        """Keep what is spent, for the last time."""
        self.save()


def _read(path: Path) -> Mapping[int, int]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LocalError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=_Days).spent
    except msgspec.DecodeError:
        raise LocalError(
            f"{path}: no record of what was spent; remove it, and today counts as a day that has cost nothing"
        ) from None


def _write(path: Path, days: Mapping[int, int]) -> None:
    half = path.with_suffix(".half")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
    with contextlib.closing(os.fdopen(descriptor, "wb")) as file:
        file.write(msgspec.json.encode(_Days(dict(days))))
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
