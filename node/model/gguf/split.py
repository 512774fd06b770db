"""A model as a whole: one GGUF file, or its parts `NAME-00001-of-0000N.gguf`, as gguf-split makes them.

Part 1 carries the metadata; every part carries `split.no` (from 0), `split.count` and
`split.tensors.count` (llama.cpp, `llama_split_path`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.header import FileStamp, GGUFHeader
from node.model.gguf.reader import MAX_TENSORS, read_header
from node.model.gguf.types import TensorType
from node.model.gguf.values import GGUFValue, metadata_int, metadata_str

SPLIT_PREFIX = "split."
MAX_PARTS = 1024  # the largest models are published in 30 to 150 parts; each costs an open file while mapped

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of a model, as it was when its header was read."""

    path: Path
    stamp: FileStamp


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """Where a tensor's bytes are.

    Attributes:
        shape: ggml order, ne[0] first.
        part: index into `ModelFile.parts`.
        offset: bytes from the start of that part.
        n_bytes: bytes of data, without padding.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    part: int
    path: Path
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ModelFile:
    """All parts of a model in one view.

    Attributes:
        path: the first part.
        metadata: part 1's, without the `split.` keys.
        tensors: by name, in the order of the parts.
    """

    path: Path
    parts: tuple[PartFile, ...]
    metadata: dict[str, GGUFValue]
    tensors: dict[str, ModelTensor]

    @property
    def architecture(self) -> str:
        """`general.architecture`, checked by `open_model` to be there."""
        return str(self.metadata["general.architecture"].value)

    def find_int(self, key: str) -> int | None:
        """The integer under `key`, None where there is none; GGUFError if it is something else."""
        return metadata_int(self.metadata, key, self.path)

    def find_str(self, key: str) -> str | None:
        """The string under `key`, None where there is none; GGUFError if it is something else."""
        return metadata_str(self.metadata, key, self.path)


def open_model(path: Path | str) -> ModelFile:
    """Read the headers of a model, given its file or any one of its parts.

    Raises:
        GGUFError: a part is missing or broken, or the parts don't belong together.
    """
    given = Path(path)
    paths = _part_paths(given, _split_count(read_header(given)))
    missing = [part for part in paths if not part.exists()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise GGUFError(
            f"{missing[0]}: this part of the model is missing{more}: put all {len(paths)} side by side"
        )
    first = read_header(paths[0])
    metadata = {key: value for key, value in first.metadata.items() if not key.startswith(SPLIT_PREFIX)}
    if not metadata_str(metadata, "general.architecture", first.path):
        raise GGUFError(f"{first.path}: has no general.architecture: give a model's GGUF file")
    parts: list[PartFile] = []
    tensors: dict[str, ModelTensor] = {}
    for number, part in enumerate(paths):
        # one header at a time: only part 1's metadata is kept
        header = read_header(part) if number else first
        if len(paths) > 1:
            _check_part(header, number, len(paths), first)
        _add_tensors(tensors, header, number)
        parts.append(PartFile(part, header.stamp))
    expected = metadata_int(first.metadata, "split.tensors.count", first.path)
    if len(paths) > 1 and len(tensors) != expected:
        raise GGUFError(
            f"{first.path}: all parts hold {len(tensors)} tensors, not {expected}: get them again"
        )
    return ModelFile(first.path, tuple(parts), metadata, tensors)


def _split_count(header: GGUFHeader) -> int:
    count = metadata_int(header.metadata, "split.count", header.path)
    if count is None or count == 0:  # gguf-split writes 0 into a merged file
        return 1
    if not 1 <= count <= MAX_PARTS:
        raise GGUFError(f"{header.path}: claims to be one of {count} parts, at most {MAX_PARTS} are accepted")
    return count


def _part_paths(given: Path, count: int) -> list[Path]:
    match = _PART_NAME.fullmatch(given.name)
    if count == 1:
        if match and int(match["count"]) > 1:
            raise GGUFError(f"{given}: is named as a part of a split model, but says it is whole: rename it")
        return [given]
    if match is None:
        raise GGUFError(
            f"{given}: is one of {count} parts but not named so: name them NAME-00001-of-{count:05d}.gguf"
        )
    if int(match["count"]) != count or not 1 <= int(match["number"]) <= count:
        raise GGUFError(
            f"{given}: is one of {count} parts, but its name says otherwise: give it its old name back"
        )
    return [
        given.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)
    ]


def _check_part(header: GGUFHeader, number: int, count: int, first: GGUFHeader) -> None:
    total = metadata_int(first.metadata, "split.tensors.count", first.path)
    for key, expected in (("split.no", number), ("split.count", count), ("split.tensors.count", total)):
        found = metadata_int(header.metadata, key, header.path)
        if found is None or found != expected:
            raise GGUFError(
                f"{header.path}: {key} is {'missing' if found is None else found}, not {expected}: "
                "the parts are not of one model, get them again"
            )


def _add_tensors(tensors: dict[str, ModelTensor], header: GGUFHeader, part: int) -> None:
    for info in header.tensors:
        if info.name in tensors:
            raise GGUFError(
                f"{header.path}: tensor {shown(info.name)} is also in {tensors[info.name].path.name}: "
                "the parts are not of one model, get them again"
            )
        offset = header.data_offset + info.offset
        tensors[info.name] = ModelTensor(
            info.name, info.shape, info.type, part, header.path, offset, info.n_bytes
        )
    if len(tensors) > MAX_TENSORS:
        raise GGUFError(f"{header.path}: more than {MAX_TENSORS} tensors in all parts")
