"""A home set: the cells that a backbone computes itself, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from node.model.manifest import Manifest
from node.ranges import Ranges
from routing.errors import LocalError


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What choosing cells needs to know of a layer.

    Attributes:
        n_experts: of its first call; chunk experts (grovemoe) go with them.
        n_bytes: of all its experts, chunk experts included.
        n_calls: trips that a token makes to it if nothing is at home.
    """

    layer: int
    n_experts: int
    n_bytes: int
    n_calls: int = 1

    @property
    def cell_bytes(self) -> float:
        """Bytes of one cell, with its part of the chunk experts."""
        return self.n_bytes / self.n_experts


Shapes = Mapping[int, LayerShape]
"""The layers of a model with routed experts, by number."""


def shapes_of(manifest: Manifest) -> dict[int, LayerShape]:
    """The layers of a model, in order."""
    found = {}
    for layer in manifest.layers():
        calls = [call for call in manifest.calls if call.layer == layer]
        first = next(call for call in calls if call.index == 0)
        n_bytes = sum(call.n_experts * call.bytes_per_cell for call in calls)
        found[layer] = LayerShape(layer, first.n_experts, n_bytes, len(calls))
    return found


def total_bytes(shapes: Shapes) -> int:
    """Of all cells."""
    return sum(shape.n_bytes for shape in shapes.values())


@dataclass(frozen=True, slots=True)
class HomeSet:
    """Cells of a model.

    Attributes:
        bits: (layer, its experts as bits) by layer; layers without any are left out.
    """

    bits: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, experts: Mapping[int, Iterable[int]]) -> HomeSet:
        """By the numbers of each layer's experts."""
        return cls.of_bits({layer: _to_bits(each) for layer, each in experts.items()})

    @classmethod
    def of_bits(cls, bits: Mapping[int, int]) -> HomeSet:
        return cls(tuple((layer, held) for layer, held in sorted(bits.items()) if held))

    @classmethod
    def whole(cls, layers: Iterable[int], shapes: Shapes) -> HomeSet:
        """These layers with all their experts."""
        return cls.of_bits({layer: (1 << shapes[layer].n_experts) - 1 for layer in layers})

    def held(self, layer: int) -> int:
        """A layer's experts as bits."""
        return next((bits for each, bits in self.bits if each == layer), 0)

    def experts(self) -> dict[int, list[int]]:
        """The numbers of each layer's experts, ascending."""
        return {layer: _numbers(bits) for layer, bits in self.bits}

    def mask(self, shape: LayerShape) -> npt.NDArray[np.bool_]:
        """[n_experts], which of a layer's experts are in it."""
        mask = np.zeros(shape.n_experts, np.bool_)
        mask[_numbers(self.held(shape.layer))] = True
        return mask

    def whole_layers(self, shapes: Shapes) -> list[int]:
        """Layers of which nothing is missing."""
        return [layer for layer, bits in self.bits if bits == (1 << shapes[layer].n_experts) - 1]

    def count(self) -> int:
        """Cells in it."""
        return sum(bits.bit_count() for _, bits in self.bits)

    def n_bytes(self, shapes: Shapes) -> int:
        """What its cells take; in a layer with chunk experts each cell counts its part of them."""
        return sum(round(bits.bit_count() * shapes[layer].cell_bytes) for layer, bits in self.bits)

    def __or__(self, other: HomeSet) -> HomeSet:
        mine = dict(self.bits)
        return HomeSet.of_bits(mine | {layer: mine.get(layer, 0) | bits for layer, bits in other.bits})

    def __and__(self, other: HomeSet) -> HomeSet:
        return HomeSet.of_bits({layer: bits & other.held(layer) for layer, bits in self.bits})

    def __sub__(self, other: HomeSet) -> HomeSet:
        return HomeSet.of_bits({layer: bits & ~other.held(layer) for layer, bits in self.bits})

    def __bool__(self) -> bool:
        return bool(self.bits)

    @staticmethod
    def layers_text(layers: Iterable[int]) -> str:
        """Layers as people write them."""
        return str(_ranges(layers))

    def as_ranges(self) -> dict[str, str]:
        """For files and JSON: runs of layers with the same experts -> those experts, as people write both."""
        same: dict[int, list[int]] = {}
        for layer, bits in self.bits:
            same.setdefault(bits, []).append(layer)
        return {str(_ranges(layers)): str(_ranges(_numbers(bits))) for bits, layers in same.items()}

    @classmethod
    def from_ranges(cls, ranges: Mapping[str, str], shapes: Shapes) -> HomeSet:
        """What `as_ranges` gave.

        Raises:
            LocalError: a range that cannot be read, a layer twice, or a layer or expert that the model lacks.
        """
        found: dict[int, int] = {}
        for layers, experts in ranges.items():
            numbers = Ranges.parse(experts)
            for layer in Ranges.parse(layers):
                if layer not in shapes or layer in found:
                    raise LocalError(f"layer {layer} is named twice, or has no routed experts")
                numbers.require_below(shapes[layer].n_experts, f"experts in layer {layer}")
                found[layer] = _to_bits(numbers)
        return cls.of_bits(found)


def _to_bits(experts: Iterable[int]) -> int:
    bits = 0
    for expert in experts:
        bits |= 1 << expert
    return bits


def _numbers(bits: int) -> list[int]:
    return [expert for expert in range(bits.bit_length()) if bits >> expert & 1]


def _ranges(numbers: Iterable[int]) -> Ranges:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return Ranges(tuple(runs))
