"""Which device should serve which cells, given what each can hold: for owners who place slices by hand. Pure.

1. A layer goes whole to one device while there is one with room for it: one message, one vector back, and no
   straggler (measured: whole layers save far more than any clustering of cells).
2. A layer that fits nowhere whole is split, into as few parts as there are devices needed, between runs if
   they fit so.
3. What room is left takes replicas. Whole layers first, those that fewest hold; then the hottest cells, each
   time the one with most demand for each of those that hold it (the idea of DeepSeek's EPLB), on the
   device that has least to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.errors import LocalError


@dataclass(frozen=True, slots=True)
class LayerNeed:
    """A layer to be placed.

    Attributes:
        cell_bytes: of one expert.
        heat: [n_experts], how often each is chosen, in any unit that is the same for all layers.
        run_length: experts from 0 on that are better kept together (combine stable adds up whole runs only).
    """

    cell_bytes: int
    heat: Sequence[float]
    run_length: int = 1

    @property
    def n_bytes(self) -> int:
        return self.cell_bytes * len(self.heat)

    @property
    def whole(self) -> int:
        """All experts, as bits."""
        return (1 << len(self.heat)) - 1


class _Device:
    """A device being filled."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.load = 0.0
        self.held: dict[int, int] = {}

    def take(self, layer: int, experts: int, need: LayerNeed, load: float) -> None:
        added = experts & ~self.held.get(layer, 0)
        self.held[layer] = self.held.get(layer, 0) | experts
        self.room -= added.bit_count() * need.cell_bytes
        self.load += load


def place(
    layers: Mapping[int, LayerNeed], rooms: Sequence[int], *, whole_runs: bool = False
) -> list[dict[int, int]]:
    """Give every cell to a device, and fill what is left with replicas.

    Args:
        layers: what is to be served, by number.
        rooms: bytes that each device may hold.
        whole_runs: nothing less than a run is placed anywhere.

    Returns:
        For each device its experts as bits, by layer; layers it holds nothing of are left out.

    Raises:
        LocalError: together they cannot hold all cells.
    """
    total = sum(need.n_bytes for need in layers.values())
    if sum(rooms) < total:
        raise LocalError(
            f"the devices hold {_mib(sum(rooms))} together, the experts take {_mib(total)}: "
            "add a device, or room"
        )
    devices = [_Device(room) for room in rooms]
    for layer, need in sorted(layers.items(), key=lambda each: (-each[1].n_bytes, each[0])):
        _place_layer(layer, need, devices, whole_runs)
    _replicate_layers(layers, devices)
    _replicate_cells(layers, devices, whole_runs)
    return [dict(sorted(device.held.items())) for device in devices]


def _place_layer(layer: int, need: LayerNeed, devices: Sequence[_Device], whole_runs: bool) -> None:
    fitting = [device for device in devices if device.room >= need.n_bytes]
    if fitting:
        # Who has least to do comes first.
        best = min(fitting, key=lambda device: (device.load, -device.room))
        best.take(layer, need.whole, need, sum(need.heat))
        return
    count = len(need.heat)
    by_room = sorted(devices, key=lambda device: -device.room)
    parts = _split(need, [device.room for device in by_room], need.run_length)
    if sum(parts) < count and not whole_runs:
        parts = _split(need, [device.room for device in by_room], 1)
    if (lacking := count - sum(parts)) > 0:
        raise LocalError(
            f"layer {layer}: {lacking} of its {count} experts fit on no device; "
            f"{_mib(lacking * need.cell_bytes)} more are needed for it"
        )
    first = 0
    for device, taken in zip(by_room, parts, strict=True):
        if taken:
            experts = ((1 << taken) - 1) << first
            device.take(layer, experts, need, sum(need.heat[first : first + taken]))
            first += taken


def _split(need: LayerNeed, rooms: Sequence[int], unit: int) -> list[int]:
    """How many experts each device takes, in whole units but for the last of the layer."""
    parts, left = [], len(need.heat)
    for room in rooms:
        fits = min(room // need.cell_bytes, left)
        taken = fits if fits == left else fits // unit * unit
        parts.append(taken)
        left -= taken
    return parts


def _replicate_layers(layers: Mapping[int, LayerNeed], devices: Sequence[_Device]) -> None:
    """Whole layers once more, those that fewest hold, as long as one fits."""
    while True:
        choices = [
            (sum(other.held.get(layer, 0) == need.whole for other in devices), device.load, layer, number)
            for layer, need in layers.items()
            for number, device in enumerate(devices)
            if layer not in device.held and device.room >= need.n_bytes
        ]
        if not choices:
            return
        _, _, layer, number = min(choices)
        devices[number].take(layer, layers[layer].whole, layers[layer], 0.0)


def _replicate_cells(layers: Mapping[int, LayerNeed], devices: Sequence[_Device], whole_runs: bool) -> None:
    """The hottest cells (or runs) once more, each time the one with most demand a holder."""
    waiting = []
    for layer, need in layers.items():
        unit = need.run_length if whole_runs else 1
        for first in range(0, len(need.heat), unit):
            heat = sum(need.heat[first : first + unit])
            size = min(unit, len(need.heat) - first)
            experts = ((1 << size) - 1) << first
            holders = sum(device.held.get(layer, 0) & experts == experts for device in devices)
            if heat > 0:
                waiting.append((-heat / holders, layer, first, experts, heat, holders))
    heapq.heapify(waiting)
    while waiting:
        _, layer, first, experts, heat, holders = heapq.heappop(waiting)
        need = layers[layer]
        able = [
            device
            for device in devices
            if device.room >= experts.bit_count() * need.cell_bytes
            and not device.held.get(layer, 0) & experts
        ]
        if not able:
            continue
        demand = heat / (holders + 1)
        min(able, key=lambda device: (device.load, -device.room)).take(layer, experts, need, demand)
        heapq.heappush(waiting, (-demand, layer, first, experts, heat, holders + 1))


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB" if n_bytes >= 1 << 20 else f"{n_bytes:,} bytes"
