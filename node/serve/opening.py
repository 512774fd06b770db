"""From `[[serve]]` entries to cells: models and slice files mapped, checked against their manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from node.config import ModelRef, ServeConfig
from node.engine.library import Library
from node.importing import Progress, import_model
from node.model.digests import check_experts
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, open_model
from node.model.held import HeldExperts, hold
from node.model.manifest import Manifest
from node.model.slice_file import SLICE_TYPE, SliceFile, chunk_run, read_slice
from node.model.store import Store, StoredModel
from node.ranges import Ranges
from node.serve.cells import Cells
from routing.errors import LocalError


@dataclass
class OpenCells:
    """Cells and the maps they lie in, which must outlive every use of them."""

    cells: Cells
    maps: ExitStack

    def __enter__(self) -> OpenCells:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.maps.close()


def open_cells(
    library: Library, store: Store, serve: Sequence[ServeConfig], progress: Progress | None = None
) -> OpenCells:
    """Map all that a node serves. A model that is not in the store yet is imported first.

    Raises:
        LocalError: a file is missing, malformed, or does not hold what is to be served.
    """
    cells = Cells()
    with ExitStack() as maps:
        for entry in serve:
            if entry.memory is not None:
                continue  # chosen in use (node.device.chosen_serving)
            _open_entry(library, store, entry, cells, maps, progress)
        return OpenCells(cells, maps.pop_all())


def _open_entry(
    library: Library,
    store: Store,
    entry: ServeConfig,
    cells: Cells,
    maps: ExitStack,
    progress: Progress | None,
) -> None:
    if entry.model.path is not None and is_slice(entry.model.path):
        piece = read_slice(entry.model.path)
        source = str(piece.file.path)
        manifest = piece.manifest()
        mapped = maps.enter_context(MappedModel(piece.file))
        check_digests(store, mapped, manifest, piece, progress)
        layers = entry.layers or Ranges(((piece.layers.start, piece.layers.stop - 1),))
        experts = entry.experts or Ranges(((piece.experts.start, piece.experts.stop - 1),))
        cells_of_file = _hold_all(source, mapped, manifest, layers, experts, piece)
        for held in cells_of_file:
            cells.add(piece.model_id, manifest, held)
        return
    stored, model = open_whole(library, store, entry.model, progress)
    mapped = maps.enter_context(MappedModel(model))
    layers = entry.layers or Ranges.below(max(stored.manifest.layers()) + 1)
    experts = entry.experts or Ranges.below(max(call.n_experts for call in stored.manifest.calls))
    for held in _hold_all(
        str(model.path), mapped, stored.manifest, layers, experts, None, clip=entry.experts is None
    ):
        cells.add(stored.model_id, stored.manifest, held)


def check_digests(
    store: Store, mapped: MappedModel, manifest: Manifest, piece: SliceFile, progress: Progress | None
) -> None:
    """Compare a slice file's experts with its manifest, once; the store remembers."""
    if store.is_checked(piece.file):
        return
    total, done = sum(tensor.n_bytes for tensor in piece.file.tensors.values()), 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(f"checking {piece.file.path.name}", done, total)

    for call in manifest.calls:
        stored = piece.experts if call.index == 0 else piece.chunk_experts
        held = call.tensors[0].name(call.layer, call.group) in piece.file.tensors
        if held and stored is not None:
            hold(mapped, call, stored, stored)  # shapes and types first: the digests are of whole experts
            check_experts(mapped, call, stored, count)
    store.mark_checked(piece.file)


def open_whole(
    library: Library, store: Store, ref: ModelRef, progress: Progress | None = None
) -> tuple[StoredModel, ModelFile]:
    """A model in the store together with a file that has all its tensors.

    Raises:
        LocalError: no such model, or none of the files it was imported from is there unchanged.
    """
    if ref.path is not None:
        stored = import_model(library, store, ref.path, progress)
        return stored, open_model(ref.path)
    assert ref.model_id is not None
    stored = store.get(ref.model_id)
    tried = []
    for source in reversed(store.sources(stored.model_id)):
        path = Path(source.parts[0].path)
        tried.append(str(path))
        if path.is_file():
            model = open_model(path)
            found = store.find(model)
            if found is not None and found.model_id == stored.model_id:
                return found, model
    if not tried:
        raise LocalError(
            f"model {ref.model_id}: only its trunk is here, which came from peers; `panal slice get`"
            " fetches experts"
        )
    raise LocalError(
        f"model {ref.model_id}: its file is gone or changed ({', '.join(tried)}); "
        f"give the path of the file, or import it again"
    )


def open_trunk(
    library: Library, store: Store, ref: ModelRef, progress: Progress | None = None
) -> StoredModel:
    """A model whose trunk is in the store; given a file, imported if need be."""
    if ref.path is not None:
        return import_model(library, store, ref.path, progress)
    assert ref.model_id is not None
    return store.get(ref.model_id)


def is_slice(path: Path) -> bool:
    """Whether a GGUF file is a slice file."""
    return open_model(path).find_str("general.type") == SLICE_TYPE


def _hold_all(
    source: str,
    mapped: MappedModel,
    manifest: Manifest,
    layers: Ranges,
    experts: Ranges,
    piece: SliceFile | None,
    *,
    clip: bool = False,
) -> list[dict[tuple[int, str], HeldExperts]]:
    """One set of held experts per run of the range.

    Args:
        clip: the range means "all", also in layers with fewer experts than others.
    """
    first_calls = {call.layer: call for call in manifest.calls if call.index == 0}
    chosen = [layer for layer in first_calls if layer in layers]
    if not chosen:
        raise LocalError(
            f"{source}: layers {layers} hold no routed experts; choose among {_span(first_calls)}"
        )
    if piece is None:
        layers.require_below(max(first_calls) + 1, f"layers in {source}")
    found = []
    for first, last in experts.runs:
        held: dict[tuple[int, str], HeldExperts] = {}
        for call in manifest.calls:
            if call.layer not in chosen:
                continue
            count = first_calls[call.layer].n_experts
            if last >= count and not clip:
                raise LocalError(
                    f"{source}: layer {call.layer} has experts 0-{count - 1}, not {first}-{last}"
                )
            cells = range(first, min(last + 1, count))
            if not cells:
                continue
            run = cells if call.index == 0 else chunk_run(cells, count, call.n_experts)
            stored = None
            if piece is not None:
                stored = piece.experts if call.index == 0 else piece.chunk_experts
            held[call.layer, call.group] = hold(mapped, call, run, stored)
        found.append(held)
    return found


def _span(layers: Iterable[int]) -> str:
    numbers = sorted(layers)
    return f"{numbers[0]}-{numbers[-1]}"
