"""The log of a node: for people on a terminal, JSON lines elsewhere, and the end of it in a file.

    12:04:31  warning: lost 12D3KooW...: connection closed
    {"at": "2026-11-30T12:04:31.482Z", "level": "warning", "logger": "panal.links", "text": "lost 12D3K..."}

Peers choose parts of what is logged: a line is one line in both, and holds nothing that a terminal obeys.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

from node.log_flood import FloodGuard

Mode = Literal["text", "json"]

FILE_BYTES = 1 << 20
"""Of a file before it is begun anew; one older one is kept. Days of an ordinary node."""


class ForPeople(logging.Formatter):
    """A time of day, what happened, and how bad it is, if it is."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created)
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{at:%H:%M:%S}  {level}{one_line(record.getMessage())}{_trace(self, record)}"


class JsonLines(logging.Formatter):
    """An object a line: at (UTC), level, logger, text, and trace if there is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        said = {
            "at": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": one_line(record.getMessage()),
        }
        if trace := _trace(self, record):
            said["trace"] = trace.strip("\n")
        return json.dumps(said, ensure_ascii=False)


class _Stderr(logging.Handler):
    """Writes to whatever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads any more
            pass


class _PrivateFile(RotatingFileHandler):
    """Files that only their owner reads: a log tells who talked to whom."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Of a full disk nothing is said: it would be a traceback for each line, and stderr has the line."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def set_up(mode: Mode | None = None) -> None:
    """Log to stderr from now on.

    Args:
        mode: None: text where stderr is a terminal, else JSON lines.
    """
    if mode is None:
        mode = "text" if sys.stderr.isatty() else "json"
    handler = _Stderr()
    handler.setFormatter(ForPeople() if mode == "text" else JsonLines())
    handler.addFilter(FloodGuard())
    root = logging.getLogger()
    root.handlers = [*(each for each in root.handlers if not isinstance(each, _Stderr)), handler]
    root.setLevel(logging.INFO)


def keep(path: Path) -> None:
    """Write the log to a file as well, for `panal doctor`. That it cannot be is only logged."""
    try:
        handler = _PrivateFile(path, maxBytes=FILE_BYTES, backupCount=1)
    except OSError as error:
        logging.getLogger("panal.device").warning("%s: no log is kept: %s", path, error.strerror)
        return
    handler.setFormatter(JsonLines())
    handler.addFilter(FloodGuard())
    logging.getLogger().addHandler(handler)


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a kept log, oldest line first; nothing if there is none."""
    lines: list[str] = []
    for each in (path, path.with_name(f"{path.name}.1")):
        try:
            data = each.read_bytes()[-FILE_BYTES:]
        except OSError:
            continue
        lines = data.decode("utf-8", "replace").splitlines() + lines
        if len(lines) >= count:
            break
    return lines[-count:]


def one_line(text: str) -> str:
    """No line breaks, no terminal sequences."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return "\n" + formatter.formatException(record.exc_info)
