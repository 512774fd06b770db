"""Which device should serve which cells, given what each can hold: for owners who place slices by hand. Pure.

1. A layer goes whole to one device while there is one with room for it: one message, one vector back, and no
   straggler (measured: whole layers save far more than any clustering of cells).
2. A layer that fits nowhere whole is split, into as few parts as there are devices needed.
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
    """

    cell_bytes: int
    heat: Sequence[float]

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


def place(layers: Mapping[int, LayerNeed], rooms: Sequence[int]) -> list[dict[int, int]]:
    """Give every cell to a device, and fill what is left with replicas.

    Args:
        layers: what is to be served, by number.
        rooms: bytes that each device may hold.

    Returns:
        For each device its experts as bits, by layer; layers it holds nothing of are left out.

    Raises:
        LocalError: together they cannot hold all cells.
    """
    total = sum(need.n_bytes for need in layers.values())
    if sum(rooms) < total:
        raise LocalError(f"the devices hold {sum(rooms)} bytes together, the experts take {total}")
    devices = [_Device(room) for room in rooms]
    for layer, need in sorted(layers.items(), key=lambda each: (-each[1].n_bytes, each[0])):
        _place_layer(layer, need, devices)
    _replicate_layers(layers, devices)
    _replicate_cells(layers, devices)
    return [dict(sorted(device.held.items())) for device in devices]


def _place_layer(layer: int, need: LayerNeed, devices: Sequence[_Device]) -> None:
    fitting = [device for device in devices if device.room >= need.n_bytes]
    if fitting:
        # Room left, in shares of what there was, would fill small ones first: who has least to do comes
        # first.
        best = min(fitting, key=lambda device: (device.load, -device.room))
        best.take(layer, need.whole, need, sum(need.heat))
        return
    first, count = 0, len(need.heat)
    for device in sorted(devices, key=lambda device: -device.room):
        taken = min(device.room // need.cell_bytes, count - first)
        if taken > 0:
            experts = ((1 << taken) - 1) << first
            device.take(layer, experts, need, sum(need.heat[first : first + taken]))
            first += taken
    if first < count:
        raise LocalError(
            f"layer {layer}: {count - first} of its {count} experts fit on no device; "
            f"{(count - first) * need.cell_bytes} bytes more are needed for it"
        )


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


def _replicate_cells(layers: Mapping[int, LayerNeed], devices: Sequence[_Device]) -> None:
    """The hottest cells once more, each time the one with most demand a holder."""
    waiting = []
    for layer, need in layers.items():
        for expert, heat in enumerate(need.heat):
            holders = sum(device.held.get(layer, 0) >> expert & 1 for device in devices)
            if heat > 0:
                waiting.append((-heat / holders, layer, expert, holders))
    heapq.heapify(waiting)
    while waiting:
        _, layer, expert, holders = heapq.heappop(waiting)
        need, bit = layers[layer], 1 << expert
        able = [
            device
            for device in devices
            if device.room >= need.cell_bytes and not device.held.get(layer, 0) & bit
        ]
        if not able:
            continue
        demand = need.heat[expert] / (holders + 1)
        min(able, key=lambda device: (device.load, -device.room)).take(layer, bit, need, demand)
        heapq.heappush(waiting, (-demand, layer, expert, holders + 1))
