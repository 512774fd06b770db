"""`panal doctor`: what a bug report needs, without what is nobody's business."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from routing.errors import LocalError

SHOWN_LINES = 20
"""Of the log, for people; JSON has them all."""


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "doctor",
        run,
        "gather what a bug report needs",
        epilog=(
            "Addresses, peer ids, keys, tokens, names of hosts and home folders are replaced by names that\n"
            "are the same wherever they stand (ip-1, peer-2). Read it before you send it all the same."
        ),
    )
    add_config(parser, required=False)
    parser.add_argument("--netcheck", action="store_true", help="ask the network too (up to a minute)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it into FILE, as JSON")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Gather, redact, show."""
    import socket

    from node.cli.progress import Progress
    from node.device.doctor import gather, models_of, names_of, secrets_of
    from node.device.redaction import Redactor

    with Progress() as progress:
        progress.report("gathering", 0, 0)
        gathered = gather(args.config, netcheck=args.netcheck)
    redactor = Redactor(
        home=os.environ.get("HOME", ""),
        host=socket.gethostname(),
        names=names_of(args.config),
        secrets=secrets_of(args.config),
        kept=models_of(gathered),
    )
    redactor.learn(gathered)
    report = redactor.value(gathered)
    if args.output is not None:
        _write(args.output, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        if not args.json:
            print(f"written to {args.output}; read it before you send it")
            return 0
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise LocalError(f"{path}: cannot be written: {error.strerror}") from None


def _lines(report: dict[str, Any]) -> list[str]:
    """For people."""
    lines: list[str] = []
    for title, part in report.items():
        lines += ["", f"{title}"] if lines else [title]
        lines += _shown(title, part, "  ")
    return lines


def _shown(title: str, part: Any, indent: str) -> list[str]:
    if isinstance(part, dict):
        lines = []
        for name, value in part.items():
            if value and (isinstance(value, dict) or (isinstance(value, list) and title != "system")):
                lines += [f"{indent}{name}:", *_shown(name, value, indent + "  ")]
            elif isinstance(value, str) and "\n" in value:
                lines += [
                    f"{indent}{name}:",
                    *(f"{indent}  | {_printable(each)}" for each in value.splitlines()),
                ]
            else:
                shown = (" ".join(map(str, value)) or "none") if isinstance(value, list) else value
                lines.append(f"{indent}{name}: {_printable(str(shown))}")
        return lines
    if isinstance(part, list):
        shown_part = part[-SHOWN_LINES:]
        left_out = [f"{indent}({len(part) - SHOWN_LINES} before)"] if len(part) > SHOWN_LINES else []
        return [*left_out, *(f"{indent}{_printable(_compact(each))}" for each in shown_part)]
    return [f"{indent}{_printable(str(part))}"]


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
