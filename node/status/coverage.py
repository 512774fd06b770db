"""On how many live nodes each cell of each model is served. Pure.

A model's matrix is made anew when somebody who serves it comes, goes or serves otherwise; else it is kept.
What a node says is laid out once as arrays, so that a thousand nodes are added up in a few milliseconds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from node.status.facts import Runs
from routing.wire.holdings import Slice

MAX_LAYERS = 256
"""Rows of a matrix; the most known are 128."""

MAX_EXPERTS = 1_024
"""Columns; the most known are 512."""

MAX_UNKNOWN_MODELS = 8
"""Models that this node does not have itself and whose matrix it makes all the same. Adverts may tell of any
number of models that do not exist."""

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """The cells a model has.

    Attributes:
        layers: numbers of those with experts, ascending.
        experts: of each of these layers.
    """

    layers: tuple[int, ...]
    experts: tuple[int, ...]


@dataclass(frozen=True)
class Matrix:
    """Replicas of a model's cells.

    Attributes:
        layers: numbers of its rows; experts: how many each has.
        counts: uint8 [rows, most experts], 255 for more.
        nodes: that serve any of it.
    """

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    counts: npt.NDArray[np.uint8]
    nodes: int

    def encoded(self) -> str:
        """Base64 of the counts, row by row."""
        return base64.b64encode(self.counts.tobytes()).decode()

    def exists(self) -> npt.NDArray[np.bool_]:
        """Which places of the matrix are cells: layers may differ in their number of experts."""
        columns = np.arange(self.counts.shape[1])
        exists: npt.NDArray[np.bool_] = columns[None, :] < np.array(self.experts, int)[:, None]
        return exists


@dataclass(frozen=True)
class Extent:
    """What a node serves of a model, laid out.

    Attributes:
        layers: the layer of each run; firsts: its first expert; ends: the one after its last.
        cells: in all, of those that a matrix has room for.
    """

    layers: IntArray
    firsts: IntArray
    ends: IntArray
    cells: int

    @classmethod
    def of(cls, held: Slice) -> Extent:
        """Runs past MAX_LAYERS or MAX_EXPERTS are left out: no model has them."""
        layers: list[IntArray] = [_NONE]
        runs: list[IntArray] = [_NO_RUNS]
        for first, last, told in held.experts:
            rows = np.arange(first, min(last, MAX_LAYERS - 1) + 1, dtype=np.int32)
            each = np.array(told, np.int32)
            layers.append(np.repeat(rows, len(each)))
            runs.append(np.tile(each, (len(rows), 1)))
        layer, run = np.concatenate(layers), np.concatenate(runs)
        inside = run[:, 0] < MAX_EXPERTS
        firsts = run[inside, 0]
        ends = np.minimum(run[inside, 1] + 1, MAX_EXPERTS)
        return cls(layer[inside], firsts, ends, int((ends - firsts).sum()))


_NONE = np.zeros(0, np.int32)
_NO_RUNS = np.zeros((0, 2), np.int32)


class ModelCoverage:
    """One model's holders and their matrix.

    Args:
        shape: the cells it has; None: as far as its holders tell.
    """

    def __init__(self, shape: Shape | None) -> None:
        self._shape = shape
        self._holders: dict[str, Extent] = {}
        self._matrix: Matrix | None = None

    @property
    def holders(self) -> int:
        return len(self._holders)

    def note(self, node: str, extent: Extent | None) -> None:
        """What a live node serves of it now; None: nothing, or it is not live any more."""
        if extent is None:
            if self._holders.pop(node, None) is not None:
                self._matrix = None
        elif self._holders.get(node) is not extent:
            self._holders[node] = extent
            self._matrix = None

    def matrix(self) -> Matrix:
        """The same object until something changes."""
        if self._matrix is None:
            self._matrix = self._count()
        return self._matrix

    def _count(self) -> Matrix:
        extents = list(self._holders.values())
        layers = np.concatenate([each.layers for each in extents] or [_NONE])
        firsts = np.concatenate([each.firsts for each in extents] or [_NONE])
        ends = np.concatenate([each.ends for each in extents] or [_NONE])
        if self._shape is not None:
            rows, experts = self._shape.layers, self._shape.experts
        else:
            rows = tuple(np.unique(layers).tolist())
            experts = (int(ends.max(initial=0)),) * len(rows)
        width = max(experts, default=0)
        row_of = np.full(MAX_LAYERS + 1, -1, np.int64)
        for row, layer in enumerate(rows):
            row_of[min(layer, MAX_LAYERS)] = row
        row_of[MAX_LAYERS] = -1
        places = row_of[layers]
        told = places >= 0  # a peer may tell of layers that the model does not have
        places = places[told]
        # a run adds one from its first expert on and takes it back after its last
        steps = np.bincount(
            places * (width + 1) + np.minimum(firsts[told], width), minlength=len(rows) * (width + 1)
        ) - np.bincount(
            places * (width + 1) + np.minimum(ends[told], width), minlength=len(rows) * (width + 1)
        )
        counts = steps.reshape(len(rows), width + 1).cumsum(axis=1)[:, :width]
        matrix = Matrix(rows, experts, np.minimum(counts, 255).astype(np.uint8), len(extents))
        matrix.counts[~matrix.exists()] = 0
        return matrix


class Coverage:
    """All models that somebody serves."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._models: dict[str, ModelCoverage] = {}
        self._told: dict[str, tuple[list[Slice], dict[str, Extent]]] = {}

    def know(self, model_id: str, shape: Shape) -> None:
        """This node has a model: its matrix has this shape from now on."""
        if self._shapes.get(model_id) == shape:
            return
        self._shapes[model_id] = shape
        fresh = self._models[model_id] = ModelCoverage(shape)
        for node, (_, extents) in self._told.items():
            fresh.note(node, extents.get(model_id))

    def note(self, node: str, slices: Sequence[Slice]) -> Mapping[str, Extent]:
        """What a live node serves now, of all models; () for one that is gone.

        Returns:
            The same, laid out, by model.
        """
        before = self._told.get(node)
        if before is not None and before[0] == slices:
            return before[1]
        known: dict[str, Extent] = {} if before is None else before[1]
        extents: dict[str, Extent] = {}
        for held in slices:
            if held.kind == "experts" and held.model_id not in extents:  # what is told twice counts once
                extents[held.model_id] = Extent.of(held)
        for model_id in known.keys() - extents.keys():
            self._models[model_id].note(node, None)
        for model_id, extent in extents.items():
            model = self._models.get(model_id)
            if model is None:
                model = self._models[model_id] = ModelCoverage(self._shapes.get(model_id))
            model.note(node, extent)
        if extents:
            self._told[node] = (list(slices), extents)
        else:
            self._told.pop(node, None)
        for model_id in known.keys() - extents.keys():
            if not self._models[model_id].holders and model_id not in self._shapes:
                del self._models[model_id]
        return extents

    def keep(self, nodes: set[str]) -> None:
        """Forget all others."""
        for node in self._told.keys() - nodes:
            self.note(node, ())

    def models(self) -> dict[str, ModelCoverage]:
        """Those this node has, then the others that most nodes serve."""
        own = {model_id: self._models[model_id] for model_id in self._shapes}
        others = sorted(
            (each for each in self._models.items() if each[0] not in own),
            key=lambda each: (-each[1].holders, each[0]),
        )
        return own | dict(others[:MAX_UNKNOWN_MODELS])


def runs_of(wanted: npt.NDArray[np.bool_], layers: Sequence[int]) -> Runs:
    """The cells of a matrix that are wanted, as runs: neighbouring layers that are alike share an entry."""
    found: Runs = []
    before: npt.NDArray[np.bool_] | None = None
    for layer, row in zip(layers, wanted, strict=True):
        if found and found[-1][1] == layer - 1 and before is not None and (row == before).all():
            found[-1] = (found[-1][0], layer, found[-1][2])
            continue
        before = None
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False))
        if edges.size:
            before = row
            pairs = edges.reshape(-1, 2).tolist()
            found.append((layer, layer, [(first, end - 1) for first, end in pairs]))
    return found
