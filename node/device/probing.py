"""What the system tells about its use (node.device.device_use). Linux; elsewhere nothing can be seen.

Nothing here raises: what cannot be read is not known.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from node.device.asking import ask
from node.device.device_use import Seen, parse_cpu_times, parse_idle_hint, parse_power

LOGINCTL_SECONDS = 2.0
"""logind answers within milliseconds; who waits longer asks a machine that has other troubles."""

MAX_SUPPLIES = 32
MAX_FILE_BYTES = 64 << 10
"""Of a file in /proc or /sys; /proc/stat of 512 cores has 50 KB."""

_SUPPLY_FILES = ("type", "online", "status", "scope")


class Probe:
    """Looks at the system.

    Args:
        root: where proc and sys lie; another one than / for tests.
        loginctl: the command, or None to have it found.
    """

    def __init__(self, root: Path = Path("/"), loginctl: str | None = None) -> None:
        self._root = root
        self._loginctl = loginctl or shutil.which("loginctl")

    def look(self) -> Seen:
        """Some milliseconds, in a thread for want of anything better: it asks another process."""
        stat, own = self._read("proc/stat"), self._read("proc/self/stat")
        return Seen(parse_cpu_times(stat, own), self._session_idle(), self._on_battery())

    def _session_idle(self) -> bool | None:
        if self._loginctl is None:
            return None
        command = [self._loginctl, "show", "--property=IdleHint", "--property=IdleSinceHint"]
        try:
            done = ask(command, LOGINCTL_SECONDS)
        except (OSError, subprocess.SubprocessError):
            return None
        return parse_idle_hint(done.stdout) if done.returncode == 0 else None

    def _on_battery(self) -> bool | None:
        try:
            folders = sorted((self._root / "sys/class/power_supply").iterdir())[:MAX_SUPPLIES]
        except OSError:
            return None
        return parse_power(
            {
                folder.name: {
                    name: self._read(str(folder.relative_to(self._root) / name)).strip()
                    for name in _SUPPLY_FILES
                }
                for folder in folders
            }
        )

    def _read(self, name: str) -> str:
        try:
            with (self._root / name).open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
