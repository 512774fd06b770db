"""A change of the books: what to write down, and what to send then. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from market.ledger import Record


def _nothing() -> None: ...


@dataclass(frozen=True)
class Step:
    """What to write, and what to send then.

    Attributes:
        write: records, all or none.
        message: to the peer; b"": nothing.
        refused: why the peer did not take our receipt, for a person; "" otherwise.
        again: the peer has shown us a later receipt: there may be another offer at once.
    """

    write: tuple[Record, ...] = ()
    message: bytes = b""
    refused: str = ""
    again: bool = False
    commit: Callable[[], None] = field(default=_nothing, repr=False)
