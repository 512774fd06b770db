"""`panal doctor` where no node runs: what is broken does not hide the rest."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from node.cli import main as frame


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PANAL_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert frame.main(["doctor", "--json", *arguments]) == 0
    return dict(json.loads(capfd.readouterr().out))


def test_a_device_without_a_config(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = doctor(capfd)
    assert report["config"] == {"path": "~/.local/share/panal/node.toml", "exists": False, "text": ""}
    assert not report["lock"]["held"] and not report["node"]["running"]
    assert report["panal"]["packages"]["trio"] != "missing" and report["system"]["cores"] >= 1
    assert "library" in report["llama"]
    assert str(home) not in json.dumps(report) and socket.gethostname() not in json.dumps(report["system"])


def test_a_config_that_is_broken(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "n.toml").write_text('[swarm]\nkey = "s3cret"\npeers = ["192.168.7.7"]\n')
    report = doctor(capfd, "-c", "n.toml")
    assert "swarm.peers[0]" in report["config"]["error"] and "library" in report["llama"]
    assert "s3cret" not in json.dumps(report) and "192.168.7.7" not in json.dumps(report)


def test_whose_device_it_is(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = 'name = "anna-laptop"\n[http]\nlisten = "127.0.0.1:0"\nhosts = ["annas-box.lan"]\n'
    (home / "n.toml").write_text(text)
    report = doctor(capfd, "-c", "n.toml")
    assert "anna" not in json.dumps(report)
    name, box = (line.split('"')[1] for line in report["config"]["text"].splitlines() if "name-" in line)
    assert {name, box} == {"name-1", "name-2"}
    (home / "n.toml").write_text('name = "config"\n')
    report = doctor(capfd, "-c", "n.toml")
    assert report["config"]["text"] == 'name = "name-1"\n', "keys stay"


def test_a_library_that_is_none(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "lib.so").write_text("no library")
    (home / "n.toml").write_text('store = "s"\n[engine]\nlibrary = "lib.so"\n')
    report = doctor(capfd, "-c", "n.toml")
    assert "lib.so" in report["llama"]["error"]
    assert report["data"]["store"] == {"path": "~/s", "exists": False}


def test_into_a_file(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["doctor", "-o", "report.json"]) == 0
    assert capfd.readouterr().out == "written to report.json; read it before you send it\n"
    assert json.loads(Path("report.json").read_text())["report"]["version"] == 1
    assert frame.main(["doctor", "-o", "none/report.json"]) == 2
    assert "none/report.json: cannot be written" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("printed", "lines", "shown"),
    [
        ("", [], "  lines: none\n"),
        ("one  line\n{}\n", ["one  line", "{}"], "  lines:\n    one  line\n    {}\n"),
    ],
)
def test_the_journal_where_there_is_no_log(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    printed: str,
    lines: list[str],
    shown: str,
) -> None:
    tool = home / "journalctl"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    assert doctor(capfd)["log"] == {"from": "journal", "lines": lines}
    assert frame.main(["doctor"]) == 0
    told = capfd.readouterr().out
    assert f"log\n  from: journal\n{shown}" in told and "exit code" not in told
