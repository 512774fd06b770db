"""Which cells a node serves within a budget of memory, by what its peers serve already. Pure.

Every node chooses for itself, from adverts alone; nobody tells it what others are about to choose.

Rules
1. Cells that nobody serves come first: whole layers of them, then the gaps that others have left.
2. What room is left takes replicas: layers that are served in part here are made whole, then whole layers,
   those that fewest serve first. A layer held whole by one server needs one message and has no straggler.
3. Between equals the order is the peer's own, drawn from its id: nodes that begin at the same time choose
   differently.
4. What is served stays, but for two reasons. A cell that nobody serves is worth more than one that somebody
   else serves as well. And a layer that two peers more serve than another goes for that one: with one more
   nothing would be gained, and two nodes could take turns for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from blake3 import blake3

from node.home.call_bits import numbers
from node.home.home_set import HomeSet

Counts = Mapping[int, Sequence[int]]
"""How many others serve each expert, by layer; a layer that is not there nobody serves."""


class Why(StrEnum):
    """What a choice was made for."""

    FIRST = "first choice"
    GAP = "nobody else served it"
    ROOM = "there was room for more"
    BALANCE = "fewer others served it"
    NEED = "too few others served it"
    INCOME = "it earns more"


@dataclass(frozen=True)
class ServableLayer:
    """What could be served of a layer.

    Attributes:
        grains: cells that are served together or not at all, as bits; in the order of the experts.
        sizes: bytes of each grain.
    """

    layer: int
    grains: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def cells(self) -> int:
        """All of them, as bits."""
        return sum(self.grains)

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes)

    def size_of(self, cells: int) -> int:
        """Bytes of the grains that some cells are in."""
        return sum(size for grain, size in zip(self.grains, self.sizes, strict=True) if grain & cells)


@dataclass(frozen=True)
class Servable:
    """What could be served of a model.

    Attributes:
        own_id: of the peer whose order it is (rule 3).
    """

    layers: Mapping[int, ServableLayer]
    own_id: str
    _places: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def place(self, layer: int) -> int:
        """Where a layer comes in this peer's own order."""
        if layer not in self._places:
            self._places[layer] = draw(self.own_id, "layer", layer)
        return self._places[layer]

    def n_bytes(self, cells: HomeSet) -> int:
        """What cells take."""
        return sum(self.layers[layer].size_of(bits) for layer, bits in cells.bits)

    def of(self, cells: HomeSet) -> HomeSet:
        """Those of some cells that could be served: whole grains."""
        held = {}
        for layer, bits in cells.bits:
            if layer in self.layers:
                held[layer] = sum(grain for grain in self.layers[layer].grains if not grain & ~bits)
        return HomeSet.of_bits(held)

    @property
    def smallest(self) -> int:
        """Bytes of the smallest grain."""
        return min(size for layer in self.layers.values() for size in layer.sizes)


class Choice:
    """A choice in the making.

    Args:
        kept: what is served now; no more than the budget.

    Attributes:
        room: bytes that are left.
    """

    def __init__(self, servable: Servable, budget: int, counts: Counts, kept: HomeSet) -> None:
        self._servable = servable
        self._layers = list(servable.layers.values())
        self._others = {each.layer: _others(each, counts.get(each.layer, ())) for each in self._layers}
        self._held = dict(kept.bits)
        self._droppable: list[tuple[ServableLayer, int, int]] | None = None  # layer, grain, size; best last
        self._can_drop = 0  # bytes of them
        self.room = budget - servable.n_bytes(kept)

    @property
    def cells(self) -> HomeSet:
        return HomeSet.of_bits(self._held)

    def cover(self, *, may_drop: bool) -> None:
        """Take what nobody serves (rule 1).

        Args:
            may_drop: what others serve as well makes room for it (rule 4).
        """
        lacking = [(layer, cells) for layer in self._layers if (cells := self._uncovered(layer))]
        lacking.sort(key=lambda each: self._place(each[0]))
        for layer, cells in lacking:
            if cells == layer.cells and self._has_room(layer.n_bytes, may_drop):
                self._take(layer, cells)
        lacking.sort(key=lambda each: each[1] == each[0].cells)  # gaps first: so layers become complete
        for layer, cells in lacking:
            for grain, size in self._from_own_start(layer):
                if grain & cells & self._rest(layer) and self._has_room(size, may_drop):
                    self._take(layer, grain)

    def fill(self) -> None:
        """Use the room that is left for replicas (rule 2)."""
        for layer in sorted(self._layers, key=self._replica_rank):
            rest = self._rest(layer)
            if rest and self.room >= layer.size_of(rest):
                self._take(layer, rest)
        for layer in sorted(self._layers, key=self._replica_rank):
            for grain, size in self._from_own_start(layer):
                if grain & self._rest(layer) and self.room >= size:
                    self._take(layer, grain)

    def balance(self) -> None:
        """Give one layer that many serve for one that few do (rule 4)."""
        mine = [each for each in self._layers if not self._rest(each)]
        free = [each for each in self._layers if not self._held.get(each.layer)]
        if not mine or not free:
            return
        most = max(mine, key=lambda each: (self._fewest(each, each.cells), self._place(each)))
        fewest = min(free, key=lambda each: (self._fewest(each, each.cells), self._place(each)))
        gain = self._fewest(most, most.cells) - self._fewest(fewest, fewest.cells)
        if gain >= 2 and self.room + most.n_bytes >= fewest.n_bytes:
            self._drop(most, most.cells)
            self._take(fewest, fewest.cells)

    # --- inside ---

    def _fewest(self, layer: ServableLayer, cells: int) -> int:
        """How many others serve that of these cells which fewest do."""
        others = self._others[layer.layer]
        return min(
            (each for grain, each in zip(layer.grains, others, strict=True) if grain & cells), default=0
        )

    def _uncovered(self, layer: ServableLayer) -> int:
        """Cells that neither others nor this node serves."""
        pairs = zip(layer.grains, self._others[layer.layer], strict=True)
        return sum(grain for grain, others in pairs if not others) & self._rest(layer)

    def _rest(self, layer: ServableLayer) -> int:
        """What of a layer is not served here."""
        return layer.cells & ~self._held.get(layer.layer, 0)

    def _place(self, layer: ServableLayer) -> int:
        return self._servable.place(layer.layer)

    def _replica_rank(self, layer: ServableLayer) -> tuple[bool, int, int]:
        """Layers begun here first, then those that fewest serve."""
        return not self._held.get(layer.layer), self._fewest(layer, self._rest(layer)), self._place(layer)

    def _from_own_start(self, layer: ServableLayer) -> Iterator[tuple[int, int]]:
        """A layer's grains and their sizes, from a place that is this peer's own, and around."""
        start = draw(self._servable.own_id, "start", layer.layer) % len(layer.grains)
        pairs = list(zip(layer.grains, layer.sizes, strict=True))
        yield from pairs[start:] + pairs[:start]

    def _take(self, layer: ServableLayer, cells: int) -> None:
        self.room -= layer.size_of(cells & self._rest(layer))
        self._held[layer.layer] = self._held.get(layer.layer, 0) | cells

    def _drop(self, layer: ServableLayer, cells: int) -> None:
        self.room += layer.size_of(cells)
        self._held[layer.layer] &= ~cells

    def _has_room(self, size: int, may_drop: bool) -> bool:
        """Whether there is room, or was made by dropping what others serve as well."""
        if self.room < size and may_drop:
            if self._droppable is None:
                self._droppable = self._find_droppable()
                self._can_drop = sum(each[2] for each in self._droppable)
            if self.room + self._can_drop >= size:
                while self.room < size:
                    layer, grain, freed = self._droppable.pop()
                    self._can_drop -= freed
                    self._drop(layer, grain)
        return self.room >= size

    def _find_droppable(self) -> list[tuple[ServableLayer, int, int]]:
        """What is held and others serve as well: last the parts of layers, and of those what most serve."""
        found = []
        for layer in self._layers:
            held = self._held.get(layer.layer, 0)
            rank = (bool(self._rest(layer)), self._fewest(layer, held), self._place(layer))
            for grain, size, others in zip(layer.grains, layer.sizes, self._others[layer.layer], strict=True):
                if grain & held and others:
                    found.append((rank, (layer, grain, size)))
        return [each for _, each in sorted(found, key=lambda each: each[0])]


def reconsider(
    servable: Servable, budget: int, counts: Counts, serving: HomeSet
) -> tuple[HomeSet, Why] | None:
    """What would be better than what is served now, and why; None if that is good."""
    choice = Choice(servable, budget, counts, serving)
    choice.cover(may_drop=True)
    if choice.cells != serving:
        choice.fill()
        return choice.cells, Why.GAP
    choice.fill()
    if choice.cells != serving:
        return choice.cells, Why.ROOM
    choice.balance()
    if choice.cells != serving:
        choice.fill()
        return choice.cells, Why.BALANCE
    return None


def _others(layer: ServableLayer, counts: Sequence[int]) -> tuple[int, ...]:
    """How many others serve each grain; of its cells the one that fewest do counts."""
    return tuple(
        min(counts[expert] if expert < len(counts) else 0 for expert in numbers(grain))
        for grain in layer.grains
    )


def draw(own_id: str, what: str, number: int) -> int:
    """A number below 2^64 that is a peer's own, and the same each time."""
    return int.from_bytes(blake3(f"{own_id} {what} {number}".encode()).digest()[:8], "little")
