"""The first kind of hole: a layer's routed experts, lifted out of the graph by structure.

A call opens at the first MUL_MAT_ID over an expert tensor. Every node computed from it, or from the call's
expert tensors, is left out, down to the routed output: the last ADD over the views of used experts (CONT
when one expert is used). Ids are the MUL_MAT_ID's third operand, the router's weights whatever
the rows are multiplied by on the way. The result is put into the routed output's memory just before its
first reader, so that llama.cpp computes the shared expert, which stands in between, during the trip. Where
the experts do not wait for attention the call leaves before it (`early_router`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from node.engine.early_router import EarlyRouter, NodeCopies, find
from node.engine.graph import VIEW_OPS, LiveTensor, name_of, sources
from node.engine.hook import HookError, Seen, Step
from node.engine.structs import Tensor
from node.model.expert_names import ExpertName, parse_expert_name
from node.model.manifest import ExpertCall


@dataclass(frozen=True, slots=True)
class ExpertInputs:
    """What a call's experts need, copied out of the graph.

    Attributes:
        x: [n_tokens, n_in], or [n_tokens * n_used, n_in] if the recipe weighs before the experts.
        ids: [n_tokens, n_used], the chosen experts.
        weights: [n_tokens, n_used], or None if the recipe does not weigh after the experts.
        at_home_only: a guess is made (node.decode.drafting): what is not at home is left out, nobody is
            asked.
    """

    call: ExpertCall
    x: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32] | None
    at_home_only: bool = False


class ExpertPort(Protocol):
    """Where the experts' inputs go and their outputs come from. Called on the decoding thread."""

    def leave(self, inputs: ExpertInputs) -> Any:
        """Start the trip; returns a ticket for `enter`. May compute cells held at home before it returns.

        With `at_home_only` the result is what the cells at home add up to, zeros where there are none.
        """

    def enter(self, ticket: Any) -> npt.NDArray[np.float32]:
        """Wait for the routed output: [n_tokens, n_out] float32."""


class _ExpertHole:
    """One call at one place of one graph: where its inputs are read and its result is written."""

    def __init__(self, owner: ExpertHoles, call: ExpertCall, first: Seen) -> None:
        self.owner = owner
        self.call = call
        self.first = first.address
        self.ids_address = first.sources[2]
        self.weights_address = 0
        self._x = LiveTensor(first.sources[1], np.float32)
        self._ids = LiveTensor(self.ids_address, np.int32)
        self._weights: LiveTensor | None = None
        self._output: LiveTensor | None = None
        self._early: _EarlyInputs | None = None

    def close(self, output: int) -> None:
        """The routed output is found: the hole is complete."""
        if self.weights_address:
            self._weights = LiveTensor(self.weights_address, np.float32)
        self._output = LiveTensor(output, np.float32)

    def inputs(self) -> set[int]:
        """Addresses of what is read."""
        return {self._x.address, self.ids_address, self.weights_address} - {0}

    def copy_router(self, copies: NodeCopies) -> None:
        """These nodes give the inputs before their turn."""
        weights = LiveTensor(copies.where(self.weights_address), np.float32) if self.weights_address else None
        self._early = _EarlyInputs(
            copies,
            LiveTensor(copies.where(self._x.address), np.float32),
            LiveTensor(copies.where(self.ids_address), np.int32),
            weights,
        )

    def leave_early(self) -> None:
        early = self._early
        if early is None or self._place().size == 0 or not early.copies.compute():
            return
        x, ids = _read_x(early.x), _read_ids(early.ids)
        weights = _read_weights(early.weights, ids)
        self.owner.left_early[self.first] = self._send(x, ids, weights), _bits(x, ids, weights)

    def capture(self) -> None:
        self.owner.captured[self.first] = (_read_x(self._x), _read_ids(self._ids))

    def leave(self) -> None:
        if self._place().size == 0:
            return  # the last layer, when no token asks for output
        if self.first in self.owner.captured:
            x, ids = self.owner.captured.pop(self.first)
        else:
            x, ids = _read_x(self._x), _read_ids(self._ids)
        weights = _read_weights(self._weights, ids)
        sent = None if self._early is None else self.owner.left_early.pop(self.first, None)
        if sent is not None and sent[1] == _bits(x, ids, weights):
            ticket = sent[0]
        else:
            self.owner.sent_in_vain += sent is not None
            ticket = self._send(x, ids, weights)
        self.owner.in_flight[self.first] = ticket, self.call

    def _send(
        self,
        x: npt.NDArray[np.float32],
        ids: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float32] | None,
    ) -> Any:
        n_tokens, n_used = ids.shape
        per_token = n_used if self.call.recipe.weights == "before" else 1
        if x.shape != (n_tokens * per_token, self.call.n_in):
            raise HookError(f"{self.call.label}: its input has shape {x.shape} for {n_tokens} tokens")
        if junk := self.owner.junk_rows:
            x, ids = x[: -junk * per_token], ids[:-junk]
            weights = None if weights is None else weights[:-junk]
        return self.owner.port.leave(ExpertInputs(self.call, x, ids, weights, self.owner.at_home_only))

    def enter(self) -> None:
        place = self._place()
        if place.size == 0:
            return
        found = self.owner.in_flight.pop(self.first, None)
        if found is None:
            raise HookError(f"{self.call.label}: its result is read, but its input was never sent")
        result = self.owner.port.enter(found[0])
        n_tokens = place.shape[2] - self.owner.junk_rows
        if (
            result.shape != (n_tokens, place.shape[3])
            or result.dtype != np.float32
            or place.shape[0] * place.shape[1] != 1
        ):
            raise HookError(
                f"{self.call.label}: a result of shape {result.shape} where {place.shape[2:]} belongs"
            )
        place[0, 0, :n_tokens] = result
        place[0, 0, n_tokens:] = 0

    def _place(self) -> npt.NDArray[np.float32]:
        """Where the result belongs: [1, 1, n_tokens, n_out]."""
        assert self._output is not None  # the hook serves no hole before it is complete
        return self._output.array()


def _read_x(tensor: LiveTensor) -> npt.NDArray[np.float32]:
    x = tensor.array()
    return x.copy().reshape(-1, x.shape[-1])


def _read_ids(tensor: LiveTensor) -> npt.NDArray[np.int32]:
    ids = tensor.array()
    return ids.copy().reshape(ids.shape[-2:])


def _read_weights(tensor: LiveTensor | None, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32] | None:
    return None if tensor is None else tensor.array().copy().reshape(ids.shape)


def _bits(*arrays: npt.NDArray[Any] | None) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in arrays if array is not None)


@dataclass(frozen=True, slots=True)
class _EarlyInputs:
    """A hole's inputs as copies of the router's nodes give them."""

    copies: NodeCopies
    x: LiveTensor
    ids: LiveTensor
    weights: LiveTensor | None


@dataclass(slots=True)
class _Open:
    """A call whose routed output has not been met yet."""

    hole: _ExpertHole
    name: ExpertName
    first_step: Step
    dead: set[int]
    lineage: set[int]  # nodes shaped like the down projection
    views: set[int]  # views of single experts, and partial sums of them
    nodes: int = 0  # after its first one
    n_used: int = 0
    adds: int = 0
    foreign: bool = False  # a node that has nothing to do with the experts stands in between


class ExpertHoles:
    """Recogniser of routed experts (`hook.Recogniser`).

    Args:
        calls: every MoE call of the model by (layer, group).
        port: where experts are computed.
        early: lets calls leave before their layer's attention where they can.

    Attributes:
        junk_rows: how many of a pass's last rows nobody will read (node.decode.exactness): their experts are
            answered with zeros here. They must be wanted, or the last layer would miss them.
        at_home_only: the pass is a guess; see `ExpertInputs`.
        sent_in_vain: calls that left early with other bits than the graph's.
    """

    def __init__(
        self,
        calls: Mapping[tuple[int, str], ExpertCall],
        port: ExpertPort,
        early: EarlyRouter | None = None,
    ) -> None:
        self._calls = calls
        self.port = port
        self.junk_rows = 0
        self.at_home_only = False
        self.captured: dict[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]] = {}
        self.in_flight: dict[int, tuple[Any, ExpertCall]] = {}
        self.left_early: dict[int, tuple[Any, tuple[bytes, ...]]] = {}
        self.sent_in_vain = 0
        self._early = early
        self._open: _Open | None = None
        self._waiting: tuple[_ExpertHole, set[int]] | None = None
        self._before: list[Seen] = []  # nodes that stand before the next call, since the last one's was read

    def begin(self) -> None:
        self.captured.clear()
        self.left_early.clear()
        self.in_flight.clear()

    def reset(self) -> None:
        self._open = None
        self._waiting = None
        self._before.clear()

    def is_idle(self) -> bool:
        return self._open is None and self._waiting is None

    def unfinished(self) -> str:
        if self._open is not None:
            return self._open.hole.call.label
        return next((call.label for _, call in self.in_flight.values()), "")

    def classify(self, node: Seen) -> Step:
        step = Step()
        if self._waiting is not None:
            hole, aliases = self._waiting
            if not aliases.isdisjoint(node.sources):
                if node.op in VIEW_OPS:
                    aliases.add(node.address)
                    return step
                step.enter = hole
                step.stop_before = True
                self._waiting = None
                self._before.clear()
        experts = [name for source in node.sources if (name := _expert_name(source)) is not None]
        if self._open is None:
            if node.op == "MUL_MAT_ID" and experts:
                self._start(node, experts[0], step)
            elif any(name.what != "scale" for name in experts):
                raise HookError(f"{name_of(node.address)} ({node.op}) reads experts outside of a call")
            else:
                self._before.append(node)
            return step
        call = self._open
        call.nodes += 1
        mine = any((name.layer, name.group) == (call.name.layer, call.name.group) for name in experts)
        if mine or not call.dead.isdisjoint(node.sources):
            step.skip = True
            call.dead.add(node.address)
            self._follow(call, node, experts, step)
        elif node.op not in VIEW_OPS:
            call.foreign = True
        return step

    def _start(self, node: Seen, name: ExpertName, step: Step) -> None:
        known = self._calls.get((name.layer, name.group))
        if known is None:
            raise HookError(
                f"layer {name.layer}: the graph uses {name.tensor_name}, which the manifest does not have"
            )
        if self._waiting is not None:
            raise HookError(f"{known.label} starts before the call before it was read")
        hole = _ExpertHole(self, known, node)
        step.skip = step.stop = True
        step.capture = hole
        self._open = _Open(hole, name, step, {node.address}, set(), set())

    def _follow(self, call: _Open, node: Seen, experts: list[ExpertName], step: Step) -> None:
        """Follow the rows from the down projection to the routed output."""
        if node.op == "MUL_MAT_ID":
            if node.sources[2] != call.hole.ids_address:
                raise HookError(f"{call.hole.call.label}: two sets of expert ids in one call")
            if any(name.part == "down" for name in experts):
                call.lineage.add(node.address)
                call.n_used = Tensor.from_address(node.address).ne[1]
            return
        source = node.sources[0]
        if node.op == "VIEW" and source in call.lineage:
            call.views.add(node.address)
        elif source in call.lineage:
            call.lineage.add(node.address)
            if node.op == "MUL" and node.sources[1] not in call.dead:
                call.hole.weights_address = node.sources[1]
        elif source in call.views:
            if node.op == "ADD" and node.sources[1] in call.views:
                call.adds += 1
                call.views.add(node.address)
                if call.adds == call.n_used - 1:
                    self._close(call, node, step)
            elif node.op == "CONT" and call.n_used == 1:
                self._close(call, node, step)
            else:
                raise HookError(f"{call.hole.call.label}: {node.op} where the used experts should be added")

    def _close(self, call: _Open, node: Seen, step: Step) -> None:
        hole = call.hole
        if (hole.call.recipe.weights == "after") != bool(hole.weights_address):
            raise HookError(f"{hole.call.label}: its weights are not where the manifest's recipe has them")
        hole.close(node.address)
        step.stop = True
        step.leave = hole
        if not call.foreign:
            # Nothing runs between the first node and here, so what the call reads is still in place here:
            # from the next pass on, one stop serves both.
            call.first_step.stop = False
            call.first_step.capture = None
        self._open = None
        self._waiting = (hole, {node.address})
        if self._early is not None and (early := find(self._before, hole.inputs())) is not None:
            hole.copy_router(NodeCopies(self._early, [self._before[i].address for i in early.nodes]))
            step.stop_early = call.nodes + len(self._before) - early.after


def _expert_name(address: int) -> ExpertName | None:
    # A weight has no operands; asking for those first spares reading most names.
    return None if sources(address) else parse_expert_name(name_of(address))
