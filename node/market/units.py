"""A model's servable cells as the market's flat arrays, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from market.affinity import between, group_cells, groups_of
from market.ground import Bools, Floats, Ground
from market.own_order import own_generator
from node.device.serving_choice import Servable, ServableLayer
from node.home.call_bits import numbers
from node.home.home_set import HomeSet
from node.market.bonds import Bonds


@dataclass(frozen=True, eq=False)
class Units:
    """What could be served of a model: units are its grains.

    Attributes:
        ground: of the units.
        layers: numbers of its layers, ascending.
        grains: (layer, cells as bits) of each unit.
        cell_place, cell_expert: [n_cells], each cell's place in `layers` and its expert, unit by unit.
        first_cell: [n], a unit's first cell.
        width: experts of the widest layer.
    """

    ground: Ground
    layers: tuple[int, ...]
    grains: tuple[tuple[int, int], ...]
    cell_place: npt.NDArray[np.intp]
    cell_expert: npt.NDArray[np.intp]
    first_cell: npt.NDArray[np.intp]
    width: int

    @classmethod
    def of(cls, servable: Servable, bonds: Bonds) -> Units | None:
        """From what may be chosen, in groups of this peer's own; None if that is nothing."""
        layers = tuple(sorted(servable.layers))
        grains, places, sizes, group, cells = [], [], [], [], []
        for place, layer in enumerate(layers):
            each = servable.layers[layer]
            known = _groups(each, servable.own_id, bonds)
            for number, (grain, size) in enumerate(zip(each.grains, each.sizes, strict=True)):
                experts = numbers(grain)
                grains.append((layer, grain))
                places.append(place)
                sizes.append(size)
                group.append((place, number if known is None else int(known[number])))
                cells.append(experts)
        if not grains:
            return None
        numbered = {key: number for number, key in enumerate(dict.fromkeys(group))}
        counts = np.array([len(experts) for experts in cells])
        return cls(
            Ground.of(np.array(places), np.array(sizes), np.array([numbered[key] for key in group])),
            layers,
            tuple(grains),
            np.repeat(np.array(places), counts),
            np.concatenate([np.array(experts) for experts in cells]),
            np.concatenate(([0], np.cumsum(counts)[:-1])),
            max(int(grain.bit_length()) for _, grain in grains),
        )

    def held(self, cells: HomeSet) -> Bools:
        """[n], which units are in a set of cells, whole."""
        bits = dict(cells.bits)
        return np.array([not grain & ~bits.get(layer, 0) for layer, grain in self.grains])

    def cells(self, chosen: Bools) -> HomeSet:
        """The cells of some units."""
        bits: dict[int, int] = {}
        for number in np.flatnonzero(chosen).tolist():
            layer, grain = self.grains[number]
            bits[layer] = bits.get(layer, 0) | grain
        return HomeSet.of_bits(bits)

    def least(self, table: Floats) -> Floats:
        """[n], the least of each unit's cells.

        Args:
            table: [n_layers, width].
        """
        found: Floats = np.minimum.reduceat(table[self.cell_place, self.cell_expert], self.first_cell)
        return found

    def total(self, table: Floats) -> Floats:
        """[n], the sum of each unit's cells."""
        found: Floats = np.add.reduceat(table[self.cell_place, self.cell_expert], self.first_cell)
        return found

    def table(self, by_layer: Mapping[int, npt.NDArray[np.integer]] | Mapping[int, Floats]) -> Floats:
        """[n_layers, width] of numbers by layer; 0 where there are none."""
        found = np.zeros((len(self.layers), self.width))
        for place, layer in enumerate(self.layers):
            row = by_layer.get(layer)
            if row is not None:
                found[place, : len(row)] = row[: self.width]
        return found


def _groups(layer: ServableLayer, peer_id: str, bonds: Bonds) -> npt.NDArray[np.int32] | None:
    """The group of each grain; None where nothing is known of its layer's experts."""
    together = bonds.together.get(layer.layer)
    if together is None:
        return None
    part_of = np.full(len(together), -1)
    for number, grain in enumerate(layer.grains):
        part_of[numbers(grain)] = number
    cells = group_cells(len(together), bonds.n_used)
    grains = max(1, cells * len(layer.grains) // layer.cells.bit_count())
    return groups_of(between(together, part_of), grains, own_generator(peer_id, "groups", layer.layer))
