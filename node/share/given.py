"""What a node gives of models: the share list's files, mapped when they are asked for, and what it serves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from node.model.chunks import list_bytes, list_of
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.held import hold
from node.model.manifest import MODEL_ID, Manifest
from node.model.store import Store, StoredModel
from node.serve.cells import Cells, HeldCall
from node.share.blob import Blob, Part
from node.share.share_list import NAME, Share, read_shares
from node.share.trunk_download import metadata_name
from routing.errors import LocalError
from routing.wire.holdings import Slice, compact_cells
from routing.wire.model_list import Metadata, Offer

log = logging.getLogger("panal.share")

LOOK_SECONDS = 2.0
"""Between looks whether the list has changed."""


class GivenModel:
    """A model of the share list, its files open.

    Attributes:
        share: as listed.
        manifest: of the model; `manifest_bytes` encoded.
        metadata: the metadata file.
        trunk: the trunk's tensors, one after another.
        cells: of the model's own file, if it is there; else none.
    """

    def __init__(self, share: Share, stored: StoredModel, store: Store) -> None:
        """
        Raises:
            LocalError: a file is damaged or gone.
        """
        self.share = share
        self.manifest = stored.manifest
        self.manifest_bytes = stored.manifest.encoded()
        self._ends = ExitStack()
        with self._ends as ends:
            metadata = stored.folder / metadata_name(share.trunk)
            try:
                self.metadata = metadata.read_bytes()
            except OSError as error:
                raise LocalError(f"{metadata}: {error.strerror}; share the model again") from None
            self._mapped = ends.enter_context(MappedModel(open_model(stored.folder / share.trunk)))
            self.trunk = Blob(
                Part(tensor.n_bytes, bytes.fromhex(tensor.digest)) for tensor in self.manifest.trunk
            )
            self.cells = Cells()
            if share.path:
                self._hold(Path(share.path), store, ends)
            self._ends = ends.pop_all()
        self._lists = trio.Lock()
        self._trunk_lists: bytes | None = None

    def _hold(self, path: Path, store: Store, ends: ExitStack) -> None:
        """Take the cells of the model's own file, if it is the one that was imported."""
        try:
            model = open_model(path)
            known = store.find(model)
            if known is None or known.model_id != self.share.model_id:
                raise LocalError(f"{path}: has changed since it was shared")
            mapped = ends.enter_context(MappedModel(model))
            held = {
                (call.layer, call.group): hold(mapped, call, range(call.n_experts))
                for call in self.manifest.calls
            }
        except LocalError as error:
            log.warning("model %s: only its trunk is given: %s", self.share.name, error)
            return
        self.cells.add(self.share.model_id, self.manifest, held)

    def read_trunk(self, offset: int, size: int) -> bytes:
        """Bytes of the trunk, copied out of the map."""
        found = bytearray()
        for number, tensor in enumerate(self.manifest.trunk):
            start = self.trunk.part_start(number)
            if start + self.trunk.parts[number].size <= offset:
                continue
            if start >= offset + size:
                break
            view = self._mapped.tensor_view(tensor.name)
            found += view[max(0, offset - start) : offset + size - start]
        return bytes(found)

    async def trunk_lists(self) -> bytes:
        """The lists of the trunk's large tensors, one after another; made once."""
        async with self._lists:
            if self._trunk_lists is None:
                self._trunk_lists = await trio.to_thread.run_sync(self._make_trunk_lists)
        return self._trunk_lists

    def _make_trunk_lists(self) -> bytes:
        return b"".join(
            list_of([self._mapped.tensor_view(tensor.name)])
            for tensor in self.manifest.trunk
            if list_bytes(tensor.n_bytes)
        )

    def close(self) -> None:
        """Give the files up."""
        self._ends.close()


class Given:
    """All that a node gives. What the list says is opened on first use, and again when the list has changed.

    Args:
        served: what the node serves anyway.
    """

    def __init__(self, store: Store, served: Callable[[], Cells]) -> None:
        self._store = store
        self._served = served
        self._models: dict[bytes, GivenModel] = {}
        self._stamp: tuple[int, int] | None = None
        self._looked = -LOOK_SECONDS
        self._old: list[GivenModel] = []

    def look(self, now: float) -> None:
        """Take note of changes of the share list, if it is time. Opens files.

        Args:
            now: seconds on any clock.
        """
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        path = self._store.root / NAME
        try:
            status = path.stat()
            stamp: tuple[int, int] | None = (status.st_ino, status.st_mtime_ns)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            shares = read_shares(self._store) if stamp is not None else []
        except LocalError as error:
            log.warning("%s", error)
            return
        before, self._models = self._models, {}
        for share in shares:
            key = bytes.fromhex(share.model_id)
            known = before.pop(key, None)
            if known is not None and known.share == share:
                self._models[key] = known
                continue
            try:
                self._models[key] = GivenModel(share, self._store.get(share.model_id), self._store)
            except LocalError as error:
                log.warning("model %s is not shared: %s", share.name, error)
        self._old += before.values()  # somebody may be reading them

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on the list."""
        return not self._models

    def model(self, model_id: bytes) -> GivenModel | None:
        """A model of the list."""
        return self._models.get(model_id)

    def manifest(self, model_id: bytes) -> Manifest | None:
        """The manifest of a model of which anything is given."""
        found = self._models.get(model_id)
        if found is not None:
            return found.manifest
        served = self._served()
        return served.manifest(model_id) if served.knows(model_id) else None

    # --- CellSource ---

    def knows(self, model_id: bytes) -> bool:
        """Whether anything is given of a model's cells."""
        return self._served().knows(model_id) or model_id in self._models

    def find(self, model_id: bytes, layer: int, index: int) -> HeldCall | None:
        """What is held of a call: all of it where the model's own file is here."""
        found = self._models.get(model_id)
        whole = None if found is None else found.cells.find(model_id, layer, index)
        return whole or self._served().find(model_id, layer, index)

    # --- what peers are told ---

    def offers(self) -> list[Offer]:
        """What can be copied from here."""
        served = self._served()
        ids = [*self._models, *(each for each in served.models() if each not in self._models)]
        return [offer for offer in map(self._offer, ids) if offer is not None]

    def _offer(self, model_id: bytes) -> Offer | None:
        manifest, given = self.manifest(model_id), self._models.get(model_id)
        assert manifest is not None
        cells = given.cells if given is not None and given.cells.knows(model_id) else self._served()
        held = {layer: numbers for (layer, index), numbers in cells.experts(model_id).items() if not index}
        first = next(call for call in manifest.calls if not call.index)
        encoded = given.manifest_bytes if given is not None else manifest.encoded()
        name = manifest.architecture if given is None else given.share.name
        assert MODEL_ID.fullmatch(model_id.hex())
        return Offer(
            model_id=model_id.hex(),
            name=name,
            architecture=manifest.architecture,
            layers=len(list(manifest.layers())),
            experts=first.n_experts,
            expert_bytes=manifest.expert_bytes,
            trunk_bytes=manifest.trunk_bytes,
            manifest_bytes=len(encoded),
            trunk=None if given is None else Metadata(given.share.metadata, len(given.metadata)),
            cells=Slice("experts", model_id.hex(), manifest.architecture, [], compact_cells(held))
            if held
            else None,
        )

    def close(self) -> None:
        """Give all files up."""
        for model in [*self._models.values(), *self._old]:
            model.close()
        self._models.clear()
        self._old.clear()
