"""The node as a service of its user: put in place, taken away, looked at; systemd, on macOS launchd."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.device.service_files import LABEL, UNIT_NAME, launchd_plist, systemd_unit
from routing.errors import LocalError

COMMAND_SECONDS = 30.0
"""systemctl waits for the node to end, which takes three seconds at most."""

PASSED_ON = ("PANAL_STORE", "XDG_DATA_HOME")
"""Variables by which the node's own files are found: a service has none of a shell's."""


@dataclass(frozen=True)
class Done:
    """What a command of the service manager came to."""

    command: Sequence[str]
    code: int
    said: str


@dataclass(frozen=True)
class Service:
    """A service manager and the file by which it knows the node.

    Attributes:
        path: of the file.
        content: of the file, as it is to be.
        begin, end: commands after it was written, and before it is removed.
        look: the command that says whether it runs.
    """

    path: Path
    content: bytes
    begin: Sequence[Sequence[str]]
    end: Sequence[Sequence[str]]
    after_end: Sequence[Sequence[str]]
    look: Sequence[str]

    def install(self) -> None:
        """Write the file and start the service.

        Raises:
            LocalError: it cannot be written, or the manager refuses; says how far it came.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(self.content)
        except OSError as error:
            raise LocalError(f"{self.path}: cannot be written: {error.strerror}") from None
        for command in self.begin:
            done = run(command)
            if done.code:
                raise LocalError(
                    f"{self.path} is written, but `{' '.join(command)}` says: {done.said}; run it in a "
                    "session of your own (not by su or sudo)"
                )

    def uninstall(self) -> bool:
        """Stop the service and remove the file; False if there is none.

        Raises:
            LocalError: the file cannot be removed.
        """
        if not self.path.exists():
            return False
        for command in self.end:
            run(command)  # it may not be running, or be known to nobody
        try:
            self.path.unlink()
        except OSError as error:
            raise LocalError(f"{self.path}: cannot be removed: {error.strerror}") from None
        for command in self.after_end:
            run(command)
        return True


def service_of(
    command: Sequence[str],
    log: Path,
    *,
    platform: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
) -> Service:
    """The service that runs a command.

    Args:
        log: where launchd puts what the node writes; systemd keeps it in the journal.

    Raises:
        LocalError: this system has no service manager that is known here.
    """
    variables = [(name, environ[name]) for name in PASSED_ON if environ.get(name)]
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        domain = f"gui/{os.getuid()}"
        return Service(
            path,
            launchd_plist(command, str(log), variables),
            begin=[["launchctl", "bootstrap", domain, str(path)]],
            end=[["launchctl", "bootout", f"{domain}/{LABEL}"]],
            after_end=[],
            look=["launchctl", "print", f"{domain}/{LABEL}"],
        )
    if platform.startswith("linux"):
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        systemctl = ["systemctl", "--user"]
        return Service(
            config / "systemd" / "user" / UNIT_NAME,
            systemd_unit(command, variables).encode("utf-8", "surrogateescape"),
            begin=[
                [*systemctl, "daemon-reload"],
                [*systemctl, "enable", UNIT_NAME],
                [*systemctl, "restart", UNIT_NAME],
            ],
            end=[[*systemctl, "disable", "--now", UNIT_NAME]],
            after_end=[[*systemctl, "daemon-reload"]],
            look=[*systemctl, "is-active", UNIT_NAME],
        )
    raise LocalError(
        f"no services on {platform}: have your system start `{' '.join(command)}` by its own means"
    )


def run(command: Sequence[str]) -> Done:
    """Run a command of the service manager; never raises."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Done(command, 127, getattr(error, "strerror", None) or type(error).__name__)
    return Done(command, done.returncode, " ".join(done.stdout.split()) or f"exit code {done.returncode}")


def node_command(config: Path | None) -> list[str]:
    """What starts the node, from wherever it is started.

    Args:
        config: None: this device's own.
    """
    script = Path(sys.executable).parent / "panal"
    begin = [str(script)] if script.is_file() else [sys.executable, "-P", "-m", "node.cli.main"]
    return [*begin, "run", *([] if config is None else ["-c", str(config.absolute())])]
