"""`panal model share`: have a model in the store, with what others need of it, and on the share list."""

from __future__ import annotations

from pathlib import Path

from node.config import ModelRef
from node.engine.library import Library
from node.importing import Progress
from node.model.chunks import digest_of
from node.model.gguf.split import ModelFile
from node.model.store import Store, StoredModel
from node.serve.opening import open_whole
from node.share.metadata import write_metadata
from node.share.share_list import Share, share_name, write_share
from node.share.trunk_download import metadata_name
from routing.errors import LocalError


def share_model(library: Library, store: Store, ref: ModelRef, name: str | None, progress: Progress) -> Share:
    """Import a file if need be, and put it on the list; or a model of the store, by its id.

    Args:
        name: under which others find it; None for the file's name without its ending.

    Raises:
        LocalError: the file cannot be imported, the name cannot be used, or the store cannot be written.
    """
    if name is not None:
        share_name(name)  # before anything that takes long
    model: ModelFile | None = None
    try:
        stored, model = open_whole(library, store, ref, progress)
    except LocalError:
        if ref.path is not None:
            raise
        assert ref.model_id is not None
        stored = store.get(ref.model_id)  # only its trunk is here: that can be given too
    metadata = stored.folder / metadata_name(stored.trunk.name)
    if model is not None:
        digest = write_metadata(metadata, model.metadata)
    else:
        digest = _known_metadata(stored, metadata)
    share = Share(
        stored.model_id,
        share_name(name if name is not None else _default_name(stored, model)),
        stored.trunk.name,
        digest.hex(),
        "" if model is None else str(model.parts[0].path.resolve()),
    )
    write_share(store, share)
    return share


def _known_metadata(stored: StoredModel, metadata: Path) -> bytes:
    try:
        return digest_of([memoryview(metadata.read_bytes())])
    except OSError:
        raise LocalError(
            f"model {stored.model_id[:12]}: what goes with its trunk is not in the store, and its file is "
            "gone: share the file"
        ) from None


def _default_name(stored: StoredModel, model: ModelFile | None) -> str:
    return stored.manifest.architecture if model is None else Path(model.path).stem
