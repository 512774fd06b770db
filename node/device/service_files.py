"""The texts by which a node starts with the machine: a systemd user unit, a launchd property list. Pure.

Sources: systemd.service(5), systemd.syntax(7) (quoting), systemd.unit(5) (specifiers); launchd.plist(5).
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence

UNIT_NAME = "panal.service"
LABEL = "org.panal.node"

RESTART_SECONDS = 10
"""Before a node that failed is started again: a port or a disk may be back by then."""

_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")
"""Paths of programs that systemd starts; one with quotes or the like it refuses, however they are written."""

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def systemd_unit(command: Sequence[str], environment: Sequence[tuple[str, str]] = ()) -> str:
    """A user unit. It ends within systemd's patience: a node ends within three seconds of SIGTERM.

    Exit code 2 is a mistake in config or files, which no restart mends.
    """
    if not _PLAIN.fullmatch(command[0]):
        command = ["/bin/sh", "-c", 'exec "$0" "$@"', *command]
    variables = "".join(f"Environment={_quoted(f'{name}={value}', '')}\n" for name, value in environment)
    return f"""\
[Unit]
Description=panal node

[Service]
Type=exec
ExecStart={" ".join(_quoted(part, "$") for part in command)}
{variables}Restart=on-failure
RestartSec={RESTART_SECONDS}
RestartPreventExitStatus=2
TimeoutStopSec=15
NoNewPrivileges=true
UMask=0077

[Install]
WantedBy=default.target
"""


def launchd_plist(command: Sequence[str], log: str, environment: Sequence[tuple[str, str]] = ()) -> bytes:
    """A launch agent.

    Args:
        log: where the node's output goes.
    """
    agent: dict[str, object] = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ProcessType": "Background",
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
    }
    if environment:
        agent["EnvironmentVariables"] = dict(environment)
    return plistlib.dumps(agent)


def _quoted(text: str, doubled: str) -> str:
    """A word as systemd reads it back: specifiers, quotes and control characters escaped.

    Args:
        doubled: characters besides % that are doubled; $ in command lines.
    """
    escaped = "".join(
        _ESCAPES.get(char)
        or (char * 2 if char in f"%{doubled}" else char if char.isprintable() else _hex(char))
        for char in text
    )
    return f'"{escaped}"'


def _hex(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
