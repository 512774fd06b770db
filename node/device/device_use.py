"""Is the device used by somebody else? From what the system counts: other programs, keyboard and mouse, the
battery. Pure: `node.device.probing` asks the system.

Rules
1. In use at once: when other programs took more than BUSY of all cores over the last WINDOW_SECONDS, or the
   session is not idle.
2. Idle slowly: only when all that could be seen was quiet (other programs below QUIET) for CALM_SECONDS.
   Between BUSY and QUIET it stays what it was. So a node does not come and go with every page that is opened.
3. Until there was a window to look at it counts as in use.
4. What cannot be seen (no /proc, no logind, no battery) says nothing. A device of which nothing can be seen
   is never in use.
5. Time of other programs is all that is not ours and not idle. What runs with a nice value is not counted:
   who starts such a program says that it has time. Nor is waiting for a disk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

BUSY = 0.35
QUIET = 0.20
"""Shares of all cores. A desktop that nobody touches takes some percent; a video that is watched or a build
takes more than a third of four cores."""

WINDOW_SECONDS = 15.0
"""What the share of other programs is taken over: shorter, and every cron job is a user."""

CALM_SECONDS = 120.0
"""Quiet before it counts as idle: who reads a page for a minute still sits there."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Processor time since the system and this process began, in ticks.

    Attributes:
        total: of all cores, idle time included.
        used: by programs without a nice value, and by the system for them.
        own: of `used`, this process's.
    """

    total: int
    used: int
    own: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at the system found; None: nothing can be seen.

    Attributes:
        session_idle: whether nobody touches keyboard or mouse.
        on_battery: whether it runs on a battery.
    """

    cpu: CpuTimes | None = None
    session_idle: bool | None = None
    on_battery: bool | None = None


@dataclass(frozen=True, slots=True)
class UseVerdict:
    """What it comes to.

    Attributes:
        text: by what it is used, for people; "" if it is not.
        others: share of all cores that other programs take; None: not known.
        seen: anything could be seen.
    """

    in_use: bool = False
    on_battery: bool = False
    text: str = ""
    others: float | None = None
    seen: bool = False


class DeviceUse:
    """Judges look after look. `now` is seconds on a clock that does not go back."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, CpuTimes]] = deque()
        self._in_use = False
        self._loud_at = -math.inf
        self._text = ""

    def look(self, seen: Seen, now: float) -> UseVerdict:
        """Take one look into account."""
        others = self._others(seen.cpu, now)
        loud = []
        if others is not None and others > (QUIET if self._in_use else BUSY):
            loud.append(f"other programs take {others:.0%} of the processor")
        if seen.session_idle is False:
            loud.append("keyboard or mouse")
        if loud:
            self._loud_at, self._in_use, self._text = now, True, ", ".join(loud)
        elif self._in_use and now - self._loud_at >= CALM_SECONDS:
            self._in_use, self._text = False, ""
        is_starting = others is None and seen.cpu is not None and not self._in_use
        return UseVerdict(
            self._in_use or is_starting,
            bool(seen.on_battery),
            "not known to be idle yet" if is_starting else self._text,
            others,
            seen != Seen(),
        )

    def _others(self, cpu: CpuTimes | None, now: float) -> float | None:
        if cpu is None:
            self._times.clear()
            return None
        self._times.append((now, cpu))
        while len(self._times) > 2 and now - self._times[1][0] >= WINDOW_SECONDS:
            self._times.popleft()
        since, before = self._times[0]
        passed = cpu.total - before.total
        if now - since < WINDOW_SECONDS or passed <= 0:
            return None
        others = (cpu.used - before.used) - (cpu.own - before.own)
        return min(max(others / passed, 0.0), 1.0)


def parse_cpu_times(stat: str, own_stat: str) -> CpuTimes | None:
    """Read /proc/stat and /proc/self/stat; None if they are not as Linux writes them (proc(5)).

    Our own user time is among the nice time if we run with a nice value.
    """
    try:
        first = next(line for line in stat.splitlines() if line.startswith("cpu "))
        user, nice, system, idle, wait, irq, soft, steal = map(int, first.split()[1:9])
        fields = own_stat[own_stat.rindex(")") + 2 :].split()
        own_user, own_system, own_nice = int(fields[11]), int(fields[12]), int(fields[16])
    except (StopIteration, ValueError, IndexError):
        return None
    own = own_system + (0 if own_nice > 0 else own_user)
    return CpuTimes(user + nice + system + idle + wait + irq + soft + steal, user + system + irq + soft, own)


def parse_idle_hint(properties: str) -> bool | None:
    """Read what `loginctl show` says: whether all sessions are idle; None if no session tells.

    A session whose desktop tells nothing never was idle: its IdleSinceHint is 0.
    """
    told = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line)
    hint = told.get("IdleHint")
    if hint == "yes":
        return True
    return False if hint == "no" and told.get("IdleSinceHint", "0") != "0" else None


def parse_power(supplies: Mapping[str, Mapping[str, str]]) -> bool | None:
    """Whether a device runs on battery, from /sys/class/power_supply; None if it has none of its own.

    Args:
        supplies: by name, the files type, online, status, scope.
    """
    own = [each for each in supplies.values() if each.get("scope") != "Device"]  # not a mouse's
    batteries = [each for each in own if each.get("type") == "Battery"]
    if not batteries:
        return None
    if any(each.get("type") in ("Mains", "USB") and each.get("online") == "1" for each in own):
        return False
    return any(each.get("status") == "Discharging" for each in batteries)
