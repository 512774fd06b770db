"""Where the cells of a [[serve]] with `memory` come from: a model's file, a slice file, or cells from peers.

Nothing is read until it is computed with: what is chosen is a view of a mapped file, and what is chosen no
longer is memory that the system takes back by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from node.config import ServeConfig
from node.device.serving_choice import ServableLayer
from node.engine.library import Library
from node.home.call_bits import CallBits, cells_of, numbers, run_bits
from node.home.fetched import FetchedCells
from node.home.home_set import HomeSet
from node.importing import Progress
from node.model.gguf.map import MappedModel
from node.model.held import HeldExperts, hold
from node.model.manifest import ExpertCall, Manifest
from node.model.slice_file import chunk_run, read_slice
from node.model.store import Store, StoredModel
from node.serve.cells import Cells
from node.serve.opening import check_digests, is_slice, open_whole
from routing.errors import LocalError


class CellSource(Protocol):
    """Cells of one model that can be had here."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def model_id(self) -> str: ...

    def there(self) -> HomeSet:
        """What is in files here."""

    def add_to(self, cells: Cells, chosen: HomeSet) -> None:
        """Have `cells` hold what of `chosen` is in files here."""


class FileCells:
    """Cells of a mapped file: a whole model, or a slice of one.

    Args:
        stored: experts that the file has of a call; None: it has none of it.
    """

    def __init__(
        self,
        mapped: MappedModel,
        model_id: str,
        manifest: Manifest,
        stored: Callable[[ExpertCall], range | None],
    ) -> None:
        self.manifest = manifest
        self.model_id = model_id
        self._mapped = mapped
        self._stored = stored
        self._runs: dict[tuple[int, str], HeldExperts] = {}
        there = {}
        for call in manifest.calls:
            run = stored(call)
            if call.index == 0 and run is not None:
                there[call.layer] = run_bits(run.start, len(run))
        self._there = HomeSet.of_bits(there)

    def there(self) -> HomeSet:
        return self._there

    def add_to(self, cells: Cells, chosen: HomeSet) -> None:
        bits = cells_of(self.manifest, (chosen & self._there).experts())
        held, masks = {}, {}
        for call in self.manifest.calls:
            wanted = bits.get((call.layer, call.index), 0)
            run = self._stored(call)
            if wanted and run is not None:
                key = call.layer, call.group
                if key not in self._runs:
                    self._runs[key] = hold(self._mapped, call, run, run)
                held[key] = self._runs[key]
                masks[key] = np.isin(np.arange(call.n_experts), numbers(wanted))
        if held:
            cells.add(self.model_id, self.manifest, held, masks)


class PeerCells:
    """Cells of a model in the store whose file is not here: what was fetched of it, by whomever."""

    def __init__(self, stored: StoredModel, progress: Progress | None = None) -> None:
        self.manifest = stored.manifest
        self.model_id = stored.model_id
        self._folder = stored.folder
        self._progress = progress
        self._fetched = self.open(writable=False)

    def open(self, *, writable: bool) -> FetchedCells:
        """The files anew; writable to fetch into them.

        Raises:
            LocalError: another process fetches.
        """

        def report(done: int, total: int) -> None:
            if self._progress is not None:
                self._progress("checking fetched experts", done, total)

        return FetchedCells(self._folder, self.manifest, writable=writable, progress=report)

    def use(self, fetched: FetchedCells) -> None:
        """Take cells from these files from now on; the former stay valid for who has them."""
        former, self._fetched = self._fetched, fetched
        former.close()

    def there(self) -> HomeSet:
        return complete(self.manifest, {key: self._fetched.bits(key) for key in self._keys()})

    def lacks(self, chosen: HomeSet) -> HomeSet:
        """What of `chosen` is to be fetched."""
        return chosen - self.there()

    def add_to(self, cells: Cells, chosen: HomeSet) -> None:
        bits = cells_of(self.manifest, (chosen & self.there()).experts())
        if bits:
            self._fetched.add_to(cells, bits)

    def close(self) -> None:
        self._fetched.close()

    def _keys(self) -> list[tuple[int, int]]:
        return [(call.layer, call.index) for call in self.manifest.calls]


def open_source(
    library: Library, store: Store, entry: ServeConfig, maps: ExitStack, progress: Progress | None = None
) -> CellSource:
    """Open what a [[serve]] names.

    Raises:
        LocalError: the file is missing or malformed, or the store has no such model.
    """
    path = entry.model.path
    if path is not None and is_slice(path):
        piece = read_slice(path)
        manifest, mapped = piece.manifest(), maps.enter_context(MappedModel(piece.file))
        check_digests(store, mapped, manifest, piece, progress)

        def in_piece(call: ExpertCall) -> range | None:
            if call.tensors[0].name(call.layer, call.group) not in piece.file.tensors:
                return None
            return piece.experts if call.index == 0 else piece.chunk_experts

        return FileCells(mapped, piece.model_id, manifest, in_piece)
    try:
        stored, model = open_whole(library, store, entry.model, progress)
    except LocalError:
        if path is not None:
            raise
        assert entry.model.model_id is not None
        source = PeerCells(store.get(entry.model.model_id), progress)  # its file is gone, or never was here
        maps.callback(source.close)
        return source
    mapped = maps.enter_context(MappedModel(model))
    return FileCells(mapped, stored.model_id, stored.manifest, lambda call: range(call.n_experts))


def servable_layers(manifest: Manifest, available: HomeSet, budget: int) -> dict[int, ServableLayer]:
    """What may be served of a model, in grains.

    A grain is a run of experts that combine stable adds up together, if the budget has room for one; cells
    that share a chunk expert (grovemoe) go together always.
    """
    calls: dict[int, list[ExpertCall]] = {}
    for call in manifest.calls:
        calls.setdefault(call.layer, []).append(call)
    found = {}
    for layer, bits in available.bits:
        first = next(call for call in calls[layer] if call.index == 0)
        shared = _shared(manifest, first)
        for length in (min(math.lcm(first.run_length, shared), first.n_experts), shared):
            runs = [run_bits(start, length) & bits for start in range(0, first.n_experts, length)]
            grains = tuple(run for run in runs if run)
            sizes = tuple(_grain_bytes(calls[layer], first, grain) for grain in grains)
            found[layer] = ServableLayer(layer, grains, sizes)
            if min(sizes) <= budget:
                break
    return found


def _grain_bytes(calls: Sequence[ExpertCall], first: ExpertCall, grain: int) -> int:
    """Bytes of cells of one layer, with the chunk experts that go with them."""
    total = 0
    for call in calls:
        held = grain
        if call.index:
            held = 0
            for expert in numbers(grain):
                run = chunk_run(range(expert, expert + 1), first.n_experts, call.n_experts)
                held |= run_bits(run.start, len(run))
        total += held.bit_count() * call.bytes_per_cell
    return total


def complete(manifest: Manifest, held: CallBits) -> HomeSet:
    """Experts of the first calls whose chunk experts are there as well."""
    whole = {}
    for call in manifest.calls:
        if call.index == 0 and (bits := held.get((call.layer, 0), 0)):
            needed = cells_of(manifest, {call.layer: numbers(bits)})
            if all(not each & ~held.get(key, 0) for key, each in needed.items()):
                whole[call.layer] = bits
                continue
            whole[call.layer] = sum(
                1 << expert
                for expert in numbers(bits)
                if all(
                    not each & ~held.get(key, 0)
                    for key, each in cells_of(manifest, {call.layer: [expert]}).items()
                )
            )
    return HomeSet.of_bits(whole)


def _shared(manifest: Manifest, first: ExpertCall) -> int:
    """How many neighbouring cells share a chunk expert; 1 without such."""
    chunks = manifest.call(first.layer, 1)
    if chunks is None:
        return 1
    many, rest = divmod(first.n_experts, chunks.n_experts)
    return first.n_experts if rest else many
