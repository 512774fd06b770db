"""What a model's file says beside its tensors, as a file of its own: a GGUF without tensors, keys in order.

The model id does not cover it: two files of one model may have other tokenizers, chat templates or rope
scaling. So it has a digest of its own, which anybody who has the file can compute and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from node.model.chunks import digest_of
from node.model.gguf.errors import GGUFError
from node.model.gguf.reader import read_header
from node.model.gguf.split import SPLIT_PREFIX
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import write_gguf
from node.model.slice_file import SLICE_TYPE
from node.model.trunk import KIND_KEY


def write_metadata(target: Path, metadata: Mapping[str, GGUFValue]) -> bytes:
    """Write the file; return its digest. The same metadata always gives the same bytes.

    Raises:
        GGUFError: the disk is full, or fails.
    """
    write_gguf(target, dict(sorted(metadata.items())), [])
    return digest_of([memoryview(target.read_bytes())])


def read_metadata(path: Path, architecture: str) -> dict[str, GGUFValue]:
    """Read a file that came from a peer, and check that it can be the metadata of a model.

    Args:
        architecture: of the model.

    Raises:
        GGUFError: it is malformed, or of another model, a slice or a trunk.
    """
    header = read_header(path)
    found = header.metadata.get("general.architecture")
    if header.tensors:
        raise GGUFError(f"{path}: metadata with tensors: the source is not to be trusted")
    if found is None or found.value != architecture:
        raise GGUFError(f"{path}: metadata of another architecture: the source is not to be trusted")
    kind = header.metadata.get("general.type")
    is_piece = KIND_KEY in header.metadata or (kind is not None and kind.value == SLICE_TYPE)
    if is_piece or any(key.startswith(SPLIT_PREFIX) for key in header.metadata):
        raise GGUFError(f"{path}: metadata of a piece of a model: the source is not to be trusted")
    return header.metadata
