"""What README.md has its readers type, read out of its text.

Commands are the lines of indented blocks and of fenced ones without a language other than a shell's, and code
within a line that begins with `panal ` and names more than the command. What follows two spaces and a # is a
comment. Code within a line that only names a command or a flag ("`panal verify`") is a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SHELLS = ("", "sh", "bash", "console")

PROGRAMS = re.compile(r"(scripts/\w+|[A-Z_]+=\S+|panal|curl|python3?|pip|rm|mv|cp|cd|export|systemctl)( |$)")
"""How a line begins that is a command; anything else in a block is a file's content."""

_INLINE = re.compile(r"`(panal [^`]+)`")
_COMMENT = re.compile(r"(^|\s{2,})#.*$")
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
    return [each for each in _code(text) if not _MENTION.fullmatch(each.line) or each.line in _blocks(text)]


def read_mentions(text: str) -> list[Command]:
    """Commands that are only named."""
    return [each for each in _code(text) if _MENTION.fullmatch(each.line)]


def _blocks(text: str) -> set[str]:
    return {each.line for each, is_block in _walk(text) if is_block}


def _code(text: str) -> list[Command]:
    return [each for each, _ in _walk(text)]


def _walk(text: str) -> Iterator[tuple[Command, bool]]:
    """Commands and mentions, and whether each stands in a block."""
    section, fence, is_indented, before = "", None, False, ""
    pending = ""  # of a command that goes on in the next line
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().strip("`")
            continue
        if fence is None and line.startswith("#"):
            section = line.lstrip("# ").strip()
        is_indented = line.startswith("    ") and (is_indented or not before.strip())
        before = line
        if fence in SHELLS if fence is not None else is_indented:
            typed = _COMMENT.sub("", pending + line.strip().removeprefix("$ "))
            pending = typed[:-1] if typed.endswith("\\") else ""
            if not pending and PROGRAMS.match(typed):
                yield Command(section, typed, number), True
        elif fence is None:
            for found in _INLINE.finditer(line):
                yield Command(section, found[1], number), False
