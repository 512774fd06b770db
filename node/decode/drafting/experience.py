"""How guesses of a model fared, kept beside its manifest: `models/<model id>/guesses.json`. Only a head
start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from node.decode.drafting.acceptance import Acceptance, AcceptanceNumbers
from node.model.store import replace_file

FILE_NAME = "guesses.json"

MAX_BYTES = 1 << 20
"""Of the file: a hundred times what MAX_SOURCES of them take."""


def read_acceptance(folder: Path) -> Acceptance:
    """What is known of a model's guessers; nothing if the file is missing or damaged."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return Acceptance(msgspec.json.decode(file.read(MAX_BYTES), type=AcceptanceNumbers))
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return Acceptance()


def keep_acceptance(folder: Path, acceptance: Acceptance) -> None:
    """Write it down; a folder that cannot be written to costs only the head start."""
    numbers = acceptance.numbers()
    if not numbers.sources:
        return
    try:
        replace_file(folder / FILE_NAME, msgspec.json.encode(numbers))
    except OSError:
        pass
