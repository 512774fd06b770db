"""From config, plan and files to what is at home."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from node.config import BackboneConfig, NodeConfig
from node.device.chosen_opening import open_chosen
from node.device.folder import NodeFolder
from node.engine.library import Library
from node.home.call_bits import cells_of, numbers
from node.home.choosing import Prediction, choose, choose_unmeasured, moved, predict
from node.home.fetched import FetchedCells
from node.home.heat import Heat
from node.home.home_set import HomeSet, Shapes, shapes_of, total_bytes
from node.home.plan_file import HomePlan, plan_command, read_heat, read_plan
from node.importing import Progress
from node.model.gguf.map import MappedModel
from node.model.held import HeldExperts, hold
from node.model.store import Store, StoredModel, StoreError
from node.ranges import Ranges
from node.serve.cells import Cells
from node.serve.opening import open_cells, open_whole
from node.sizes import size_text
from routing.errors import LocalError

GUESSES_BY_HOME = ("auto", "self")
"""Settings of backbone.draft with which guesses depend on what is at home."""


@dataclass(frozen=True)
class HomeChoice:
    """What is to be at home, and why.

    Attributes:
        wanted: all of it, with what is served anyway.
        lacking: what of it is in no file here; a peer may have it.
        n_bytes: of `wanted`.
        budget: bytes that were allowed; None where the config names cells, or nothing.
        by: "plan", "default order", "config", or "serve": only what is served is at home.
        predicted: trips per layer and token; None without a plan.
        plan_command: what makes one.
    """

    shapes: Shapes = field(repr=False)
    wanted: HomeSet
    lacking: HomeSet
    budget: int | None
    by: str
    predicted: float | None = None
    plan_command: str = ""

    @property
    def n_bytes(self) -> int:
        return self.wanted.n_bytes(self.shapes)

    def line(self) -> str:
        """For people; "" where nothing was asked for."""
        if self.by == "serve":
            return ""
        whole = self.wanted.whole_layers(self.shapes)
        cells = sum(len(experts) for layer, experts in self.wanted.experts().items() if layer not in whole)
        held = _and(
            f"layer{'s' if len(whole) > 1 else ''} {HomeSet.layers_text(whole)}" if whole else "",
            f"{cells} experts of other layers" if cells else "",
        )
        told = f"at home: {held or 'nothing'} ({size_text(self.n_bytes)})"
        if self.predicted is not None:
            told += f", {self.predicted:.2f} trips per layer and token on the plan's text"
        if self.by == "default order":
            told += f"; not measured yet: `{self.plan_command}` finds the best ones"
        if self.lacking:
            told += f"; {size_text(self.lacking.n_bytes(self.shapes))} of it in no file here"
        return told

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "by": self.by,
            "budget": self.budget,
            "bytes": self.n_bytes,
            "share": round(self.n_bytes / total_bytes(self.shapes), 4),
            "layers": self.wanted.whole_layers(self.shapes),
            "experts": self.wanted.as_ranges(),
            "lacking_bytes": self.lacking.n_bytes(self.shapes),
            "predicted_trips_per_layer_token": (None if self.predicted is None else round(self.predicted, 4)),
        }


class OpenHome:
    """What is at home and the files it lies in, which outlive every use; a context manager.

    Attributes:
        choice: what is to be at home.
        cells: what is at home now, with everything that is served.
        config_path: the config it was opened by.
        plan, heat: what was known when it was opened; `heat` counts on.
        guesses: whether guesses depend on what is at home.
        fetched: cells that came from peers; None where the model's own file is here.
        can_fetch: more may be added to them.
    """

    def __init__(
        self,
        stored: StoredModel,
        wanted: BackboneConfig,
        config_path: Path,
        served: Cells,
        whole: MappedModel | None,
        fetched: FetchedCells | None,
        maps: ExitStack,
        *,
        can_fetch: bool = False,
    ) -> None:
        self.stored = stored
        self.config_path = config_path
        self.shapes = shapes_of(stored.manifest)
        self.fetched = fetched
        self.can_fetch = can_fetch
        self.guesses = wanted.draft in GUESSES_BY_HOME
        self._config = wanted
        self._served = served
        self._whole = whole
        self._runs: dict[tuple[int, str], HeldExperts] = {}
        self._maps = maps
        self.plan: HomePlan | None = None
        self.heat = read_heat(stored, self.shapes)
        self.choice = HomeChoice(self.shapes, self.served, HomeSet(), None, "serve")
        self.cells = served
        if wanted.home or wanted.home_memory is not None:
            self.plan = read_plan(stored, config_path) if wanted.home_memory is not None else None
            self.choice = self.choose()
            self.cells = self.cells_for(self.choice.wanted)

    @property
    def served(self) -> HomeSet:
        """What is at home because it is served."""
        held = self._served.experts(bytes.fromhex(self.stored.model_id))
        return HomeSet.of({layer: experts for (layer, index), experts in held.items() if index == 0})

    def serve(self, cells: Cells) -> None:
        """What the node serves from now on, if it chooses that itself (node.device.chosen_serving)."""
        self._served = cells

    @property
    def budget(self) -> int | None:
        """Bytes beyond what is served; None where cells are named, or nothing is asked for."""
        memory = self._config.home_memory
        return None if memory is None else memory.of(total_bytes(self.shapes))

    @property
    def at_home(self) -> HomeSet:
        """Of what is chosen, what is in files here."""
        return self.choice.wanted - self.choice.lacking

    def prediction(self, plan: HomePlan, budget: int, heat: Heat) -> Prediction:
        """What home sets for a budget are chosen by.

        Whoever guesses, whole layers are right, so the choice is the same for all guessers; only where not
        even one layer fits is it made for what the config says.

        Args:
            heat: counted in use.
        """
        layer_fits = budget >= min(shape.n_bytes for shape in self.shapes.values())
        return predict(plan, self.shapes, heat, guesses=layer_fits or self.guesses)

    def choose(self) -> HomeChoice:
        """The best home set by what is known now."""
        if self._config.home:
            explicit = self.served | explicit_cells(self._config, self.shapes)
            return HomeChoice(self.shapes, explicit, self.lacks(explicit), None, "config")
        assert self._config.home_memory is not None
        return self.choice_for(self._config.home_memory.of(total_bytes(self.shapes)))

    def choice_for(self, budget: int) -> HomeChoice:
        """The same for so many bytes."""
        if self.plan is None:
            home = choose_unmeasured(self.shapes, self.heat, budget, self.served)
            command = plan_command(self.stored, self.config_path)
            return HomeChoice(
                self.shapes, home, self.lacks(home), budget, "default order", plan_command=command
            )
        prediction = self.prediction(self.plan, budget, self.heat)
        by_plan = choose(prediction, budget, self.served)
        home = moved(prediction, by_plan, self.served)
        # Nobody has measured the cells that moved: no more is promised of them than those of the plan gave.
        trips = predict(self.plan, self.shapes, guesses=self.guesses).trips(by_plan)
        return HomeChoice(self.shapes, home, self.lacks(home), budget, "plan", trips)

    def lacks(self, home: HomeSet) -> HomeSet:
        """Cells that are in no file here."""
        if self._whole is not None:
            return HomeSet()
        lacking = home - self.served
        if self.fetched is None:
            return lacking
        gone: dict[int, int] = {}
        absent = self.fetched.lacks(cells_of(self.stored.manifest, lacking.experts()))
        for (layer, index), bits in absent.items():
            if not index:
                gone[layer] = gone.get(layer, 0) | bits
                continue
            for expert in lacking.experts().get(layer, ()):  # chunk experts: whose are they?
                if cells_of(self.stored.manifest, {layer: [expert]})[layer, index] & bits:
                    gone[layer] = gone.get(layer, 0) | 1 << expert
        return HomeSet.of_bits(gone)

    def cells_for(self, home: HomeSet) -> Cells:
        """What is served and what of `home` is in files here. Files stay mapped, so a call may go on with old
        ones."""
        cells = self._served.copy()
        manifest = self.stored.manifest
        bits = cells_of(manifest, (home - self.served).experts())
        if self._whole is None:
            if self.fetched is not None and bits:
                self.fetched.add_to(cells, bits)
            return cells
        held, masks = {}, {}
        for call in manifest.calls:
            if chosen := bits.get((call.layer, call.index), 0):
                key = call.layer, call.group
                if key not in self._runs:
                    self._runs[key] = hold(self._whole, call, range(call.n_experts))
                held[key] = self._runs[key]
                masks[key] = np.isin(np.arange(call.n_experts), numbers(chosen))
        if held:
            cells.add(self.stored.model_id, manifest, held, masks)
        return cells

    def __enter__(self) -> OpenHome:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maps.close()


def open_home(
    library: Library,
    store: Store,
    stored: StoredModel,
    config: NodeConfig,
    progress: Progress | None = None,
) -> OpenHome:
    """Open what the config serves, and what its backbone is to compute itself.

    Only cells in a file here can be at home: of the backbone's own model file, of what is served, or fetched.

    Raises:
        LocalError: a file is broken, the plan is damaged, or the config names cells that the model lacks.
    """
    wanted = config.require_backbone()
    with ExitStack() as maps:
        served = maps.enter_context(open_cells(library, store, config.serve, progress)).cells
        note = NodeFolder.of(config).serving
        served = open_chosen(library, store, config.serve, served, note, maps, progress).cells
        whole, fetched, can_fetch = None, None, False
        if wanted.home or wanted.home_memory is not None:
            whole = _whole_file(library, store, stored, wanted, progress)
            if whole is not None:
                maps.enter_context(whole)
            else:
                fetched, can_fetch = _fetched(stored, progress)
                maps.enter_context(fetched)
        return OpenHome(
            stored, wanted, config.path, served, whole, fetched, maps.pop_all(), can_fetch=can_fetch
        )


def explicit_cells(config: BackboneConfig, shapes: Shapes) -> HomeSet:
    """The cells that [[backbone.home]] names.

    Raises:
        LocalError: the model has no such layer or expert; names the key.
    """
    home = HomeSet()
    for i, entry in enumerate(config.home):
        for layer in entry.layers:
            key = f"backbone.home[{i}]"
            if layer not in shapes:
                raise LocalError(
                    f"{key}: layer {layer} has no routed experts; choose among {HomeSet.layers_text(shapes)}"
                )
            experts = entry.experts or Ranges.below(shapes[layer].n_experts)
            try:
                experts.require_below(shapes[layer].n_experts, f"experts in layer {layer}")
            except LocalError as error:
                raise LocalError(f"{key}: {error}") from None
            home |= HomeSet.of({layer: experts})
    return home


def _whole_file(
    library: Library, store: Store, stored: StoredModel, wanted: BackboneConfig, progress: Progress | None
) -> MappedModel | None:
    """The model's own file, if it is here and has not changed."""
    try:
        found, model = open_whole(library, store, wanted.model, progress)
    except StoreError:
        raise
    except LocalError:
        if wanted.model.path is not None:
            raise
        return None  # only the trunk is here: the file it was made from is gone
    return MappedModel(model) if found.model_id == stored.model_id else None


def _fetched(stored: StoredModel, progress: Progress | None) -> tuple[FetchedCells, bool]:
    """Cells from peers, and whether more may be added: one process at a time does."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("checking fetched experts", done, total)

    try:
        return FetchedCells(stored.folder, stored.manifest, progress=report), True
    except LocalError:
        return FetchedCells(stored.folder, stored.manifest, writable=False, progress=report), False


def _and(*parts: str) -> str:
    return " and ".join(part for part in parts if part)
