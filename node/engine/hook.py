"""The one hook into llama.cpp's graph: nodes run here or are left out, segment by segment.

`cb_eval` is asked before each node. For every node of a graph there is a *step*: run it, leave it out
(`op = NONE`: the CPU backend skips it), stop after it, or take up what came from elsewhere before it. A
recogniser (`expert_holes` for routed experts; spans of whole layers will be a second one) says which, once
per node; later passes over the same graph only compare addresses and operations. Rules:

1. llama.cpp reuses graphs: a node that was left out still has op NONE in the next pass. What it was is
   remembered with its operands, and believed only while those are the same.
2. Where a pass departs from what was learned, everything since the last point at which no hole was open is
   classified again.
3. Nothing is raised through C. The first error is kept, the graph is left at once, and `finish` raises it.
4. One pass may be several graphs (ubatches); nothing here depends on where one begins.
"""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass
from typing import Protocol

from node.engine.graph import op_cell, operands, sources
from node.engine.library import EngineError, Library
from node.engine.structs import EvalCallback

NOP = 0  # GGML_OP_NONE


class HookError(EngineError):
    """The graph does something the hook cannot follow; the pass is void."""


class Hole(Protocol):
    """A part of the graph that is computed elsewhere."""

    def leave_early(self) -> None:
        """Called where all that the hole needs could be had, long before its first node (`Step.early`)."""

    def capture(self) -> None:
        """Called when all before the hole's first node is computed (only if the step asks for it)."""

    def leave(self) -> None:
        """Called when all before the hole's last node is computed: send what it needs."""

    def enter(self) -> None:
        """Called before the first node that reads the hole's result: wait for it and put it in place."""


@dataclass(slots=True)
class Step:
    """What happens at one node.

    Attributes:
        skip: leave the node out.
        stop: have everything up to this node computed before going on.
        stop_before: better have everything before this node computed first; heeded from the next pass on.
        enter: a hole whose result must be in place before this node.
        early, capture, leave: holes to serve once the stop is reached.
        stop_early: how many nodes before this one its `leave` hole could leave already; 0: it could not.
            Heeded from the next pass on.
    """

    skip: bool = False
    stop: bool = False
    stop_before: bool = False
    enter: Hole | None = None
    early: Hole | None = None
    capture: Hole | None = None
    leave: Hole | None = None
    stop_early: int = 0

    def is_plain(self) -> bool:
        return not (self.skip or self.stop or self.enter)


_PLAIN = Step()


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as the recogniser gets it: `op` is what it was before anything was left out."""

    address: int
    op: str
    sources: tuple[int, ...]


class Recogniser(Protocol):
    def classify(self, node: Seen) -> Step:
        """The step of the next node in graph order.

        Raises:
            HookError: the graph reads what is computed elsewhere in a way that is not understood.
        """

    def is_idle(self) -> bool:
        """No hole is open: classification could start at the next node."""

    def reset(self) -> None:
        """Be idle, whatever was open."""

    def begin(self) -> None:
        """Before a pass: drop what an abandoned pass left in flight."""

    def unfinished(self) -> str:
        """Name of a hole that was left and never entered in this pass; "" if none."""


@dataclass(slots=True)
class _Known:
    """What was learned of one node: `cell` is its `op` in the graph, `op` what stood there at first."""

    address: int
    cell: C.c_int
    op: int
    operands: bytes
    idle_before: bool
    step: Step | None  # None: plain, the common case


@dataclass(slots=True)
class HookCounts:
    """Counters of one hook since it was made.

    asks: nodes the graph asked about. classified: nodes that took the slow path.
    """

    asks: int = 0
    classified: int = 0


class GraphHook:
    """The callback of one context and what it has learned of its graphs."""

    def __init__(self, library: Library, recogniser: Recogniser) -> None:
        self._library = library
        self._recogniser = recogniser
        self._known: list[_Known] = []
        # The recogniser's state is the one after known[:_frontier]; -1: none of them.
        self._frontier = 0
        self._left_out: dict[int, tuple[int, bytes]] = {}  # address -> its op and operands
        self._index = 0
        self._pending: Step | None = None
        self._error: BaseException | None = None
        self.counts = HookCounts()
        self.callback = EvalCallback(self._on_node)

    def begin(self) -> None:
        """Before a pass."""
        self._index = 0
        self._pending = None
        self._error = None
        self._recogniser.begin()

    def finish(self) -> None:
        """After a pass: raises what went wrong in it.

        Raises:
            HookError: a hole's result was never read.
            PanalError: whatever a hole's `leave` or `enter` raised.
        """
        self.counts.asks += self._index
        if self._error is not None:
            error, self._error = self._error, None
            self._frontier = -1
            raise error
        if name := self._recogniser.unfinished():
            self._known.clear()
            self._frontier = -1
            raise HookError(f"{name}: its result was never read in this graph; please report the model")

    def _on_node(self, address: int, ask: bool, _data: object) -> bool:
        if self._error is not None:
            return ask  # stop at the next node, then leave the graph
        try:
            return self._ask(address) if ask else self._reached()
        except BaseException as error:  # noqa: BLE001 - nothing may cross back into C
            self._error = error
            return ask

    def _ask(self, address: int) -> bool:
        # A graph has 60 nodes a layer and each is asked about: what is not needed here costs every token.
        index = self._index
        self._index = index + 1
        if index < len(self._known):
            known = self._known[index]
            if known.address == address:
                step = known.step
                op = known.cell.value
                if step is None:
                    if op == known.op:
                        return False
                elif (op == known.op or (op == NOP and step.skip)) and operands(address) == known.operands:
                    return self._take(known, step, op)
        known = self._learn(index, address)
        return self._take(known, known.step or _PLAIN, known.cell.value)

    def _take(self, known: _Known, step: Step, op: int) -> bool:
        if step.enter is not None:
            step.enter.enter()
        if step.skip and op != NOP:
            self._left_out[known.address] = (op, known.operands)
            known.cell.value = NOP
        self._pending = step
        return step.stop

    def _reached(self) -> bool:
        step = self._pending
        if step is not None:
            if step.early is not None:
                step.early.leave_early()
            if step.capture is not None:
                step.capture.capture()
            if step.leave is not None:
                step.leave.leave()
        return True

    def _learn(self, index: int, address: int) -> _Known:
        """Classify a node that is new, or not what was learned at this place."""
        if self._frontier != index:
            start = index
            while start > 0 and not self._known[start - 1].idle_before:
                start -= 1
            start = max(start - 1, 0)
            again = [known.address for known in self._known[start:index]]
            del self._known[start:]
            self._recogniser.reset()
            for earlier in again:
                self._classify(earlier)
        return self._classify(address)

    def _classify(self, address: int) -> _Known:
        self.counts.classified += 1
        raw = operands(address)
        cell = op_cell(address)
        op = cell.value
        if op == NOP and address in self._left_out:
            was, with_operands = self._left_out[address]
            if with_operands == raw:
                op = was
        idle = self._recogniser.is_idle()
        step = self._recogniser.classify(Seen(address, self._library.op_name(op), sources(address)))
        if step.stop_before and self._known:
            self._stop_at(self._known[-1])
        if step.stop_early:
            self._stop_at(self._known[-step.stop_early]).early = step.leave
        known = _Known(address, cell, op, raw, idle, None if step.is_plain() else step)
        self._known.append(known)
        self._frontier = len(self._known)
        return known

    @staticmethod
    def _stop_at(known: _Known) -> Step:
        known.step = known.step or Step()
        known.step.stop = True
        return known.step
