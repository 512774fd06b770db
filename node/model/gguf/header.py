"""What the header of one GGUF file says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node.model.gguf.types import TensorType
from node.model.gguf.values import GGUFValue


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it.

    Attributes:
        shape: sizes in ggml order, 1 to 4 of them.
        offset: bytes from the start of the file's data section.
        n_bytes: bytes of the data, without padding.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one state of a file from another, as far as the system says (`os.fstat`)."""

    device: int
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A checked header. Every tensor lies inside the file and overlaps no other.

    Attributes:
        tensors: in the file's order.
        alignment: bytes; every tensor's offset is a multiple of it.
        data_offset: where the data section begins, bytes from the start of the file.
        stamp: the file's state while the header was read.
    """

    path: Path
    version: int
    metadata: dict[str, GGUFValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    stamp: FileStamp

    @property
    def file_size(self) -> int:
        return self.stamp.size
