"""The frame of the `panal` command: arguments in, one exit code out.

Exit codes: 0 done; 1 a peer failed, or a check did not hold; 2 this side's mistake (arguments, files,
config); 130 interrupted. An error is one line on stderr. What is not a PanalError is a bug and keeps
its traceback.

Parsing imports nothing heavy: a command's module imports what it needs inside `run`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from node.cli import demo, generate, init, model, run, slices, verify
from routing.errors import LocalError, PanalError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what any other command piped into `head` leaves

COMMANDS = (demo, verify, init, run, generate, model, slices)

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

"panal COMMAND --help" shows a command's flags. Exit codes: 0 done, 1 a peer or a check failed,
2 a mistake on this side, 130 interrupted."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with EXIT_USAGE."""
        line = " ".join(message.split())
        self.exit(EXIT_USAGE, f'{self.prog}: {line}; see "{self.prog} --help"\n')


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse's own exits (--help, usage) raise SystemExit."""
    try:
        try:
            args = build_parser().parse_args(argv)
            # What matters to the user is the command's own output; `run` opens a log of its own.
            logging.getLogger("panal").addHandler(logging.NullHandler())
            code: int = args.run(args)
            return code
        finally:
            sys.stdout.flush()  # here and not at exit, so that a reader gone away is met below
    except BrokenPipeError:
        return _leave_broken_pipe()
    except (PanalError, KeyboardInterrupt, OSError) as error:
        return _report(error)
    except BaseExceptionGroup as group:  # a trio nursery wraps whatever its tasks raise
        leaves = list(_leaves(group))
        if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):
            return _leave_broken_pipe()
        if not all(isinstance(leaf, PanalError | KeyboardInterrupt) for leaf in leaves):
            raise
        return _report(leaves[0])


def _report(error: BaseException) -> int:
    """Tell the user and pick the exit code; an OSError that names no file is a bug, and raised again."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    line = str(error)
    if isinstance(error, OSError):
        if not isinstance(error.filename, str | bytes):
            raise error
        line = f"{os.fsdecode(error.filename)}: {error.strerror}"
    print("panal:", _one_line(line), file=sys.stderr)
    return EXIT_USAGE if isinstance(error, LocalError | OSError) else EXIT_FAILED


def _one_line(text: str) -> str:
    """Peers and files choose parts of our messages: no line breaks, no terminal sequences."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _leave_broken_pipe() -> int:
    """The reader (head, less) went away. Python would complain once more when it flushes stdout at
    exit, so stdout is pointed at nothing first."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
