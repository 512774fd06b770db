"""`panal model get` and `panal slice get`: find who gives a model, fetch it, prove it, put it in its place.

1. Peers are asked what they give; a name must mean one model, and the metadata of its sources must agree.
2. The manifest is fetched; its digest is the model id. It says what everything else must be.
3. Trunk and slices are fetched together, chunk by chunk, each proven when it comes.
4. The trunk passes the gate and goes into the store; a slice file gets its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from node.engine import library as llama
from node.importing import Progress
from node.model.chunks import digest_of
from node.model.gguf.errors import GGUFError
from node.model.manifest import Manifest
from node.model.store import SHORT_ID, Store, StoredModel, StoreError
from node.ranges import Ranges
from node.share import fetch, target
from node.share.choosing import agreed_metadata, choose_model, patience
from node.share.download import Download, Key
from node.share.finding import Holding, Offers
from node.share.room import require_room
from node.share.slice_download import SliceDownload
from node.share.trunk_download import ModelDownload, metadata_name
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from routing.errors import LocalError, PanalError, PeerError

AGAIN_SECONDS = 0.5
"""Between rounds of fetching, when nobody gave more."""

MAX_SLICES = 64
"""Slice files of one command: a range that is cut into more was meant otherwise."""


@dataclass(frozen=True)
class Wanted:
    """What to get.

    Attributes:
        what: a model's name, or the beginning of its id.
        trunk: the trunk too.
        cells: also cells: those of `layers` and `experts`; None means all there are.
        folder: for slice files.
        metadata: the beginning of the digest of the metadata that is wanted; "" for what all sources have.
    """

    what: str
    trunk: bool
    cells: bool
    layers: Ranges | None
    experts: Ranges | None
    folder: Path
    metadata: str = ""


@dataclass
class Got:
    """What came of it.

    Attributes:
        model_id, name, architecture: of the model; the name is its sources'.
        trunk: where it is; None if it was not wanted or is not complete.
        metadata: digest of what came with the trunk, and the peers who vouch for it.
        slices: the slice files that are complete.
        n_bytes, by_peer: that were fetched now.
        was_there: bytes that were there before.
        lacking: bytes that nobody gave.
        dropped, reasons: peers that lied, and why others gave nothing more.
        seconds: that the fetching took.
    """

    model_id: str
    name: str
    architecture: str = ""
    trunk: Path | None = None
    metadata: str = ""
    metadata_from: tuple[str, ...] = ()
    slices: list[Path] = field(default_factory=list)
    by_peer: dict[str, int] = field(default_factory=dict)
    was_there: int = 0
    lacking: int = 0
    dropped: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def n_bytes(self) -> int:
        return sum(self.by_peer.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model_id": self.model_id,
            "name": self.name,
            "architecture": self.architecture,
            "complete": not self.lacking,
            "trunk": None if self.trunk is None else str(self.trunk),
            "metadata": {"digest": self.metadata, "from": list(self.metadata_from)}
            if self.metadata
            else None,
            "slices": [str(path) for path in self.slices],
            "bytes": self.n_bytes,
            "seconds": round(self.seconds, 3),
            "by_peer": self.by_peer,
            "was_there": self.was_there,
            "lacking_bytes": self.lacking,
            "dropped": self.dropped,
            "reasons": self.reasons,
        }


OnProgress = Callable[[int, int, Sequence[str]], None]
"""(bytes that have come, bytes in all, peers that are being asked)."""


async def get_model(
    place: Place,
    store: Store,
    library: Path | None,
    wanted: Wanted,
    *,
    progress: Progress = lambda what, done, total: None,
    on_progress: OnProgress = lambda done, total, peers: None,
) -> Got:
    """Do it. May be cancelled; what has come is kept, and the same call goes on with it.

    Args:
        library: another llama.cpp than the wheel's, for the gate.

    Raises:
        LocalError: a name means several models, the disk has not enough room, a file is in the way.
        PeerError: nobody gives it.
    """
    progress("starting to look for peers", 0, 0)
    node = SwarmNode(place, Role(serves=False))
    got: Got | PanalError
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            offers = Offers(node)
            nursery.start_soon(offers.run)
            with ExitStack() as ends:
                getting = _Getting(node, offers, store, library, wanted, progress, on_progress, ends)
                try:
                    got = await getting.run()
                except PanalError as error:
                    got = error  # raised when the nursery is gone, and so as itself
            nursery.cancel_scope.cancel()
    finally:
        node.close()
    if isinstance(got, PanalError):
        raise got
    return got


class _Getting:
    """One call of `get_model`."""

    def __init__(
        self,
        node: SwarmNode,
        offers: Offers,
        store: Store,
        library: Path | None,
        wanted: Wanted,
        progress: Progress,
        on_progress: OnProgress,
        ends: ExitStack,
    ) -> None:
        self._node = node
        self._offers = offers
        self._store = store
        self._library = library
        self._wanted = wanted
        self._progress = progress
        self._on_progress = on_progress
        self._ends = ends
        self._files: ModelDownload | None = None

    async def run(self) -> Got:
        model_id, name = await choose_model(self._node, self._offers, self._wanted.what, self._progress)
        self._got = got = Got(model_id, name)
        self._node.want_model(model_id)
        stored = self._stored(model_id)
        self._holding = Holding(self._offers, model_id)
        manifest = stored.manifest if stored is not None else await self._fetch_manifest()
        got.architecture = manifest.architecture
        self._holding.take_manifest(manifest)
        slices = self._slices(manifest)
        download = Download(bytes.fromhex(model_id))
        has_trunk = stored is not None and self._has_metadata(stored)
        if self._wanted.trunk and not has_trunk:
            await self._add_trunk(download, manifest)
        elif self._wanted.trunk and stored is not None:
            got.trunk = stored.trunk
        for each in slices:
            if not each.is_there:
                await trio.to_thread.run_sync(each.open, self._look)
                self._ends.callback(each.close)
                each.add_to(download)
        trunk_bytes = 0 if self._files is None else self._files.lacking_bytes
        slice_bytes = sum(each.lacking_bytes for each in slices)
        self._count_what_is_there(manifest, slices, trunk_bytes + slice_bytes)
        cut = manifest.trunk_bytes if self._wanted.trunk and not has_trunk else 0
        needed = {self._store.root: trunk_bytes + cut}
        require_room(needed | ({self._wanted.folder: slice_bytes} if slices else {}))
        begun = trio.current_time()
        await self._fetch(download, trunk_bytes + slice_bytes)
        got.seconds = trio.current_time() - begun
        await self._finish(manifest, slices)
        return got

    def _stored(self, model_id: str) -> StoredModel | None:
        try:
            return self._store.get(model_id)
        except StoreError:
            return None

    def _has_metadata(self, stored: StoredModel) -> bool:
        """Whether a trunk of the store has the metadata that is wanted."""
        if not self._wanted.metadata:
            return True
        try:
            data = (stored.folder / metadata_name(stored.trunk.name)).read_bytes()
        except OSError:
            return False  # imported here, and never shared: nobody has asked yet what it is
        return digest_of([memoryview(data)]).hex().startswith(self._wanted.metadata)

    # --- what to fetch ---

    def _open_files(self) -> ModelDownload:
        if self._files is None:
            self._files = self._ends.enter_context(ModelDownload(self._store, self._got.model_id))
        return self._files

    async def _fetch_manifest(self) -> Manifest:
        files = self._open_files()
        sizes = Counter(offer.manifest_bytes for offer in self._offers.of(self._got.model_id).values())
        for size, _ in sizes.most_common():
            download = Download(bytes.fromhex(self._got.model_id))
            await trio.to_thread.run_sync(files.add_manifest, download, size)
            self._holding = Holding(self._offers, self._got.model_id, manifest_bytes=size)
            await self._fetch(download, 0)
            manifest = files.manifest()
            if manifest is not None:
                return manifest
        raise PeerError(f"model {self._got.model_id[:SHORT_ID]}: nobody gave its manifest{self._why()}")

    async def _add_trunk(self, download: Download, manifest: Manifest) -> None:
        """Fetch the metadata, and have the trunk's tensors fetched."""
        got, files = self._got, self._open_files()
        metadata, peers = agreed_metadata(self._offers, got.model_id, self._wanted.metadata)
        got.metadata, got.metadata_from = metadata.digest, tuple(sorted(peers))
        first = Download(bytes.fromhex(got.model_id), bytes.fromhex(metadata.digest))
        await trio.to_thread.run_sync(files.add_metadata, first, metadata)
        self._holding = Holding(self._offers, got.model_id, metadata=metadata.digest)
        self._holding.take_manifest(manifest)
        await self._fetch(first, 0)
        if not files.has_metadata:
            raise PeerError(f"model {got.model_id[:SHORT_ID]}: nobody gave its metadata{self._why()}")
        try:
            said = await trio.to_thread.run_sync(files.metadata, manifest)
        except GGUFError as error:
            raise PeerError(f"{', '.join(got.metadata_from)} sent what is no metadata: {error}") from None
        await trio.to_thread.run_sync(files.add_trunk, download, manifest, said, self._look)

    def _slices(self, manifest: Manifest) -> list[SliceDownload]:
        wanted = self._wanted
        if not wanted.cells:
            return []
        layers = wanted.layers or Ranges.below(max(manifest.layers()) + 1)
        layers.require_below(max(manifest.layers()) + 1, "layers in the model")
        made = []
        for first, last in layers.runs:
            counts = [
                call.n_experts for call in manifest.calls if not call.index and first <= call.layer <= last
            ]
            experts = wanted.experts or Ranges.below(max(counts, default=1))
            for lowest, highest in experts.runs:
                made.append(
                    SliceDownload(wanted.folder, manifest, range(first, last + 1), range(lowest, highest + 1))
                )
        if len(made) > MAX_SLICES:
            raise LocalError(f"--layers, --experts: {len(made)} slice files; at most {MAX_SLICES} at once")
        return made

    def _count_what_is_there(self, manifest: Manifest, slices: Sequence[SliceDownload], lacking: int) -> None:
        total = sum(each.n_bytes for each in slices)
        if self._files is not None and self._wanted.trunk:
            total += manifest.trunk_bytes
        self._got.was_there = total - lacking

    # --- fetching ---

    async def _fetch(self, download: Download, all_bytes: int) -> None:
        """Until all is there, or for a while nobody gives more."""
        got, before = self._got, self._got.n_bytes
        last = trio.current_time()

        def holders(key: Key) -> list[tuple[str, int]]:
            return [(peer, download.units(key, held)) for peer, held in self._holding.holders(key)]

        def say(so_far: target.Progress) -> None:
            came = got.n_bytes - before + so_far.n_bytes
            self._on_progress(min(came, all_bytes), all_bytes, so_far.sources)

        while lacking := download.lacking():
            self._on_progress(min(got.n_bytes - before, all_bytes), all_bytes, ())  # nobody may be there yet
            result = await fetch.fetch(
                download,
                lacking,
                holders=holders,
                connection_to=fetch.unrelayed(self._node.links),
                askable=download.askable,
                distrusted=got.dropped,
                on_progress=say,
            )
            for peer, n_bytes in result.by_peer.items():
                got.by_peer[peer] = got.by_peer.get(peer, 0) + n_bytes
            got.dropped |= result.dropped
            got.reasons |= result.given_up
            if result.units:
                last = trio.current_time()
            if not result.missing or trio.current_time() - last >= patience(self._node, self._offers):
                break
            await trio.sleep(AGAIN_SECONDS)

    async def _finish(self, manifest: Manifest, slices: Sequence[SliceDownload]) -> None:
        """Give names to what is complete."""
        got, files = self._got, self._files
        for each in slices:
            lacking = 0 if each.is_there else each.lacking_bytes
            if each.is_there or await trio.to_thread.run_sync(each.finish):
                got.slices.append(each.target)
            else:
                got.lacking += lacking
        if files is None:
            return
        if not self._wanted.trunk:
            if not got.lacking:
                await trio.to_thread.run_sync(files.remove)
            return
        if not files.has_trunk:
            got.lacking += files.lacking_bytes
            return
        library = await trio.to_thread.run_sync(llama.load, self._library)
        stored = await trio.to_thread.run_sync(files.finish, library, manifest, self._progress)
        got.trunk = stored.trunk

    def _look(self, n_bytes: int) -> None:
        self._progress("checking what is there", 0, 0)

    def _why(self) -> str:
        got = self._got
        told = [f"{peer} {what}" for peer, what in got.dropped.items()]
        told += [f"{peer}: {what}" for peer, what in got.reasons.items()]
        return f": {'; '.join(told)}" if told else ""
