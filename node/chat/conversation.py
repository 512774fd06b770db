"""What was said so far, and what a typed line means. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

COMMANDS = {
    "/reset": "forget what was said",
    "/system TEXT": "say who the model is to be; without TEXT, take that back",
    "/stats": "what the last answer took",
    "/help": "these lines",
}


@dataclass(frozen=True)
class Turn:
    """Words for the model."""

    text: str


@dataclass(frozen=True)
class Command:
    """Words for the program.

    Attributes:
        name: with its slash; rest: what stands behind it.
    """

    name: str
    rest: str


def parse_line(line: str, *, as_json: bool = False) -> Turn | Command | None:
    """What a line means; None for an empty one. `//` begins a turn that begins with a slash.

    Args:
        as_json: a line that is {"content": TEXT} is that text, which may have lines of its own.
    """
    text = line.strip()
    if not text:
        return None
    if as_json and text.startswith("{"):
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict) and told.keys() == {"content"} and isinstance(told["content"], str):
            return Turn(told["content"])
    if text.startswith("//"):
        return Turn(text[1:])
    if text.startswith("/"):
        name, _, rest = text.partition(" ")
        return Command(name, rest.strip())
    return Turn(text)


@dataclass
class Conversation:
    """The messages so far.

    Attributes:
        system: who the model is to be; "" for nothing said.
    """

    system: str = ""
    _said: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self._said

    def messages_with(self, turn: str) -> list[dict[str, Any]]:
        """The messages that ask for an answer to a turn."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._said, {"role": "user", "content": turn}]

    def note(self, turn: str, answer: str) -> None:
        """Keep a turn and its answer, or as much of it as came."""
        self._said += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget what was said; who the model is to be, stays."""
        self._said.clear()
