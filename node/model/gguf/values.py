"""Metadata values with the types they have in a file, so that they can be written back unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.types import INTEGER_TYPES, VALUE_DTYPES, ValueType


class StringArray(Sequence[str]):
    """An array of strings, kept as it stands in the file: a tokenizer has 300,000 of them.

    Bytes that are no UTF-8 come out as lone surrogates ("surrogateescape"), so that they can be
    written back unchanged.
    """

    __slots__ = ("_count", "_offsets", "raw")

    def __init__(self, raw: bytes, count: int) -> None:
        """`raw` is the array's body in the file: `count` times a u64 length and that many bytes."""
        self.raw = raw
        self._count = count
        self._offsets: npt.NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> StringArray:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        return cls(b"".join(len(item).to_bytes(8, "little") + item for item in encoded), len(encoded))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        if self._offsets is None:
            self._offsets = np.fromiter(self._starts(), np.uint32, self._count)
        return self._at(int(self._offsets[index]))

    def __iter__(self) -> Iterator[str]:
        return (self._at(start) for start in self._starts())

    def _starts(self) -> Iterator[int]:
        start = 0
        for _ in range(self._count):
            yield start
            start += 8 + int.from_bytes(self.raw[start : start + 8], "little")

    def _at(self, start: int) -> str:
        size = int.from_bytes(self.raw[start : start + 8], "little")
        return self.raw[start + 8 : start + 8 + size].decode("utf-8", "surrogateescape")


Scalar: TypeAlias = int | float | bool | str
ArrayBody: TypeAlias = StringArray | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class GGUFValue:
    """A metadata value with the type it has in the file.

    Attributes:
        type: its type.
        value: int, float, bool or str; for arrays a `StringArray` or a read-only numpy array.
        item_type: the type of an array's items; None for everything else.
    """

    type: ValueType
    value: Scalar | ArrayBody
    item_type: ValueType | None = None

    @classmethod
    def string(cls, text: str) -> GGUFValue:
        return cls(ValueType.STRING, text)

    @classmethod
    def uint32(cls, number: int) -> GGUFValue:
        return cls(ValueType.UINT32, number)

    @classmethod
    def array(cls, item_type: ValueType, items: Iterable[Any]) -> GGUFValue:
        """An array of `items`; numbers must fit `item_type` (OverflowError otherwise)."""
        if item_type is ValueType.STRING:
            return cls(ValueType.ARRAY, StringArray.of(items), item_type)
        body = np.array(list(items), VALUE_DTYPES[item_type])
        body.setflags(write=False)
        return cls(ValueType.ARRAY, body, item_type)


def metadata_int(metadata: Mapping[str, GGUFValue], key: str, path: Path) -> int | None:
    """The integer under `key`, None where there is none.

    Raises:
        GGUFError: the key holds something else.
    """
    entry = metadata.get(key)
    if entry is None:
        return None
    if entry.type not in INTEGER_TYPES or not isinstance(entry.value, int):
        raise GGUFError(
            f"{path}: {shown(key)} is a {entry.type.name}, an integer is expected: convert the file again"
        )
    return entry.value


def metadata_str(metadata: Mapping[str, GGUFValue], key: str, path: Path) -> str | None:
    """The string under `key`, None where there is none.

    Raises:
        GGUFError: the key holds something else.
    """
    entry = metadata.get(key)
    if entry is None:
        return None
    if not isinstance(entry.value, str):
        raise GGUFError(
            f"{path}: {shown(key)} is a {entry.type.name}, a string is expected: convert the file again"
        )
    return entry.value
