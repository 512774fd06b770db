"""`panal home fetch`: all that the home set lacks, from the peers, before anybody asks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from node.sizes import size_text

if TYPE_CHECKING:
    from node.home.fetch import FetchProgress

RATE_SECONDS = 10.0
"""Over which the rate is taken: long enough to be readable, short enough to follow the line."""


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `home fetch`."""
    parser = add_command(
        subparsers,
        "fetch",
        run,
        "fetch from peers what the config's home set lacks here",
        epilog="What has come is kept if it is ended or nobody gives the rest: then the exit code is 1.",
    )
    add_config(parser, required=False)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch, with progress; 1 if something is still lacking."""
    from node.cli.progress import Progress
    from node.device.which_config import load, require_written
    from node.home.fetch_now import fetch_now
    from node.interrupt import run_interruptible

    config = load(args.config)
    require_written(config)
    with Progress() as progress:
        rate = Rate()

        def on_progress(so_far: FetchProgress) -> None:
            left = max(0, so_far.all_bytes - so_far.n_bytes)
            what = rate.told(time.monotonic(), so_far.n_bytes, left)
            progress.report(f"fetching experts{what}:", so_far.n_bytes, so_far.all_bytes)

        found = run_interruptible(
            lambda: fetch_now(config, progress=progress.report, on_progress=on_progress), progress.stop
        )
    if args.json:
        print(json.dumps(found.as_dict()))
    elif not found.lacking:
        came = f"{found.cells} experts fetched ({size_text(found.n_bytes)}), " if found.cells else ""
        print(f"{came}the home set is complete ({size_text(found.choice.n_bytes)})")
    if found.lacking:
        print(f"panal: {found.line()}", file=sys.stderr)
        return 1
    return 0


class Rate:
    """How fast it goes, and how long it will take."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def told(self, now: float, n_bytes: int, left: int) -> str:
        """ ", 12.3 MiB/s, 2:05 left"; "" at first.

        Args:
            now: seconds on any clock.
            n_bytes: that have come by now; left: that have not.
        """
        self._seen.append((now, n_bytes))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < 1 or n_bytes <= before:
            return ""
        rate = (n_bytes - before) / (now - since)
        seconds = round(left / rate)
        hours, minutes = seconds // 3600, seconds // 60 % 60
        clock = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
        return f", {size_text(round(rate))}/s, {clock} left"
