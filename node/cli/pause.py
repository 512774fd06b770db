"""`panal pause`, `panal resume`: the device is its owner's."""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import NodeConfig

_SERVES: dict[str, Any] = {"paused": False, "reasons": [], "text": "", "until": None, "by_hand": False}
"""What is told of a node that is not paused; the same of one that is."""

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_LENGTH = re.compile(r"([0-9]{1,8}(?:\.[0-9]{1,3})?) ?([a-z]{1,3})", re.ASCII)


def add_arguments(subparsers: Subparsers) -> None:
    """Declare both commands."""
    pause = add_command(
        subparsers,
        "pause",
        run_pause,
        "have the node of this device serve nothing for a while",
        epilog=(
            "It refuses calls, tells its peers that it serves nothing, and keeps its connections; relaying,\n"
            "its page and its own answers go on. A pause outlives the node: it holds when it starts again.\n"
            "[device] in the config has a schedule, and a rule for when the device is used otherwise."
        ),
    )
    add_config(pause, required=False)
    pause.add_argument(
        "--for",
        dest="length",
        type=_length,
        metavar="TIME",
        help="how long, like 30m, 2h or 1d (default: until panal resume)",
    )
    add_json(pause)
    resume = add_command(subparsers, "resume", run_resume, "have a paused node serve again")
    add_config(resume, required=False)
    add_json(resume)


def run_pause(args: argparse.Namespace) -> int:
    """Pause the node that runs, or the one that will be started."""
    from node.device.pause_rules import HandPause

    HandPause.begin(time.time(), args.length)  # refuses lengths that are none before anybody is asked
    return _change(args, "/api/pause", {"seconds": args.length})


def run_resume(args: argparse.Namespace) -> int:
    """End the pause by hand."""
    return _change(args, "/api/resume", {})


def _change(args: argparse.Namespace, path: str, body: dict[str, Any]) -> int:
    from node.device.folder import NodeFolder
    from node.device.lock import holder
    from node.device.running_node import NodeSilent, find_running
    from node.device.which_config import load

    config = load(args.config)
    folder = NodeFolder.of(config)
    running = find_running(folder, config.http.key_file)
    state: dict[str, Any] | None = None
    if running is not None:
        try:
            state = _told(running.post(path, body), running.address)
        except NodeSilent:
            pass  # it looks at the file as well
    is_running = True
    if state is None:
        state, is_running = _in_file(config, path, body), holder(folder) is not None
    told = {name: state[name] for name in _SERVES} | {"running": is_running}
    print(json.dumps(told) if args.json else _words(told))
    return 0


def _told(answer: object, address: str) -> dict[str, Any]:
    """The pause in a node's answer."""
    state = answer.get("pause", False) if isinstance(answer, dict) else False
    state = _SERVES if state is None else state
    if not isinstance(state, dict) or not _SERVES.keys() <= state.keys():
        raise LocalError(
            f"the node at {address} tells of its pause otherwise than this panal reads it: start it again"
        )
    return state


def _in_file(config: NodeConfig, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Without a node that answers: what it reads within a second, or when it is started."""
    from node.device.folder import NodeFolder
    from node.device.pausing import Pausing

    pausing = Pausing(NodeFolder.of(config), config.device)
    state = pausing.resume() if path == "/api/resume" else pausing.pause(body["seconds"])
    return state.as_dict()


def _words(state: dict[str, Any]) -> str:
    is_running = state["running"]
    who = "the node" if is_running else "no node runs here; the next one"
    if not state["paused"]:
        return f"{who} serves" if is_running else f"{who} will serve"
    text = str(state["text"])
    if not is_running:
        return f"{who} will be paused: {text}"
    hint = ""
    if state["by_hand"]:
        hint = "; panal resume ends it" if state["until"] is None else ""
    else:
        hint = "; that is by [device] in the config" if state["reasons"] else ""
    return f"paused: {text}{hint}"


def _length(text: str) -> float:
    """An argparse type: a length of time, in seconds."""
    match = _LENGTH.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no length of time; write it like 30m, 2h or 1d")
    return float(match[1]) * UNITS[match[2]]
