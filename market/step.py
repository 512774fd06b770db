"""A change of the books: what to write down, and what to send then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from market.ledger import Record
from market.receipt import Kind


def _nothing() -> None: ...


@dataclass(frozen=True)
class Step:
    """What to write, and what to send then.

    Attributes:
        write: records, all or none.
        message: to the peer; b"": nothing.
        refused: why the peer did not take our receipt, for a person; "" otherwise.
        again: the peer has shown us a later receipt: there may be another offer at once.
        commit: what is so once it is on the disk; `abandon`: what is undone if it cannot be.
        kind: of the receipt that is offered, if one is.
    """

    write: tuple[Record, ...] = ()
    message: bytes = b""
    refused: str = ""
    again: bool = False
    commit: Callable[[], None] = field(default=_nothing, repr=False)
    abandon: Callable[[], None] = field(default=_nothing, repr=False)
    kind: Kind = Kind.WORK


def together(steps: Sequence[Step]) -> Step:
    """Several steps, of one peer or many, as one that is written at once; nothing is sent."""

    def commit() -> None:
        for step in steps:
            step.commit()

    def abandon() -> None:
        for step in steps:
            step.abandon()

    write = tuple(record for step in steps for record in step.write)
    return Step(write, commit=commit, abandon=abandon)
