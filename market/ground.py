"""What of a model could be held, as flat arrays: the ground on which a device chooses its place. Pure.

A *unit* is what is served together or not at all: nearly always one cell. All arrays about units are [n], in
the order of (layer, expert), so that a decision over 48 layers of 128 experts is some array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ground:
    """The units of a model; made by `of`.

    Attributes:
        layer: [n], which layer each is of, counted from 0 without gaps, ascending.
        size: [n], bytes.
        group: [n], whom it is computed together with (market.affinity), counted from 0; within one layer.
        n_layers, n_groups: how many there are.
        layer_size: [n_layers], bytes.
        group_size: [n_groups], bytes.
        first: [n_layers], a layer's first unit.
        group_first: [n_groups], a group's first unit in `by_group`.
        by_group: [n], the units, group by group.
        group_layer: [n_groups].
    """

    layer: npt.NDArray[np.intp]
    size: npt.NDArray[np.int64]
    group: npt.NDArray[np.intp]
    n_layers: int
    n_groups: int
    layer_size: Floats
    group_size: Floats
    first: npt.NDArray[np.intp]
    group_first: npt.NDArray[np.intp]
    by_group: npt.NDArray[np.intp]
    group_layer: npt.NDArray[np.intp]

    @classmethod
    def of(cls, layer: Ints, size: Ints, group: Ints | None = None) -> Ground:
        """From units; without groups each unit is on its own.

        Raises:
            ValueError: the arrays do not fit each other.
        """
        n = len(layer)
        steps = np.diff(layer)
        if not n or layer[0] != 0 or (steps < 0).any() or (steps > 1).any() or len(size) != n:
            raise ValueError("units go layer by layer, from 0 and without gaps, with a size each")
        if (np.asarray(size) <= 0).any():
            raise ValueError("a unit has bytes")
        numbers = np.arange(n) if group is None else np.unique(group, return_inverse=True)[1]
        by_group = np.argsort(numbers, kind="stable")
        group_first = np.flatnonzero(np.diff(numbers[by_group], prepend=-1))
        group_layer = np.asarray(layer)[by_group[group_first]]
        if (group_layer[numbers] != layer).any():
            raise ValueError("a group is within one layer")
        sizes = np.asarray(size, np.int64)
        return cls(
            layer=np.asarray(layer, np.intp),
            size=sizes,
            group=numbers,
            n_layers=int(layer[-1]) + 1,
            n_groups=len(group_first),
            layer_size=np.bincount(layer, sizes).astype(np.float64),
            group_size=np.bincount(numbers, sizes).astype(np.float64),
            first=np.flatnonzero(np.diff(layer, prepend=-1)),
            group_first=group_first,
            by_group=by_group,
            group_layer=group_layer,
        )

    def __len__(self) -> int:
        return len(self.layer)

    def by_layer(self, values: npt.NDArray[Any]) -> Floats:
        """[n_layers], sums."""
        sums: Floats = np.bincount(self.layer, values, self.n_layers).astype(np.float64)
        return sums

    def by_groups(self, values: npt.NDArray[Any]) -> Floats:
        """[n_groups], sums."""
        sums: Floats = np.bincount(self.group, values, self.n_groups).astype(np.float64)
        return sums

    def least_by_layer(self, values: Floats) -> Floats:
        """[n_layers], the least of each."""
        least: Floats = np.minimum.reduceat(values, self.first)
        return least

    def least_by_groups(self, values: Floats) -> Floats:
        """[n_groups], the least of each."""
        least: Floats = np.minimum.reduceat(values[self.by_group], self.group_first)
        return least
