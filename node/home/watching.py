"""A home set in use: heat is counted, lacking cells are fetched, better sets are taken, all beside decoding.

The decoding thread is never waited for: it goes on with the cells it has, and `SwarmPort.set_home` gives it
others between two calls. Files of cells that have gone stay mapped as long as a call may use them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from node.decode.ledger import TripsReport
from node.decode.live_backbone import LiveBackbone
from node.home.call_bits import cells_of
from node.home.choosing import Prediction
from node.home.fetch import FetchProgress, FetchResult, fetch_cells, unrelayed
from node.home.heat import Heat
from node.home.home_set import HomeSet
from node.home.opening import GUESSES_BY_HOME, OpenHome
from node.home.plan_file import plan_stamp, read_plan, write_heat
from node.home.reconsider import Proposal, Reconsideration, fall_short
from node.serve.cells import Cells
from node.sizes import size_text
from routing.errors import LocalError

LOOK_SECONDS = 5.0
"""Between looks at what was counted; the log of choices is bounded, so that nothing grows in between."""

KEEP_SECONDS = 60.0
"""Between writing the heat down, and looking whether there is a new plan."""

COMES_SECONDS = 10.0
"""Between taking home what has been fetched meanwhile."""

AGAIN_SECONDS = 120.0
"""Between tries to fetch what nobody gave."""

log = logging.getLogger("panal.home")


class HomeKeeper:
    """Keeps what is at home as good as it can be.

    Attributes:
        wanted: what is to be at home.
        changes: what was changed in use, for programs.
    """

    def __init__(
        self,
        home: OpenHome,
        live: LiveBackbone,
        tell: Callable[[str], None] = lambda line: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._live = live
        self._tell = tell
        self._now = now
        self.wanted = home.choice.wanted
        self.changes: list[dict[str, Any]] = []
        self._at_home = home.at_home
        self._reconsideration = Reconsideration(now())
        self._counted = 0.0
        self._plan_stamp = plan_stamp(home.stored)
        self._kept_at = now()
        self._fetching: trio.CancelScope | None = None
        self._fetch_ended = trio.Event()
        self._again_at = now()
        self._has_warned = False
        self._is_looking = home.choice.by != "serve"

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._count()
                    if self._is_looking:
                        try:
                            await self._look(nursery)
                        except LocalError as error:  # of files: what is at home stays as it is
                            self._is_looking = False
                            self._tell(str(error))
                    await trio.sleep(LOOK_SECONDS)
            finally:
                with trio.CancelScope(shield=True):
                    self._count()
                    await trio.to_thread.run_sync(write_heat, self._home.stored, self._home.heat)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was chosen, what is there, what changed."""
        return self._home.choice.as_dict() | {
            "at_home_bytes": self._at_home.n_bytes(self._home.shapes),
            "lacking_bytes": (self.wanted - self._at_home).n_bytes(self._home.shapes),
            "changes": self.changes,
        }

    async def serve(self, cells: Cells) -> None:
        """What the node serves from now on is at home, with what else is to be there."""
        before = self._home.served
        self._home.serve(cells)
        await self._want((self.wanted - before) | self._home.served)

    # --- counting ---

    def _count(self) -> None:
        before = self._home.heat.tokens
        self._home.heat.add(self._live.port.heat.drain())
        self._counted += max(0.0, self._home.heat.tokens - before)

    async def _look(self, nursery: trio.Nursery) -> None:
        if self._now() - self._kept_at >= KEEP_SECONDS:
            self._kept_at = self._now()
            heat = self._home.heat.copy()
            await trio.to_thread.run_sync(write_heat, self._home.stored, heat)
            await self._take_new_plan()
            await self._reconsider(heat)
        lacking = self._home.lacks(self.wanted)
        if lacking and self._home.can_fetch and self._fetching is None and self._now() >= self._again_at:
            self._fetching, self._fetch_ended = trio.CancelScope(), trio.Event()
            nursery.start_soon(self._fetch, self._fetching, lacking)

    # --- better sets ---

    async def _reconsider(self, heat: Heat) -> None:
        home, report = self._home, self._live.port.ledger.report()
        found, warning = await trio.to_thread.run_sync(self._think, heat, report)
        if warning:
            self._has_warned = True
            self._note(warning)
        if found is None:
            return
        comes = found.home - self.wanted
        self._note(
            f"home set: {size_text(comes.n_bytes(home.shapes))} of other experts come home, "
            f"{found.before:.2f} -> {found.after:.2f} trips per layer and token expected",
            before=round(found.before, 4),
            after=round(found.after, 4),
            bytes=comes.n_bytes(home.shapes),
            experts=found.home.as_ranges(),
        )
        await self._want(found.home)

    def _think(self, heat: Heat, report: TripsReport) -> tuple[Proposal | None, str]:
        """A better set, and what is wrong with the plan. On a thread of its own: a second for 48 layers."""
        home = self._home
        if home.plan is None or home.budget is None:
            return None, ""
        prediction = home.prediction(home.plan, home.budget, heat)
        found = self._reconsideration.look(
            self._now(), self.wanted, prediction, home.budget, home.served, self._counted
        )
        return found, self._hold_against(prediction, report)

    async def _take_new_plan(self) -> None:
        home = self._home
        stamp = plan_stamp(home.stored)
        if stamp == self._plan_stamp or home.budget is None:
            return
        self._plan_stamp = stamp
        try:
            home.plan = read_plan(home.stored, home.config_path)
        except LocalError as error:
            self._tell(str(error))
            return
        self._reconsideration.changed(self._now())
        choice = home.choose()
        if choice.wanted != self.wanted:
            self._note(f"home set: by the new plan; {choice.line()}", experts=choice.wanted.as_ranges())
            await self._want(choice.wanted)
        home.choice = choice

    def _hold_against(self, prediction: Prediction, report: TripsReport) -> str:
        """What to say, once, if guesses are right far less often than the plan has it."""
        worth, passes = prediction.estimator.worth, report.decode_passes
        if worth is None or self._has_warned or self._live.settings.draft not in GUESSES_BY_HOME:
            return ""
        tokens = prediction.tokens_per_pass(self._at_home)
        expected = fall_short(tokens, worth.drafts, passes, report.drafted, report.accepted)
        if expected is None:
            return ""
        return (
            f"home set: {report.accepted / passes:.1f} guesses a pass are right, the plan expects "
            f"{expected:.1f}: `panal home plan` with --text like yours would fit better"
        )

    def _note(self, line: str, **facts: object) -> None:
        log.info("%s", line)
        self.changes.append({"line": line, **facts})
        self._tell(line)

    # --- getting them home ---

    async def _want(self, wanted: HomeSet) -> None:
        self.wanted = wanted
        self._again_at = self._now()
        if self._fetching is not None:  # of another set, and it may be about to forget what this one has
            self._fetching.cancel()
            await self._fetch_ended.wait()
        await self._take_home()

    async def _take_home(self) -> None:
        """Have at home what is wanted and in files here."""
        wanted = self.wanted
        cells = await trio.to_thread.run_sync(self._home.cells_for, wanted)
        if wanted is self.wanted:
            self._at_home = wanted - self._home.lacks(wanted)
            self._live.port.set_home(cells)

    async def _fetch(self, scope: trio.CancelScope, lacking: HomeSet) -> None:
        home, last = self._home, self._now()
        fetched = home.fetched
        assert fetched is not None
        came = False

        def on_progress(progress: FetchProgress) -> None:
            nonlocal came, last
            if progress.cells and self._now() - last >= COMES_SECONDS:
                last, came = self._now(), True

        async def take_what_came() -> None:
            nonlocal came
            while True:
                await trio.sleep(1)
                if came:
                    came = False
                    await self._take_home()

        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take_what_came)
                    result = await fetch_cells(
                        fetched,
                        cells_of(home.stored.manifest, lacking.experts()),
                        holders=self._live.table.holders,
                        connection_to=unrelayed(self._live.links),
                        on_progress=on_progress,
                    )
                    nursery.cancel_scope.cancel()
                await self._fetched(result)
        except* LocalError as group:
            self._tell(str(group.exceptions[0]))
        finally:
            self._fetching = None
            self._fetch_ended.set()
            if not scope.cancel_called:  # else it is not that nobody gave it: others are wanted now
                self._again_at = self._now() + AGAIN_SECONDS

    async def _fetched(self, result: FetchResult) -> None:
        for peer, what in result.dropped.items():
            log.warning("%s gives no more experts: %s", peer, what)
        if not result.cells:
            return
        await self._take_home()
        home = self._home
        told = f"home set: {result.cells} experts fetched ({size_text(sum(result.by_peer.values()))})"
        if not home.lacks(self.wanted):
            told += ", complete"
            await trio.to_thread.run_sync(self._forget_others)
        self._note(told, cells=result.cells, bytes=sum(result.by_peer.values()))

    def _forget_others(self) -> None:
        """Give back the disk that fetched cells take which are not wanted any more."""
        home, fetched = self._home, self._home.fetched
        assert fetched is not None
        there = HomeSet.of_bits({layer: fetched.bits((layer, 0)) for layer in home.shapes})
        if others := there - self.wanted:
            fetched.forget(others.experts())


@asynccontextmanager
async def keep_home(
    home: OpenHome, live: LiveBackbone, tell: Callable[[str], None] = lambda line: None
) -> AsyncIterator[HomeKeeper]:
    """Keep a home set while a backbone runs.

    Args:
        tell: gets a line for each change; called on the event loop.
    """
    keeper = HomeKeeper(home, live, tell)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield keeper
        nursery.cancel_scope.cancel()
