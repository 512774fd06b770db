"""Recording a model's compute graph without computing it: every node is seen, none is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.engine.context import Context, Row
from node.engine.graph import Node, op_cell, read_node
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.structs import EvalCallback

TRACE_TOKENS = 5  # more than 1, so that per-token and per-slot shapes differ from each other
TRACE_CONTEXT = 64
NOP = 0  # GGML_OP_NONE: the CPU backend skips it


@dataclass(frozen=True)
class Trace:
    """A graph in the order it would run.

    Attributes:
        leaves: what nodes read that no node computes: weights, inputs, caches; by address.
    """

    nodes: list[Node]
    leaves: dict[int, Node] = field(default_factory=dict)

    def find(self, address: int) -> Node | None:
        """The last node at the address, or the leaf there."""
        return self._by_address.get(address) or self.leaves.get(address)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_address", {node.address: node for node in self.nodes})

    _by_address: dict[int, Node] = field(init=False, repr=False, compare=False)


class _Recorder:
    def __init__(self, library: Library) -> None:
        self._library = library
        self.nodes: list[Node] = []
        self.leaves: dict[int, Node] = {}
        self.error: BaseException | None = None
        self.callback = EvalCallback(self._on_node)

    def _on_node(self, address: int, ask: bool, _data: object) -> bool:
        if not ask:
            return True
        try:
            node = read_node(self._library, address)
            self.nodes.append(node)
            seen = {known.address for known in self.nodes[-1:]}
            for source in node.sources:
                if source not in seen and source not in self.leaves:
                    self.leaves[source] = read_node(self._library, source)
            op_cell(address).value = NOP
        except BaseException as error:  # noqa: BLE001 - nothing may cross back into C
            self.error = error
        return False


def trace(model: LlamaModel, *, tokens: int = TRACE_TOKENS) -> Trace:
    """The graph of one pass over `tokens` tokens, all of them wanted."""
    recorder = _Recorder(model.library)
    with Context(model, n_ctx=TRACE_CONTEXT, n_ubatch=TRACE_CONTEXT, callback=recorder.callback) as context:
        context.run([Row(token=i % model.n_vocab, position=i) for i in range(tokens)])
    if recorder.error is not None:
        raise recorder.error
    computed = {node.address for node in recorder.nodes}
    return Trace(recorder.nodes, {a: leaf for a, leaf in recorder.leaves.items() if a not in computed})
