"""Layers and experts as people write them: "0-3,8", both ends included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from routing.errors import LocalError

MAX_INDEX = 65535  # the wire names layers and experts in 16 bits; no model has a tenth as many
MAX_TEXT = 4096  # far beyond any split a person or `panal init` writes

_PART = re.compile(r"(0|[1-9][0-9]{0,5})(?:-(0|[1-9][0-9]{0,5}))?", re.ASCII)


class RangeError(LocalError):
    """A range that does not say which indices are meant."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """A set of indices, kept as ascending runs that neither touch nor overlap.

    Attributes:
        runs: (first, last) of each run, both included; never empty.
    """

    runs: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Read "0-3,8". Order is free; an index named twice, a gap in the syntax, or a run that goes
        backwards is a RangeError."""
        if len(text) > MAX_TEXT:
            raise RangeError(f"a range of {len(text)} characters; the limit is {MAX_TEXT}")
        runs = sorted(_parse_part(part, text) for part in text.split(","))
        merged = [runs[0]]
        for first, last in runs[1:]:
            if first <= merged[-1][1]:
                raise RangeError(f'range "{text}" names {first} twice')
            if first == merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def below(cls, count: int) -> Ranges:
        """All indices from 0 to count - 1: what "all layers" or "all experts" means."""
        if not 0 < count <= MAX_INDEX + 1:
            raise RangeError(f"no range of {count} indices; between 1 and {MAX_INDEX + 1} are possible")
        return cls(((0, count - 1),))

    @property
    def last(self) -> int:
        """The largest index."""
        return self.runs[-1][1]

    def require_below(self, count: int, what: str) -> None:
        """Raise RangeError unless every index is below `count`; `what` is the plural for the message."""
        if self.last >= count:
            raise RangeError(f'range "{self}" goes past the last: there are {count} {what}, 0 to {count - 1}')

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and any(first <= index <= last for first, last in self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.runs)


def _parse_part(part: str, text: str) -> tuple[int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise RangeError(f'cannot read the range {text!r}; write it like "0-3,8" (no spaces)')
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise RangeError(f'range "{part}" goes backwards; write "{last}-{first}"')
    if last > MAX_INDEX:
        raise RangeError(f'range "{part}" goes past {MAX_INDEX}, the largest index there can be')
    return first, last
