"""What README.md has its readers type, read out of its text.

Commands are the lines of indented blocks and of fenced ones without a language other than a shell's, and code
within a line that begins with `panal ` and names more than the command. A block that begins with an import is
a program, and one command. What follows a # between spaces is a comment. Code within a line that only names a
command or a flag ("`panal verify`") is a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SHELLS = ("", "sh", "bash", "console")

PROGRAMS = re.compile(r"(scripts/\w+|[A-Z_]+=\S+|panal|curl|python3?|pip|rm|mv|cp|cd|export|systemctl)( |$)")
"""How a line begins that is a command; anything else in a block is the content of a file."""

_INLINE = re.compile(r"`(panal [^`]+)`")
_COMMENT = re.compile(r"(^|\s+)#(\s.*)?$")
_MENTION = re.compile(r"panal( [a-z]+| --[a-z][a-z-]*)+")


@dataclass(frozen=True)
class Command:
    """One of them.

    Attributes:
        section: the heading it stands under; line: without its comment; number: of its line in the file.
    """

    section: str
    line: str
    number: int


def read_commands(text: str) -> list[Command]:
    """All that are to be typed, in order."""
    return [each for each, is_block in _walk(text) if is_block or not _MENTION.fullmatch(each.line)]


def read_mentions(text: str) -> list[Command]:
    """Commands that are only named."""
    return [each for each, is_block in _walk(text) if not is_block and _MENTION.fullmatch(each.line)]


def _walk(text: str) -> Iterator[tuple[Command, bool]]:
    """Commands and mentions, and whether each stands in a block."""
    section, fence, is_indented, before = "", None, False, ""
    pending = ""  # of a command that goes on in the next line
    program: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if program and not line.strip():
            yield Command(section, "\n".join(program), number - len(program)), True
            program = []
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().strip("`")
            continue
        if fence is None and line.startswith("#"):
            section = line.lstrip("# ").strip()
        is_indented = line.startswith("    ") and (is_indented or not before.strip())
        before = line
        if fence in SHELLS if fence is not None else is_indented:
            if program or re.match(r"(from|import) ", line.strip()):
                program.append(line.removeprefix("    "))
                continue
            typed = _COMMENT.sub("", pending + line.strip().removeprefix("$ "))
            pending = typed[:-1] if typed.endswith("\\") else ""
            if not pending and PROGRAMS.match(typed):
                yield Command(section, typed, number), True
        elif fence is None:
            for found in _INLINE.finditer(line):
                yield Command(section, found[1], number), False
