"""From [[serve]] entries with `memory` to what is chosen from (node.device.chosen_serving)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from node.config import ServeConfig
from node.device.cell_sources import open_source
from node.device.chooser import NOTHING, Chooser
from node.device.chosen_serving import Chosen, ChosenServing
from node.device.serving_note import read_note
from node.engine.library import Library
from node.home.home_set import HomeSet, Shapes, shapes_of, total_bytes
from node.importing import Progress
from node.model.store import Store
from node.serve.cells import Cells
from node.sizes import size_text
from routing.errors import LocalError


def open_chosen(
    library: Library,
    store: Store,
    entries: Sequence[ServeConfig],
    fixed: Cells,
    note: Path,
    maps: ExitStack,
    progress: Progress | None = None,
) -> ChosenServing:
    """Open the models of all [[serve]] with memory.

    Args:
        fixed: what is served besides.
        note: where it is written what was served last.

    Raises:
        LocalError: a model cannot be opened, is named twice, or not even one of its experts has room.
    """
    before = read_note(note)
    chosen: dict[str, Chosen] = {}
    for entry in entries:
        if entry.memory is None:
            continue
        source = open_source(library, store, entry, maps, progress)
        if source.model_id in chosen:
            raise LocalError(
                f"[[serve]] {entry.model}: another [[serve]] has memory for the same model; add it up in one"
            )
        shapes = shapes_of(source.manifest)
        budget = entry.memory.of(total_bytes(shapes))
        smallest = min(round(shape.cell_bytes) for shape in shapes.values())
        if budget < smallest:
            raise LocalError(
                f"[[serve]] {entry.model}: memory {entry.memory} has no room for one expert of it, "
                f"the smallest of which takes {size_text(smallest)}"
            )
        serving = _recall(before.get(source.model_id, {}), shapes)
        known = Chosen(source, budget, Chooser(budget, serving), shapes)
        if serving.n_bytes(shapes) <= budget:
            known.served = serving & source.there()
        chosen[source.model_id] = known
    return ChosenServing(fixed, list(chosen.values()), note)


def _recall(ranges: Mapping[str, str], shapes: Shapes) -> HomeSet:
    try:
        return HomeSet.from_ranges(ranges, shapes)
    except LocalError:
        return NOTHING
