"""Text from a peer that a person will read: printable, on one line, bounded."""

from __future__ import annotations


def sanitise(text: str, max_bytes: int) -> str:
    """Make text safe to print.

    Control characters, line ends, bidirectional overrides and other unprintable code points become
    spaces (a terminal must not obey a peer), runs of spaces become one, and the UTF-8 form is cut to
    `max_bytes` at a character.
    """
    # isprintable() is False for Unicode's "Other" and "Separator" categories, save the space.
    printable = "".join(character if character.isprintable() else " " for character in text[: max_bytes * 4])
    joined = " ".join(printable.split())
    return joined.encode("utf-8", errors="replace")[:max_bytes].decode("utf-8", errors="ignore").rstrip()
