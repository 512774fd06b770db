"""The strict header reader: everything a GGUF file says about itself, or one clear error.

Work and memory are bounded by the bytes that are really there: a claimed length or count is
compared with the file's size and with a limit below before anything is allocated. Tensor data is
not read.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from io import FileIO
from pathlib import Path

import numpy as np

from node.model.gguf.cursor import HeaderCursor
from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.header import FileStamp, GGUFHeader, TensorInfo
from node.model.gguf.types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_TENSOR_NAME_BYTES,
    MIN_ALIGNMENT,
    SCALARS,
    TENSOR_TYPES,
    VALUE_DTYPES,
    VERSIONS,
    ValueType,
    tensor_bytes,
)
from node.model.gguf.values import GGUFValue, StringArray

# A hostile file must not cost more than 32 MiB: 24 for metadata, 6 for tensors, and a window.
# Tokenizers of the largest vocabularies (262,000 tokens, 515,000 merges) take 16 MB as held here.
MAX_METADATA_BYTES = 24 << 20
MAX_ARRAY_BYTES = 16 << 20  # 515,000 merges take 9 MB
MAX_ARRAY_ITEMS = 1 << 20  # about 100 ms to walk through as strings
MAX_STRING_BYTES = 11 << 20  # a manifest with 100,000 digests is 7 MB; held twice while decoded
MAX_KEYS = 1 << 12  # files have 30 to 80
MAX_TENSORS = 1 << 13  # files have 300 to 2,000; up to 700 bytes of memory each

# by number of dimensions: the shape, the type, the offset
_TENSOR_FORMS = {dims: struct.Struct(f"<{dims}QIQ") for dims in range(1, MAX_DIMS + 1)}
_ENTRY_BYTES = 250  # what a key costs besides its text: objects and its place in the dict
_MIN_KEY_ENTRY_BYTES = 8 + 1 + 4 + 1  # length, a letter, type, a one-byte value
_MIN_TENSOR_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, a letter, n_dims, one dimension, type, offset


def read_header(path: Path | str) -> GGUFHeader:
    """Read and check the header of one GGUF file (version 2 or 3, little endian).

    Raises:
        GGUFError: the file can't be read or is malformed; names the file, what is wrong and where.
    """
    path = Path(path)
    try:
        # before opening: opening a named pipe would wait for its writer
        if not stat.S_ISREG(path.stat().st_mode):
            raise GGUFError(f"{path}: not a regular file: give the path of a .gguf file")
        with FileIO(path) as file:
            status = os.fstat(file.fileno())
            stamp = FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            return _read(HeaderCursor(file, path, stamp.size), path, stamp)
    except OSError as error:
        raise GGUFError(
            f"{path}: cannot read: {error.strerror}: check the path, its permissions and the disk"
        ) from error


def _read(cursor: HeaderCursor, path: Path, stamp: FileStamp) -> GGUFHeader:
    version = _read_version(cursor, path)
    tensor_count = cursor.u64("the tensor count")
    key_count = cursor.u64("the key count")
    if tensor_count > MAX_TENSORS:
        raise cursor.error(f"{tensor_count} tensors claimed, at most {MAX_TENSORS} are accepted", 8)
    if key_count > MAX_KEYS:
        raise cursor.error(f"{key_count} metadata keys claimed, at most {MAX_KEYS} are accepted", 16)
    cursor.require(
        key_count * _MIN_KEY_ENTRY_BYTES + tensor_count * _MIN_TENSOR_ENTRY_BYTES,
        f"a header of {key_count} keys and {tensor_count} tensors",
    )
    metadata = _read_metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata)
    tensors = _read_tensor_infos(cursor, tensor_count)
    data_offset = -(-cursor.position // alignment) * alignment
    _check_placement(cursor, tensors, alignment, data_offset, stamp.size)
    return GGUFHeader(path, version, metadata, tensors, alignment, data_offset, stamp)


def _read_version(cursor: HeaderCursor, path: Path) -> int:
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        raise GGUFError(f"{path}: not a GGUF file (it begins with {magic!r}): give the path of a .gguf file")
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    if version and not version & 0xFFFF:
        raise GGUFError(
            f"{path}: a big-endian GGUF file: convert it to little endian (gguf-py's convert-endian)"
        )
    raise GGUFError(f"{path}: GGUF version {version} is not supported: convert it to version {VERSIONS[-1]}")


def _read_text(cursor: HeaderCursor, limit: int, what: str) -> str:
    """A key or a name: not empty, at most `limit` bytes, UTF-8."""
    at = cursor.position
    size = cursor.u64(f"the length of {what}")
    if size == 0:
        raise cursor.error(f"{what} is empty", at)
    if size > limit:
        raise cursor.error(f"{what} claims {size} bytes, at most {limit} are accepted", at)
    try:
        return cursor.take(size, what).decode("utf-8")
    except UnicodeDecodeError:
        raise cursor.error(f"{what} is not UTF-8", at) from None


def _read_metadata(cursor: HeaderCursor, count: int) -> dict[str, GGUFValue]:
    held = 0
    metadata: dict[str, GGUFValue] = {}
    for index in range(count):
        at = cursor.position
        key = _read_text(cursor, MAX_KEY_BYTES, f"the name of key {index}")
        if key in metadata:
            raise cursor.error(f"key {shown(key)} occurs twice", at)
        kind = _value_type(cursor, f"key {shown(key)}")
        held += sys.getsizeof(key) + _ENTRY_BYTES
        value = _read_value(cursor, kind, f"the value of {shown(key)}", MAX_METADATA_BYTES - held)
        held += _held_bytes(value)
        if held > MAX_METADATA_BYTES:
            raise cursor.error(f"its metadata takes more than {MAX_METADATA_BYTES} bytes")
        metadata[key] = value
    return metadata


def _held_bytes(value: GGUFValue) -> int:
    if isinstance(value.value, StringArray):
        return len(value.value.raw)
    if isinstance(value.value, np.ndarray):
        return value.value.nbytes
    return sys.getsizeof(value.value)


def _value_type(cursor: HeaderCursor, what: str) -> ValueType:
    at = cursor.position
    number = cursor.u32(f"the type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what} has the unknown value type {number}", at) from None


def _read_value(cursor: HeaderCursor, kind: ValueType, what: str, budget: int) -> GGUFValue:
    if kind is ValueType.ARRAY:
        return _read_array(cursor, what, min(MAX_ARRAY_BYTES, budget))
    if kind is ValueType.STRING:
        return GGUFValue(kind, _read_string(cursor, what, budget))
    at = cursor.position
    if kind is ValueType.BOOL:
        byte = cursor.take(1, what)
        if byte not in (b"\0", b"\1"):
            raise cursor.error(f"{what} is a bool of {byte[0]}, neither 0 nor 1", at)
        return GGUFValue(kind, byte == b"\1")
    form = SCALARS[kind]
    return GGUFValue(kind, form.unpack(cursor.take(form.size, what))[0])


def _read_string(cursor: HeaderCursor, what: str, budget: int) -> str:
    at = cursor.position
    size = cursor.u64(f"the length of {what}")
    limit = min(MAX_STRING_BYTES, budget // 2)  # the bytes and the str are held together for a moment
    if size > limit:
        raise cursor.error(f"{what} claims {size} bytes, at most {limit} are accepted", at)
    data = cursor.take_direct(size, what)
    # one character outside the basic plane makes Python keep all of them in 4 bytes each
    if not data.isascii() and 5 * size > budget:
        raise cursor.error(
            f"{what} has {size} bytes and not all ASCII, at most {budget // 5} are accepted", at
        )
    # Values, unlike keys, are not always clean UTF-8; they must go out as they came in.
    return data.decode("utf-8", "surrogateescape")


def _read_array(cursor: HeaderCursor, what: str, limit: int) -> GGUFValue:
    at = cursor.position
    item_type = _value_type(cursor, f"the items of {what}")
    if item_type is ValueType.ARRAY:
        raise cursor.error(f"{what} is an array of arrays, which no llama.cpp reads", at)
    count = cursor.u64(f"the length of {what}")
    if count > MAX_ARRAY_ITEMS:
        raise cursor.error(f"{what} claims {count} items, at most {MAX_ARRAY_ITEMS} are accepted", at + 4)
    if item_type is ValueType.STRING:
        cursor.require(8 * count, what)
        size = cursor.end_of_strings(count, limit, what) - cursor.position
        return GGUFValue(ValueType.ARRAY, StringArray(cursor.take_direct(size, what), count), item_type)
    dtype = np.dtype(VALUE_DTYPES[item_type])
    size = count * dtype.itemsize
    if size > limit:
        raise cursor.error(f"{what} claims {size} bytes, at most {limit} are accepted", at + 4)
    body = cursor.take_direct(size, what)
    if item_type is ValueType.BOOL and size and max(body) > 1:
        raise cursor.error(f"{what} holds a bool that is neither 0 nor 1", at + 12)
    # frombuffer over bytes: read-only and no copy
    return GGUFValue(ValueType.ARRAY, np.frombuffer(body, dtype), item_type)


def _alignment(cursor: HeaderCursor, metadata: dict[str, GGUFValue]) -> int:
    entry = metadata.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.type is not ValueType.UINT32 or not isinstance(entry.value, int):
        raise cursor.error(f"{ALIGNMENT_KEY} is a {entry.type.name}, UINT32 is expected")
    alignment = entry.value
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"{ALIGNMENT_KEY} is {alignment}, no power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
        )
    return alignment


def _read_tensor_infos(cursor: HeaderCursor, count: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    for index in range(count):
        at = cursor.position
        name = _read_text(cursor, MAX_TENSOR_NAME_BYTES, f"the name of tensor {index}")
        if name in names:
            raise cursor.error(f"tensor {shown(name)} occurs twice", at)
        names.add(name)
        n_dims = cursor.u32("a tensor's dimensions")
        if not 1 <= n_dims <= MAX_DIMS:
            raise cursor.error(
                f"tensor {shown(name)} has {n_dims} dimensions, 1 to {MAX_DIMS} are possible", at
            )
        form = _TENSOR_FORMS[n_dims]
        *shape, type_id, offset = form.unpack(cursor.take(form.size, "a tensor's shape, type and offset"))
        kind = TENSOR_TYPES.get(type_id)
        if kind is None:
            raise cursor.error(f"tensor {shown(name)} has the unknown or removed tensor type {type_id}", at)
        try:
            tensors.append(TensorInfo(name, tuple(shape), kind, offset, tensor_bytes(shape, kind)))
        except ValueError as error:
            raise cursor.error(f"tensor {shown(name)} has {error}", at) from None
    return tuple(tensors)


def _check_placement(
    cursor: HeaderCursor, tensors: tuple[TensorInfo, ...], alignment: int, data_offset: int, file_size: int
) -> None:
    """Every tensor aligned, inside the file, and apart from all others."""
    data_bytes = max(file_size - data_offset, 0)
    end, previous = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset % alignment:
            raise cursor.error(
                f"tensor {shown(tensor.name)} has the offset {tensor.offset}, "
                f"no multiple of the alignment {alignment}"
            )
        if tensor.offset + tensor.n_bytes > data_bytes:
            raise cursor.error(
                f"tensor {shown(tensor.name)} takes the data's bytes {tensor.offset} to "
                f"{tensor.offset + tensor.n_bytes}, of which the file has {data_bytes} (unfinished download?)"
            )
        if tensor.offset < end:
            raise cursor.error(f"tensor {shown(tensor.name)} overlaps tensor {shown(previous)}")
        end, previous = tensor.offset + tensor.n_bytes, tensor.name
