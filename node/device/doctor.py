"""What a bug report needs, gathered: each part by itself, so that what is broken does not hide the rest.

Nothing here is redacted; `node.device.redaction` does that to all of it at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from node.config import NodeConfig
from node.device.asking import ask
from node.device.folder import NodeFolder
from node.device.lock import holder
from node.device.logs import last_lines
from node.device.pausing import Pausing
from node.device.running_node import find_running
from node.device.system_facts import MAX_TEXT, llama_facts, panal_facts, read_text, system_facts
from node.device.which_config import is_bare, load
from routing.errors import LocalError, PanalError

LOG_LINES = 100
NETCHECK_SECONDS = 60.0
JOURNAL_SECONDS = 30.0
MAX_FILES = 100_000
"""Looked at to add up a folder's size."""

Report = dict[str, Any]


def gather(given: Path | None, environ: Mapping[str, str] = os.environ, *, netcheck: bool = False) -> Report:
    """The whole report.

    Args:
        given: the config that was named.
        netcheck: ask the network too, which takes up to a minute.
    """
    report: Report = {
        "report": {"version": 1, "at": datetime.now(UTC).isoformat(timespec="seconds")},
        "panal": _tried(panal_facts),
        "system": _tried(system_facts),
        "llama": _tried(lambda: llama_facts(None)),
    }
    try:
        config = load(given, environ)
    except LocalError as error:
        report["config"] = {"error": str(error), "text": read_text(given)}
        return report
    folder = NodeFolder.of(config)
    if config.engine.library is not None:
        report["llama"] = _tried(lambda: llama_facts(config.engine.library))
    report["config"] = {
        "path": str(config.path),
        "exists": not is_bare(config),
        "text": read_text(config.path),
    }
    report["data"] = _tried(lambda: _data(config, folder))
    report["lock"] = _tried(lambda: _lock(folder))
    report["pause"] = _tried(lambda: Pausing(folder, config.device).state.as_dict())
    report["node"] = _tried(lambda: _node(config, folder))
    report["log"] = _tried(lambda: _log(folder))
    if netcheck:
        report["netcheck"] = _tried(lambda: _netcheck(config))
    return report


def secrets_of(given: Path | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What must not be told wherever it stands: the node's token, its API keys."""
    try:
        config = load(given, environ)
    except LocalError:
        return []
    found = []
    for path in (NodeFolder.of(config).http_token, config.http.key_file):
        text = "" if path is None else read_text(path)
        found += [word for word in text.split() if len(word) >= 8]
    return found


def names_of(given: Path | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names that tell whose device it is: the node's, and those of `http.hosts`."""
    try:
        config = load(given, environ)
    except LocalError:
        return []
    return [config.name or "", *config.http.hosts]


def models_of(report: Report) -> list[str]:
    """Ids of models in a report: they are no secret."""
    return [str(each) for each in report.get("data", {}).get("models", [])]


# --- the parts ---


def _data(config: NodeConfig, folder: NodeFolder) -> Report:
    store = config.store
    models = store / "models"
    names = sorted(each.name for each in models.iterdir() if len(each.name) == 64) if models.is_dir() else []
    return {
        "store": _folder(store),
        "folder": _folder(folder.root) if folder.root != store else "the store's",
        "models": names,
        "model_bytes": {name: _size(models / name) for name in names},
        "files": {
            path.name: _mode(path)
            for path in (
                config.identity_path, folder.lock, folder.http, folder.http_token, folder.pause, folder.log,
                folder.serving,
            )
        },
    }  # fmt: skip


def _lock(folder: NodeFolder) -> Report:
    owner = holder(folder)
    if owner is None:
        return {"held": False}
    return {"held": True, "pid": owner.pid, "version": owner.version, "config": owner.config}


def _node(config: NodeConfig, folder: NodeFolder) -> Report:
    running = find_running(folder, config.http.key_file)
    if running is None:
        return {"running": False, "why": "no node runs in this folder, or it has no HTTP"}
    return {"running": True, "status": running.get("/api/status")}


def _log(folder: NodeFolder) -> Report:
    lines = last_lines(folder.log, LOG_LINES)
    if lines:
        return {"from": str(folder.log), "lines": lines}
    if shutil.which("journalctl"):
        command = ["journalctl", "--user", "--unit=panal", "--quiet", "--no-pager", f"--lines={LOG_LINES}"]
        done = ask([*command, "--output=cat"], JOURNAL_SECONDS)
        if done.returncode == 0:
            return {"from": "journal", "lines": done.stdout[-MAX_TEXT:].splitlines()}
    return {"from": "", "lines": []}


def _netcheck(config: NodeConfig) -> Any:
    command = [sys.executable, "-P", "-m", "node.cli.main", "netcheck", "--json"]
    if not is_bare(config):
        command += ["-c", str(config.path)]
    done = ask(command, NETCHECK_SECONDS)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.strip()[-1000:] or f"ended with code {done.returncode}"}


# --- how they look ---


def _tried(part: Callable[[], Any]) -> Any:
    """A part, or why there is none."""
    try:
        return part()
    except (OSError, ValueError, PanalError, subprocess.SubprocessError, PackageNotFoundError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _folder(path: Path) -> Report:
    if not path.is_dir():
        return {"path": str(path), "exists": False}
    usage = shutil.disk_usage(path)
    return {
        "path": str(path),
        "mode": _mode(path),
        "bytes": _size(path),
        "disk_free": usage.free,
        "disk_total": usage.total,
    }


def _mode(path: Path) -> str:
    """ "0600, own" """
    try:
        status = path.lstat()
    except OSError as error:
        return error.strerror or "unreadable"
    own = "own" if not hasattr(os, "getuid") or status.st_uid == os.getuid() else "another user's"
    return f"{status.st_mode & 0o7777:04o}, {own}"


def _size(path: Path) -> int:
    """Bytes of a folder's files, of the first MAX_FILES."""
    total = count = 0
    for root, _, names in os.walk(path):
        for name in names:
            count += 1
            if count > MAX_FILES:
                return total
            try:
                total += (Path(root) / name).lstat().st_size
            except OSError:
                continue
    return total
