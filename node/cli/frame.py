"""The frame of the `panal` command: arguments in, one exit code out.

Exit codes: 0 done (`run` ends so on Ctrl-C too); 1 a peer failed, or a check did not hold; 2 this side's
mistake (arguments, files, config), or output that cannot be written; 130 interrupted. An error is one line
on stderr. What is not a PanalError is a bug and keeps its traceback.

Parsing imports nothing heavy: a command's module imports what it needs inside `run`.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, TextIO, cast

from node.cli import (
    bench,
    chat,
    demo,
    doctor,
    generate,
    home,
    init,
    market,
    model,
    netcheck,
    pause,
    run,
    service,
    slices,
    status,
    swarm,
    verify,
)
from node.sigint import EXIT_INTERRUPTED
from routing.errors import LocalError, PanalError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what any other command piped into `head` leaves

COMMANDS = (
    demo, verify, init, run, generate, chat, netcheck, status, pause, swarm, model, slices, home, market,
    bench, service, doctor,
)  # fmt: skip

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

DESCRIPTION = """\
Run a mixture-of-experts model on several devices that none of them could hold alone: one runs the
trunk on stock llama.cpp, the others compute experts."""

EPILOG = """\
See it work, on this machine, with the model that ships with panal:
  panal demo

Will this model work? Same bytes as plain llama.cpp, over three local servers:
  panal model inspect MODEL.gguf
  panal verify MODEL.gguf --servers 3

Two machines. On the one that serves experts (it prints its address):
  panal init --serve MODEL.gguf:0-23
  panal run -c node.toml
On the one that asks:
  panal init --model MODEL.gguf --peer /ip4/.../udp/4190/quic-v1/p2p/12D3...
  panal generate -c node.toml -p "Once upon a time"
  panal run -c node.toml         page and OpenAI-compatible API, at the address it prints
  panal chat -c node.toml

On one network they find each other without --peer; elsewhere one address of the swarm is enough.
What works from here, and what to do about the rest:
  panal netcheck -c node.toml
Faster: experts on the device that asks, chosen by measuring; what it comes to:
  panal home plan MODEL.gguf --memory 4GiB; panal bench trips -c node.toml
A swarm for people you know:
  panal swarm create NAME; panal swarm invite PEER-ID; panal swarm join INVITATION -c node.toml

PANAL_LOG=info (or debug) shows a command's log on stderr. "panal COMMAND --help" shows its
flags. Exit codes: 0 done, 1 a peer or a check failed,
2 a mistake on this side, 130 interrupted; "panal run" is done when Ctrl-C ends it: 0."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with EXIT_USAGE."""
        line = " ".join(message.split())
        if line.endswith("required: COMMAND"):
            line += f", one of {', '.join(self._commands())}"
        _tell(f'{self.prog}: {line}; see "{self.prog} --help"')
        self.exit(EXIT_USAGE)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Leave because of arguments that it does not know."""
        import difflib
        import re

        line = f"unrecognized arguments: {' '.join(unknown)}"
        flags = set(re.findall(r"--[a-z][a-z-]*", self.format_help()))
        alike = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1)
        self.error(f"{line} (did you mean {alike[0]}?)" if alike else line)

    def _commands(self) -> list[str]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return list(action.choices)
        return []


class _Version(argparse.Action):
    """Looks the version up only when asked: importlib.metadata costs more than the rest of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        from importlib.metadata import version

        print(f"panal {version('panal')}")
        parser.exit()


def build_parser() -> Parser:
    """The whole command line; each command's namespace carries its `run`."""
    parser = Parser(
        prog="panal",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for command in COMMANDS:
        command.add_arguments(subparsers)
    return parser


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse's own exits (--help, usage) raise SystemExit."""
    _mend_streams()
    try:
        try:
            args, unknown = build_parser().parse_known_args(argv)
            if unknown:
                cast(Parser, args.parser).refuse(unknown)
            # What matters to the user is the command's own output; `run` opens a log of its own.
            logging.getLogger("panal").addHandler(_log_handler())
            code: int = args.run(args)
            return code
        finally:
            sys.stdout.flush()  # here and not at exit, so that a reader gone away is met below
    except (PanalError, KeyboardInterrupt, OSError) as error:
        return _report(error)
    except BaseExceptionGroup as group:  # a trio nursery wraps whatever its tasks raise
        return _report(group)


def _log_handler() -> logging.Handler:
    """Where the log goes: nowhere, or to stderr if $PANAL_LOG names a level (debug, info, warning)."""
    level = os.environ.get("PANAL_LOG", "").upper()
    if level not in LOG_LEVELS:
        if level:
            _tell(f"PANAL_LOG is {level.lower()[:40]!r}, not one of {', '.join(LOG_LEVELS).lower()}: no log")
        return logging.NullHandler()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger = logging.getLogger("panal")
    logger.setLevel(level)
    logger.propagate = False  # else a command with a log of its own, as `run`, would write every line twice
    return handler


def _mend_streams() -> None:
    """Make printing safe: Python has None for a stream that was closed before it began (`panal >&-`), and
    raises for characters that the encoding lacks.

    In the order of their numbers, for each open takes the lowest free one: a number left free would go
    to the next socket or file, and what llama.cpp prints would end up in that.
    """
    if sys.stdin is None:
        sys.stdin = _nowhere("r")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    if sys.stderr is None:
        sys.stderr = _nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere(mode: str) -> TextIO:
    return cast(TextIO, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _report(error: BaseException) -> int:
    """Tell the user and pick the exit code. What nobody foresaw is a bug, and raised again."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):  # the reader (head, less) went away
        _drop_output()
        return EXIT_BROKEN_PIPE
    for leaf in leaves:
        if isinstance(leaf, OSError) and leaf.filename is None and _drop_output():
            return _say(f"cannot write the output: {leaf.strerror or leaf}", EXIT_USAGE)
    first = leaves[0]
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        return _say(f"{os.fsdecode(error.filename)}: {error.strerror}", EXIT_USAGE)
    if not all(isinstance(leaf, PanalError | KeyboardInterrupt) for leaf in leaves):
        raise error
    if isinstance(first, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return _say(str(first), EXIT_USAGE if isinstance(first, LocalError) else EXIT_FAILED)


def _say(line: str, code: int) -> int:
    _tell(f"panal: {line}")
    return code


def _tell(line: str) -> None:
    try:
        print(_one_line(line), file=sys.stderr, flush=True)
    except OSError:  # nobody can be told; the exit code still says it
        _point_at_nothing(sys.stderr)


def _one_line(text: str) -> str:
    """Peers and files choose parts of our messages: no line breaks, no terminal sequences."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _drop_output() -> bool:
    """Point each output that takes nothing more at nothing, as Python flushes both once more at exit and
    would complain; whether there was such an output.

    That an OSError came from printing shows in this: a buffer keeps what it could not write, so that
    flushing it fails again. A stdout without a buffer (`python -u`) is tried with one more line end.
    """
    dropped = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stdout and isinstance(stream.buffer, io.RawIOBase):
                stream.write("\n")
            stream.flush()
        except OSError:
            _point_at_nothing(stream)
            dropped = True
    return dropped


def _point_at_nothing(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
