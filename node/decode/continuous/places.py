"""The sequences of a context as places: who has one, what lies in the others and may be taken again.

A sequence that ends leaves its cache where it is until the place is needed: the one not used for longest is
given up first. Places in a cache that all share cost what they hold; caches of their own are there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import count

from node.decode.backbone import Backbone
from node.decode.continuous.layout import bring_together
from node.decode.continuous.prefix import COPY_PART, Past, Reuse, choose_seat
from node.engine.library import EngineError


class Places:
    """The places of a backbone's context.

    Args:
        number: sequences of the context.
        keep: what ends stays, and prompts take what they have in common with it.
    """

    def __init__(self, backbone: Backbone, number: int, *, keep: bool) -> None:
        self._context = backbone.context
        self._own = backbone.own_caches
        self._by_state = not backbone.can_rewind
        self.keep = keep
        self.rule = Reuse(backbone.context.n_ubatch, self._own, backbone.can_rewind)
        self.copy_least = max(1, backbone.n_ctx // COPY_PART) if self._own else 1
        self.pasts = [Past() for _ in range(number)]
        self._taken: set[int] = set()
        self._used = [0] * number  # when each was left, in ticks
        self._ticks = count(1)
        self._cells = count()

    # --- who is where ---

    def take(self, prompt: Sequence[int]) -> tuple[int, int]:
        """A free place for a prompt, and how many of its tokens lie there now."""
        if self.keep:
            seat = choose_seat(prompt, self.pasts, self._free(), self.rule, self.copy_least)
            slot, kept = seat.slot, seat.kept
            if seat.source is not None:
                self._copy(seat.source, slot, kept)
            else:
                self._cut(slot, kept)
        else:
            slot, kept = self._free()[0], 0
            self._cut(slot, 0)
        self._taken.add(slot)
        return slot, kept

    def improve(self, slot: int, prompt: Sequence[int]) -> int:
        """Take what others have read meanwhile; tokens of the prompt that lie in its place now."""
        here = len(self.pasts[slot])
        if self.keep:
            kept = [self.rule.of(past, prompt) for past in self.pasts]
            source = max(range(len(kept)), key=lambda each: kept[each])
            if kept[source] - here >= self.copy_least:
                self._copy(source, slot, kept[source])
        return len(self.pasts[slot])

    def share(self, source: int, slot: int) -> None:
        """Let a place have all that another has."""
        self._copy(source, slot, len(self.pasts[source]))

    def leave(self, slot: int) -> None:
        """A place is free again."""
        self._taken.discard(slot)
        self._used[slot] = next(self._ticks)
        if not self.keep:
            self._cut(slot, 0)

    def empty(self) -> None:
        """Give up all that lies in free places."""
        for slot in self._free():
            self._cut(slot, 0)

    def lost(self, slot: int) -> None:
        """A sequence is empty: its cache could not be rolled back."""
        self.pasts[slot].cut(0, self.rule.grid)

    def promised(self, prompt: Sequence[int], others: Sequence[Sequence[int]]) -> int:
        """Tokens of a prompt that it may take from others once they are read."""
        if not self.keep:
            return 0
        promised = max((self.rule.promised(other, prompt) for other in others), default=0)
        return promised if promised == len(prompt) or promised >= self.copy_least else 0

    @property
    def kept(self) -> int:
        """Tokens that lie in free places."""
        return sum(len(past) for slot, past in enumerate(self.pasts) if slot not in self._taken)

    def bring_together(self, wanted: AbstractSet[int]) -> dict[int, int]:
        """Give these consecutive numbers.

        Returns:
            The new number of each place in use that has moved.

        Raises:
            EngineError: there is no place to move anything to.
        """
        idle = [slot for slot in self._free() if len(self.pasts[slot])]
        moves = bring_together(len(self.pasts), wanted, self._taken - wanted, idle)
        if moves is None:
            raise EngineError(f"{len(self.pasts)} places: no room to bring {len(wanted)} sequences together")
        where = {slot: slot for slot in self._taken}
        for source, target in moves:
            self._move(source, target)
            for slot, now in where.items():
                if now == source:
                    where[slot] = target
        self._taken = set(where.values())
        return {slot: now for slot, now in where.items() if slot != now}

    def swap(self, one: int, other: int) -> bool:
        """Two in use change places; False if there is none free to go by."""
        free = self._free()
        if free:
            for source, target in ((one, free[0]), (other, one), (free[0], other)):
                self._move(source, target)
        return bool(free)

    def _move(self, source: int, target: int) -> None:
        self._copy_cache(source, target)
        self._context.remove(source, 0)
        self.pasts[target], self.pasts[source] = self.pasts[source], Past()
        self._used[target], self._used[source] = self._used[source], 0

    def _free(self) -> list[int]:
        """Places nobody has, in the order in which they are to be given up."""
        free = [slot for slot in range(len(self.pasts)) if slot not in self._taken]
        return sorted(free, key=lambda slot: (len(self.pasts[slot]) > 0, self._used[slot], slot))

    # --- what lies there ---

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """A piece of a prompt was computed."""
        self.pasts[slot].read(tokens, self.rule.grid)
        self._fill(slot)

    def wrote(self, slot: int, tokens: Sequence[int]) -> None:
        """Tokens that were chosen were computed."""
        self.pasts[slot].wrote(tokens)
        self._fill(slot)

    def cells(self, slots: AbstractSet[int] | None = None) -> int:
        """Cells of a shared cache that these places fill (all of them if None)."""
        pasts = self.pasts if slots is None else [self.pasts[slot] for slot in slots]
        return len(set().union(*(past.cells for past in pasts)))

    def make_room(self, needed: int, size: int) -> bool:
        """Give up free places until a shared cache of `size` cells has room for more; False: it has not."""
        for slot in self._free():
            if self.cells() + needed <= size:
                return True
            self._cut(slot, 0)
        return self.cells() + needed <= size

    def _fill(self, slot: int) -> None:
        if not self._own:
            past = self.pasts[slot]
            past.cells += [next(self._cells) for _ in range(len(past) - len(past.cells))]

    def _copy(self, source: int, slot: int, length: int) -> None:
        if source == slot:
            self._cut(slot, length)
            return
        self._context.remove(slot, 0)
        self._copy_cache(source, slot)
        self.pasts[slot] = self.pasts[source].copy()
        if self._by_state:
            self.pasts[slot].cells.clear()
            self._fill(slot)
        self._cut(slot, length)

    def _copy_cache(self, source: int, target: int) -> None:
        (self._context.copy_state if self._by_state else self._context.copy)(source, target)

    def _cut(self, slot: int, length: int) -> None:
        past = self.pasts[slot]
        if length == len(past):
            return
        if not self._context.remove(slot, length):
            raise EngineError("llama.cpp does not take back what a sequence has left in its cache")
        past.cut(length, self.rule.grid)
