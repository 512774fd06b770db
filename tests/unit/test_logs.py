"""The log: text for people, JSON lines for programs, and the end of it kept in a file."""

from __future__ import annotations

import io
import json
import logging
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.device import logs


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = before, level


def logged(monkeypatch: pytest.MonkeyPatch, mode: logs.Mode | None, *, tty: bool = False) -> str:
    stream = io.StringIO()
    stream.isatty = lambda: tty  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up(mode)
    log = logging.getLogger("panal.links")
    log.info("connected to %s", 'a "friend"')
    log.warning("lost \x1b[2J%s", "one\ntwo")
    log.debug("not this")
    return stream.getvalue()


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = logged(monkeypatch, "text").splitlines()
    assert first[8:] == '  connected to a "friend"' and first[2] == first[5] == ":"
    assert second[8:] == "  warning: lost \\x1b[2Jone\\ntwo"


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(json.loads, logged(monkeypatch, "json").splitlines())
    at = first.pop("at")
    assert len(at) == len("2026-11-30T12:04:31.482Z") and at.endswith("Z")
    assert first == {"level": "info", "logger": "panal.links", "text": 'connected to a "friend"'}
    assert (second["level"], second["text"]) == ("warning", "lost \\x1b[2Jone\\ntwo")


def test_by_itself_text_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged(monkeypatch, None, tty=True)[2] == ":"
    logging.getLogger().handlers.clear()
    assert json.loads(logged(monkeypatch, None).splitlines()[0])["level"] == "info"


def test_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up("json")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("panal").exception("it broke")
    said = json.loads(stream.getvalue())
    assert said["text"] == "it broke" and said["trace"].endswith("ValueError: no")


def test_the_end_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "panal.log"
    logged(monkeypatch, "text")
    logs.keep(path)
    log = logging.getLogger("panal.test")
    for number in range(3):
        log.info("line %d", number)
    assert [json.loads(line)["text"] for line in logs.last_lines(path, 2)] == ["line 1", "line 2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.with_name("panal.log.1").write_text("older\n")
    assert logs.last_lines(path, 100)[0] == "older"
    assert logs.last_lines(tmp_path / "none", 5) == []


def test_it_is_begun_anew_before_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    path = tmp_path / "panal.log"
    logging.getLogger().setLevel(logging.INFO)
    logs.keep(path)
    for number in range(29):  # of a kind more are left out (node.log_flood)
        logging.getLogger("panal.test").info("%s %d", "x" * 200, number)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["panal.log", "panal.log.1"]
    assert all((tmp_path / name).stat().st_size <= 2000 for name in files)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().addHandler(caplog.handler)
    logs.keep(tmp_path / "none" / "panal.log")
    assert "no log is kept" in caplog.text
