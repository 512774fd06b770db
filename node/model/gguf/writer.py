"""Writing GGUF files: complete or not at all.

The file grows under a temporary name beside its target and takes the target's name only when all
of it is on the disk. Tensors can be holes: zeros that take no space on a file system with sparse
files.
"""

from __future__ import annotations

import os
import secrets
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.reader import MAX_KEYS, MAX_TENSORS
from node.model.gguf.types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_TENSOR_NAME_BYTES,
    MIN_ALIGNMENT,
    SCALARS,
    VALUE_DTYPES,
    VERSIONS,
    TensorType,
    ValueType,
    tensor_bytes,
)
from node.model.gguf.values import GGUFValue, StringArray

DISK_MARGIN_BYTES = 16 << 20  # left free: a full disk hurts more than a refused file

Bytes: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor for `write_gguf`.

    Attributes:
        shape: ggml order, ne[0] first.
        data: its bytes in one piece, or an iterable of pieces; None for a hole (zeros).
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: Bytes | Iterable[Bytes] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a file is.

    Attributes:
        head: the file's first bytes: metadata and tensor list.
        starts, sizes: of each tensor's data, in bytes from the file's beginning.
        total: size of the file.
    """

    head: bytes
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    total: int


def lay_out(target: Path, metadata: Mapping[str, GGUFValue], tensors: Sequence[TensorToWrite]) -> Layout:
    """Where `write_gguf` puts what; of the tensors' data nothing is read.

    Args:
        target: for errors.

    Raises:
        GGUFError: names or shapes don't fit.
    """
    alignment = _alignment(target, metadata)
    sizes = _checked_sizes(target, tensors)
    head = _encode_head(target, metadata, tensors, sizes, alignment)
    starts, end = [], _padded(len(head), alignment)
    for size in sizes:
        starts.append(end)
        end += _padded(size, alignment)
    return Layout(head, tuple(starts), tuple(sizes), end)


def write_gguf(
    target: Path | str, metadata: Mapping[str, GGUFValue], tensors: Sequence[TensorToWrite]
) -> int:
    """Write a GGUF (version 3) and return its size in bytes. A file of that name is replaced at the end.

    Raises:
        GGUFError: names, shapes or data don't fit, too little space, or the system refuses. No
            part of the file is left behind.
    """
    target = Path(target)
    layout = lay_out(target, metadata, tensors)
    placed = list(zip(tensors, layout.starts, layout.sizes, strict=True))
    solid = sum(size for tensor, _, size in placed if tensor.data is not None)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        _check_space(target, len(layout.head) + solid)
        try:
            # "x": never write through somebody else's file of that name
            with temporary.open("xb") as file:
                file.write(layout.head)
                for tensor, start, size in placed:
                    if tensor.data is not None:
                        file.seek(start)
                        _write_data(file, target, tensor, size)
                file.truncate(layout.total)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(target.parent)
    except OSError as error:
        raise GGUFError(
            f"{target}: cannot write: {error.strerror}: check the directory and the disk"
        ) from error
    return layout.total


def encode_value(value: GGUFValue) -> bytes:
    """The value's bytes as they follow its type in the file (an array with item type and count).

    Raises:
        ValueError: the value does not fit its type.
    """
    if value.type is ValueType.ARRAY:
        return _encode_array(value)
    if value.type is ValueType.STRING:
        if not isinstance(value.value, str):
            raise ValueError("a string is expected")
        return _encode_string(value.value)
    if (value.type is ValueType.BOOL) != isinstance(value.value, bool):
        raise ValueError(f"a {value.type.name} is expected")
    if isinstance(value.value, bool):
        return b"\1" if value.value else b"\0"
    try:
        return SCALARS[value.type].pack(value.value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"no {value.type.name}: {error}") from None


def _encode_array(value: GGUFValue) -> bytes:
    if value.item_type is None:
        raise ValueError("an array needs an item type")
    if isinstance(value.value, StringArray) and value.item_type is ValueType.STRING:
        body = value.value.raw
    elif isinstance(value.value, np.ndarray) and value.value.dtype == VALUE_DTYPES.get(value.item_type):
        body = value.value.tobytes()
    else:
        raise ValueError(f"an array of {value.item_type.name} is expected")
    return struct.pack("<IQ", value.item_type, len(value.value)) + body


def _encode_string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return len(data).to_bytes(8, "little") + data


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _alignment(target: Path, metadata: Mapping[str, GGUFValue]) -> int:
    entry = metadata.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if (
        entry.type is not ValueType.UINT32
        or not isinstance(value, int)
        or not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT
        or value & (value - 1)
    ):
        raise GGUFError(f"{target}: cannot write: {ALIGNMENT_KEY} must be a UINT32 power of two")
    return value


def _checked_sizes(target: Path, tensors: Sequence[TensorToWrite]) -> list[int]:
    if len(tensors) > MAX_TENSORS:
        raise GGUFError(f"{target}: cannot write: {len(tensors)} tensors, at most {MAX_TENSORS} are possible")
    sizes = []
    names: set[str] = set()
    for tensor in tensors:
        what = f"tensor {shown(tensor.name)}"
        if not 1 <= len(tensor.name.encode("utf-8", "replace")) <= MAX_TENSOR_NAME_BYTES:
            raise GGUFError(
                f"{target}: cannot write: {what} needs a name of 1 to {MAX_TENSOR_NAME_BYTES} bytes"
            )
        if tensor.name in names:
            raise GGUFError(f"{target}: cannot write: {what} occurs twice")
        names.add(tensor.name)
        try:
            sizes.append(tensor_bytes(tensor.shape, tensor.type))
        except ValueError as error:
            raise GGUFError(f"{target}: cannot write: {what} has {error}") from None
    return sizes


def _encode_head(
    target: Path,
    metadata: Mapping[str, GGUFValue],
    tensors: Sequence[TensorToWrite],
    sizes: Sequence[int],
    alignment: int,
) -> bytes:
    if len(metadata) > MAX_KEYS:
        raise GGUFError(f"{target}: cannot write: {len(metadata)} keys, at most {MAX_KEYS} are possible")
    pieces = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))]
    for key, value in metadata.items():
        try:
            if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
                raise ValueError(f"1 to {MAX_KEY_BYTES} bytes are possible")
            pieces += [_encode_string(key), struct.pack("<I", value.type), encode_value(value)]
        except ValueError as error:
            raise GGUFError(f"{target}: cannot write: key {shown(key)}: {error}") from None
    offset = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        form = f"<I{len(tensor.shape)}QIQ"
        pieces += [
            _encode_string(tensor.name),
            struct.pack(form, len(tensor.shape), *tensor.shape, tensor.type.id, offset),
        ]
        offset += _padded(size, alignment)
    return b"".join(pieces)


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed + DISK_MARGIN_BYTES > free:
        raise GGUFError(
            f"{target}: needs {needed} bytes, the disk has {free} free: make room or choose another directory"
        )


def _write_data(file: BinaryIO, target: Path, tensor: TensorToWrite, size: int) -> None:
    data = tensor.data
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    written = 0
    for piece in pieces or ():
        view = memoryview(piece).cast("B")
        written += len(view)
        if written > size:
            break
        file.write(view)
    if written != size:
        more = "more" if written > size else "less"
        raise GGUFError(
            f"{target}: cannot write: tensor {shown(tensor.name)} got {more} than its {size} bytes of data"
        )


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut; only POSIX systems can."""
    if os.name != "posix":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
