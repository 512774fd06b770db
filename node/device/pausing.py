"""A node that pauses: the rules (`pause_rules`) with clock, file and system, and who is told of changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

import trio

from node.config import DeviceConfig
from node.device.device_use import DeviceUse
from node.device.folder import NodeFolder
from node.device.pause_file import read_pause, stamp, write_pause
from node.device.pause_rules import HandPause, PauseRules, PauseState
from node.device.probing import Probe
from routing.errors import LocalError

log = logging.getLogger("panal.device")

LOOK_SECONDS = 1.0
"""Between looks at clock and file: what `panal pause` without HTTP, and a schedule, are late at most."""

PROBE_SECONDS = 5.0
"""Between looks at what else the device is used for."""


class Pausing:
    """Whether this node serves now.

    Args:
        on_change: called with each new state, on the event loop; also once when `run` begins.
        probe: what looks at the system where the config wants it idle.

    Attributes:
        state: as of now.
    """

    def __init__(
        self,
        folder: NodeFolder,
        device: DeviceConfig,
        on_change: Callable[[PauseState], None] = lambda state: None,
        *,
        probe: Probe | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = folder.pause
        self._device = device
        self._on_change = on_change
        self._probe = probe or Probe()
        self._clock = clock
        self._rules = PauseRules(
            device.schedule, idle_only=device.idle_only, now=clock(), wall=datetime.fromtimestamp
        )
        self._stamp: tuple[int, int] | None = None
        self._read_file()
        self._state = self._rules.look(clock())

    @property
    def state(self) -> PauseState:
        """As of now."""
        self._look()
        return self._state

    def pause(self, seconds: float | None = None) -> PauseState:
        """Pause by hand, from now on.

        Args:
            seconds: for how long; None: until `resume`.

        Raises:
            LocalError: no length of a pause; or it pauses, but that cannot be written down.
        """
        self._rules.hand = HandPause.begin(self._clock(), seconds)
        return self._by_hand()

    def resume(self) -> PauseState:
        """End the pause by hand. Schedule and idle rule go on.

        Raises:
            LocalError: it is ended, but that cannot be written down.
        """
        self._rules.hand = None
        return self._by_hand()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at clock, file and system until cancelled."""
        async with trio.open_nursery() as nursery:
            self._look()
            self._on_change(self._state)
            if self._state.paused:
                log.info("paused: %s", self._state.text)
            if self._device.idle_only:
                await nursery.start(self._watch_use)
            task_status.started()
            while True:
                await trio.sleep(LOOK_SECONDS)
                self._read_file()
                self._look()

    async def _watch_use(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        use, is_first = DeviceUse(), True
        while True:
            seen = await trio.to_thread.run_sync(self._probe.look)
            verdict = use.look(seen, trio.current_time())
            self._rules.observe(verdict)
            if is_first:
                is_first = False
                if not verdict.seen:
                    log.warning(
                        "[device] idle_only: this system tells nothing of its use, so the node serves always"
                    )
                task_status.started()
            self._look()
            await trio.sleep(PROBE_SECONDS)

    def _by_hand(self) -> PauseState:
        try:
            write_pause(self._path, self._rules.hand)
        finally:
            self._stamp = stamp(self._path)
            self._look()
        return self._state

    def _look(self) -> None:
        before, self._state = self._state, self._rules.look(self._clock())
        if self._state.says_otherwise(before):
            if self._state.paused:
                log.info("paused: %s", self._state.text)
            elif before.paused:
                log.info("serving again")
            self._on_change(self._state)

    def _read_file(self) -> None:
        found = stamp(self._path)
        if found == self._stamp:
            return
        self._stamp = found
        try:
            self._rules.hand = read_pause(self._path)
        except LocalError as error:
            log.warning("%s", error)
