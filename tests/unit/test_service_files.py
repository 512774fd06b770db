"""The texts by which a node starts with the machine; systemd's own reader has the last word on the unit."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli import main as frame
from node.device.folder import NodeFolder
from node.device.lock import NodeLock
from node.device.service import service_of
from node.device.service_files import launchd_plist, systemd_unit
from routing.errors import LocalError

ODD = ["a b", 'c"d', "e'f", "100%n", "$HOME", "back\\slash", "ü ✓", "tab\there"]


def read_back(unit: Path) -> list[str]:
    """ExecStart as systemd reads it: by the dump of `systemd-analyze verify`'s own parser."""
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(unit.parent)},
    )
    return (done.stdout + done.stderr).strip().splitlines()


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd on this system"
)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "bin with spaces %n $x 'q'" / "panal"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "panal.service"
    unit.write_text(systemd_unit([str(program), "run", "-c", *ODD], [("PANAL_STORE", '/data/"my" 100%')]))
    assert read_back(unit) == []
    unit.write_text(unit.read_text().replace('"$$HOME"', '"$$HOME'))
    assert any("quoting" in line for line in read_back(unit)), "it does find mistakes"


def test_a_program_with_an_odd_name_is_started_by_a_shell(tmp_path: Path) -> None:
    program = tmp_path / "it's %n" / "panal"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    unit = systemd_unit([str(program), "run", *ODD])
    words = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).split(" ", 3)
    assert words[:2] == ['ExecStart="/bin/sh"', '"-c"']
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@"', str(program), "run", *ODD],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["run", *ODD]


def test_words_in_the_unit() -> None:
    unit = systemd_unit(["/opt/panal", *ODD])
    assert (
        'ExecStart="/opt/panal" "a b" "c\\"d" "e\'f" "100%%n" "$$HOME" "back\\\\slash" "ü ✓" "tab\\there"\n'
    ) in unit
    assert unit.count("\n[") == 2 and unit.startswith("[Unit]\n")


def test_the_plist() -> None:
    agent = plistlib.loads(launchd_plist(["/opt/panal", *ODD], "/tmp/a log", [("PANAL_STORE", "/d&<>")]))
    assert agent["ProgramArguments"] == ["/opt/panal", *ODD]
    assert agent["StandardErrorPath"] == "/tmp/a log" and agent["RunAtLoad"] is True
    assert agent["EnvironmentVariables"] == {"PANAL_STORE": "/d&<>"}
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_where_services_are(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PANAL_STORE": "/store"}
    linux = service_of(["/opt/panal", "run"], tmp_path / "log", platform="linux", environ=environ)
    assert linux.path == tmp_path / ".config/systemd/user/panal.service"
    assert b'Environment="PANAL_STORE=/store"\n' in linux.content
    mac = service_of(["/opt/panal", "run"], tmp_path / "log", platform="darwin", environ=environ)
    assert mac.path == tmp_path / "Library/LaunchAgents/org.panal.node.plist"
    assert mac.begin == [["launchctl", "bootstrap", f"gui/{os.getuid()}", str(mac.path)]]
    with pytest.raises(LocalError, match="no services on plan9"):
        service_of(["panal"], tmp_path, platform="plan9", environ=environ)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is asked: no session of a user runs where tests do."""
    calls = tmp_path / "calls"
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "systemctl"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ ! -e {tmp_path}/broken ] || {{ echo "no bus"; exit 1; }}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "PANAL_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is Linux")
def test_install_and_uninstall(systemctl: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unit = tmp_path / ".config/systemd/user/panal.service"
    assert frame.main(["service", "install", "--dry-run"]) == 0
    dry = capfd.readouterr().out
    assert not unit.exists() and not systemctl.exists()
    assert frame.main(["service", "install"]) == 0
    assert unit.read_text() == dry and "enable-linger" in capfd.readouterr().out
    assert systemctl.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable panal.service",
        "--user restart panal.service",
    ]
    assert frame.main(["service", "status"]) == 1, "installed, and nothing runs"
    assert "does not run" in capfd.readouterr().out
    config = tmp_path / ".local/share/panal/node.toml"
    for given, shown in ((config, f"runs (pid {os.getpid()})"), (tmp_path / "a.toml", "a.toml")):
        with NodeLock.take(NodeFolder(config.parent), name="", config=given):
            assert frame.main(["service", "status"]) == 0
        said = capfd.readouterr().out.splitlines()[1]
        assert said.endswith(shown) and "another" not in said
    assert frame.main(["service", "uninstall"]) == 0
    assert not unit.exists() and "disable --now panal.service" in systemctl.read_text()
    assert frame.main(["service", "uninstall"]) == 0
    assert "no such service" in capfd.readouterr().out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is Linux")
def test_a_manager_that_refuses(systemctl: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").write_text("")
    assert frame.main(["service", "install"]) == 2
    error = capfd.readouterr().err
    assert "panal.service is written, but `systemctl --user daemon-reload` says: no bus;" in error
