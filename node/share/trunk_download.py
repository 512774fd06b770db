"""A trunk that is being fetched, and what makes it one of the store's.

    STORE/getting/<model id>/manifest.json, metadata.gguf, model.gguf   as far as they have come
    STORE/getting/<model id>/lists-*, lock                              node.share.growing

model.gguf has the shape of the model's own file; its experts are holes. When the trunk's tensors are complete
it stands for the whole model in the gate: its trunk, cut as an import would cut it, must give the bytes that
plain llama.cpp gives on it, and its graph must have the experts that the manifest describes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from node.engine.library import Library
from node.engine.recognise import TracedCall
from node.importing import ImportFailed, Progress, prove_trunk, refuse_contradictions, refuse_pieces
from node.model.gguf.split import open_model
from node.model.gguf.types import TENSOR_TYPES
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, lay_out
from node.model.manifest import Manifest, decode_manifest
from node.model.store import Source, Store, StoredModel
from node.model.trunk import plan_trunk
from node.share.blob import Blob, Part
from node.share.download import Download, Key
from node.share.folder_lock import lock_folder
from node.share.growing import GrowingBlob, GrowingFile, Places, straight
from node.share.metadata import read_metadata
from routing.wire.model_files import ModelFile
from routing.wire.model_list import Metadata

FOLDER = "getting"


class ModelDownload:
    """The files of one model that are not cells; a context manager that holds the folder's lock."""

    def __init__(self, store: Store, model_id: str) -> None:
        """
        Raises:
            LocalError: another process fetches it, or the folder cannot be used.
        """
        self.model_id = model_id
        self.folder = store.root / FOLDER / model_id
        self._store = store
        self._lock: int | None = lock_folder(self.folder)
        self._files: list[GrowingFile] = []
        self._blobs: dict[Key, GrowingBlob] = {}

    def __enter__(self) -> ModelDownload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the files whose size a source tells ---

    def add_manifest(self, download: Download, size: int) -> None:
        """Fetch the manifest, which is said to have so many bytes."""
        part = Part(size, bytes.fromhex(self.model_id))
        self._add_file(download, ModelFile.MANIFEST, "manifest.json", part)

    def add_metadata(self, download: Download, metadata: Metadata) -> None:
        """Fetch this metadata."""
        part = Part(metadata.n_bytes, bytes.fromhex(metadata.digest))
        self._add_file(download, ModelFile.METADATA, "metadata.gguf", part)

    def manifest(self) -> Manifest | None:
        """The manifest, if it is complete.

        Raises:
            ManifestError: it is one that this panal cannot use.
        """
        if not self._has(ModelFile.MANIFEST):
            return None
        path = self.folder / "manifest.json"
        return decode_manifest(path.read_bytes(), model_id=self.model_id, source=str(path))

    def metadata(self, manifest: Manifest) -> dict[str, GGUFValue]:
        """The metadata, which must be complete.

        Raises:
            GGUFError: it is none, or another model's.
        """
        return read_metadata(self.folder / "metadata.gguf", manifest.architecture)

    def _add_file(self, download: Download, file: ModelFile, name: str, part: Part) -> None:
        key = Key(file)
        grown = self._grow(key, Blob([part]), name, part.size, straight)
        download.add(key, grown)

    def _has(self, file: ModelFile) -> bool:
        blob = self._blobs.get(Key(file))
        return blob is not None and blob.is_complete

    # --- the trunk ---

    def add_trunk(
        self,
        download: Download,
        manifest: Manifest,
        metadata: dict[str, GGUFValue],
        progress: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        """Fetch the trunk's tensors.

        Raises:
            LocalError: the file cannot be made.
        """
        tensors = [*_trunk_tensors(manifest), *_expert_tensors(manifest)]
        layout = lay_out(self._model_path, metadata, tensors)
        blob = Blob(Part(tensor.n_bytes, bytes.fromhex(tensor.digest)) for tensor in manifest.trunk)
        places = _places(blob, layout.starts)
        grown = self._grow(
            Key(ModelFile.TRUNK), blob, self._model_path.name, layout.total, places, progress, layout.head
        )
        download.add(Key(ModelFile.TRUNK), grown)

    @property
    def lacking_bytes(self) -> int:
        """What has yet to come of the trunk."""
        blob = self._blobs.get(Key(ModelFile.TRUNK))
        return 0 if blob is None else blob.lacking_bytes

    @property
    def has_metadata(self) -> bool:
        """Whether the metadata is complete."""
        return self._has(ModelFile.METADATA)

    @property
    def has_trunk(self) -> bool:
        """Whether all tensors of the trunk are there."""
        return self._has(ModelFile.TRUNK)

    def finish(self, library: Library, manifest: Manifest, say: Progress) -> StoredModel:
        """Put the trunk through the gate and into the store.

        Raises:
            LocalError: it does not pass, or the disk fails.
        """
        self._sync()
        model = open_model(self._model_path)
        refuse_pieces(model)
        plan = plan_trunk(model)
        refuse_contradictions(model)

        def manifest_of(calls: list[TracedCall]) -> Manifest:
            _check_calls(self._model_path, manifest, calls)
            return manifest

        def keep(workspace: Path, trunk: Path, manifest: Manifest) -> StoredModel:
            source = Source((), Source.of(model).trunk)
            kept = workspace / metadata_name(source.trunk)
            shutil.copyfile(self.folder / "metadata.gguf", kept)
            return self._store.add(workspace, trunk, manifest, source, beside=(kept,))

        stored = prove_trunk(library, self._store, model, plan, manifest_of, keep, say)
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return stored

    def close(self) -> None:
        """Give the files up. What has come stays."""
        for blob in self._blobs.values():
            blob.close()
        for file in self._files:
            file.close()
        self._blobs.clear()
        self._files.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Forget what has come."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _model_path(self) -> Path:
        return self.folder / "model.gguf"

    def _grow(
        self,
        key: Key,
        blob: Blob,
        name: str,
        size: int,
        places: Places,
        progress: Callable[[int], None] = lambda n_bytes: None,
        head: bytes = b"",
    ) -> GrowingBlob:
        file = GrowingFile(self.folder / name, size)
        self._files.append(file)
        if head:
            file.write(0, memoryview(head))
        grown = GrowingBlob(blob, range(len(blob.parts)), file, places, self.folder / f"lists-{name}")
        self._blobs[key] = grown
        grown.look(progress)
        return grown

    def _sync(self) -> None:
        for file in self._files:
            file.sync()


def metadata_name(trunk: str) -> str:
    """The name of the metadata file that goes with a trunk of the store, by the trunk's."""
    return trunk.replace("trunk", "metadata", 1)


def _trunk_tensors(manifest: Manifest) -> Iterator[TensorToWrite]:
    for tensor in manifest.trunk:
        yield TensorToWrite(tensor.name, tensor.shape, TENSOR_TYPES[tensor.type], None)


def _expert_tensors(manifest: Manifest) -> Iterator[TensorToWrite]:
    for call in manifest.calls:
        for tensor in call.tensors:
            shape = (*tensor.shape, call.n_experts)
            yield TensorToWrite(tensor.name(call.layer, call.group), shape, TENSOR_TYPES[tensor.type], None)


def _places(blob: Blob, starts: tuple[int, ...]) -> Places:
    """Where in the file the bytes of the trunk's tensors are: tensor i begins at starts[i]."""
    ends = np.cumsum([part.size for part in blob.parts])

    def places(offset: int, size: int) -> Iterator[tuple[int, int]]:
        while size:
            part = int(np.searchsorted(ends, offset, side="right"))
            within = offset - blob.part_start(part)
            count = min(size, blob.parts[part].size - within)
            yield starts[part] + within, count
            offset, size = offset + count, size - count

    return places


def _check_calls(path: Path, manifest: Manifest, calls: list[TracedCall]) -> None:
    """See that a graph asks for the experts that a manifest describes.

    Raises:
        ImportFailed: it asks for others.
    """
    found = {(call.layer, call.group): (call.recipe, dict(sorted(call.tensors.items()))) for call in calls}
    said = {
        (call.layer, call.group): (
            call.recipe,
            {tensor.role: tensor.name(call.layer, call.group) for tensor in call.tensors},
        )
        for call in manifest.calls
    }
    if found != said:
        odd = next(key for key in [*said, *found] if found.get(key) != said.get(key))
        raise ImportFailed(
            f"{path}: with this metadata llama.cpp computes other experts in layer {odd[0]} than the model's "
            "manifest says: another source's metadata may be right"
        )
