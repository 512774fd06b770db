"""What a process that follows a grammar is asked. Its answers: nothing, a mask, or a grammar."""

from __future__ import annotations

import msgspec


class Setup(msgspec.Struct, frozen=True):
    """Of which model: its vocabulary says what a token spells."""

    model: list[str]


class Check(msgspec.Struct, frozen=True, tag=True):
    """Is it a grammar, and is anything permitted at its start? Answer: nothing."""

    text: str


class Convert(msgspec.Struct, frozen=True, tag=True):
    """A JSON schema, as JSON. Answer: its grammar, which has been checked."""

    schema: str


class Open(msgspec.Struct, frozen=True, tag=True):
    """Stand at the start of a grammar. Answer: nothing.

    Attributes:
        number: what this place is called from now on.
    """

    number: int
    text: str


class Take(msgspec.Struct, frozen=True, tag=True):
    """Go on by a token. Answer: nothing if it was permitted; else which ones are.

    That is a bit for each token of the vocabulary, the most significant bit first.
    """

    number: int
    token: int


class Copy(msgspec.Struct, frozen=True, tag=True):
    """Have another that stands in the same place. Answer: nothing."""

    number: int
    copy: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Forget a place. Answer: nothing."""

    number: int


Question = Check | Convert | Open | Take | Copy | Close
