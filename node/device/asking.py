"""Other programs, asked for what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def ask(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program that gets no input; what it printed, whatever its exit code.

    Raises:
        OSError: there is no such program.
        subprocess.TimeoutExpired: it took longer; it has been ended.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
