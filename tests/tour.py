"""The machines of README's tour, all on one: a folder and a home each, and a shell to type in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.swarm_process import free_port

COMMAND_SECONDS = 120.0
"""The longest takes ten; the machine may be busy."""

UP_SECONDS = 30.0
END_SECONDS = 30.0

CAPTURED = {
    "address": re.compile(r"^address +(\S+)$", re.MULTILINE),
    "peer_id": re.compile(r"^peer id +(\S+)$", re.MULTILINE),
    "invite": re.compile(r"^(panal-invite:\S+)$", re.MULTILINE),
    "url": re.compile(r"^page +(http\S+)$", re.MULTILINE),
}
"""What later commands name of what earlier ones said: {MACHINE_address} and so on."""


@dataclass(frozen=True)
class Step:
    """How a command of README is run.

    Attributes:
        line: as it stands there.
        on: the machine.
        typed: what is typed instead: placeholders filled, on loopback, small. {model} is the demo model's
            file, {text} a file of text, {MACHINE} a machine's folder, {MACHINE_address} what it said of
            itself last, and so for the other names of CAPTURED.
        says: a pattern that what it says matches.
        stays: it runs until the end of the tour; it is up when what it says matches `says`.
        elsewhere: the test that runs it instead, as FILE::TEST.
    """

    line: str
    on: str = ""
    typed: str = ""
    says: str = ""
    stays: bool = False
    elsewhere: str = ""


@dataclass
class Machines:
    """All of them, and what they have said."""

    folder: Path
    values: dict[str, str]
    running: list[tuple[Step, subprocess.Popen[bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._set: dict[str, list[str]] = {}  # variables that were set in a machine's terminal

    def do(self, step: Step) -> None:
        """Type it, and see that it does what it should."""
        folder = self.folder / step.on
        self.values.setdefault(step.on, str(folder))
        (folder / "home").mkdir(parents=True, exist_ok=True)
        typed = (step.typed or step.line).format_map(self.values)
        if re.fullmatch(r"[A-Z_]+=\S+", typed):
            self._set.setdefault(step.on, []).append(typed)
            return
        script = "\n".join([*self._set.get(step.on, []), typed])
        begun = time.monotonic()
        said = self._keep(step, script, folder) if step.stays else self._run(step, script, folder)
        print(f"{time.monotonic() - begun:5.1f} s  {step.on}: {typed.splitlines()[0]}")
        for name, pattern in CAPTURED.items():
            found = pattern.search(said)
            if found is not None:
                self.values[f"{step.on}_{name}"] = found[1]
        written = re.search(r"^config +(\S+)$", said, re.MULTILINE)
        if written is not None and not step.stays:
            self._keep_to_loopback(folder / written[1])

    def end(self) -> None:
        """Ctrl-C in all terminals, which is how a node ends."""
        for _, process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        try:
            codes = {step.line: process.wait(END_SECONDS) for step, process in self.running}
            assert set(codes.values()) <= {0, 130}, codes
        finally:
            for _, process in self.running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _run(self, step: Step, script: str, folder: Path) -> str:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=folder,
            env=self._environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{said}"
        wanted = step.says.format_map(self.values)
        assert re.search(wanted, said, re.MULTILINE), f"{script}\nsaid no {wanted!r}:\n{said}"
        return said

    def _keep(self, step: Step, script: str, folder: Path) -> str:
        log = folder / f"said-{len(self.running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"{script.replace('panal ', 'exec panal ', 1)}"],
                cwd=folder,
                env=self._environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append((step, process))
        end = time.monotonic() + UP_SECONDS
        while not re.search(step.says, log.read_text(encoding="utf-8"), re.MULTILINE):
            said = log.read_text(encoding="utf-8")
            assert process.poll() is None and time.monotonic() < end, (
                f"{script}\nsaid no {step.says!r}:\n{said}"
            )
            time.sleep(0.05)
        return log.read_text(encoding="utf-8")

    def _environment(self, folder: Path) -> dict[str, str]:
        """Of somebody who has just installed panal."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PANAL_", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return kept | {"HOME": str(folder / "home"), "PATH": path}

    def _keep_to_loopback(self, config: Path) -> None:
        """The machines share the ten ports that a page may have: each gets one of its own."""
        text = config.read_text(encoding="utf-8")
        if not re.search(r"^\[http\]", text, re.MULTILINE):
            config.write_text(f'{text}\n[http]\nlisten = "127.0.0.1:{free_port()}"\n', encoding="utf-8")
