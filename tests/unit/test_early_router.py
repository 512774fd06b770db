"""Which nodes can be computed before their turn, on graphs written as lists of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.engine.early_router import MAX_NODES, EarlyNodes, find
from node.engine.hook import Seen

WEIGHT = 9000  # addresses from here on are leaves


def graph(*nodes: tuple[str, Sequence[int]]) -> list[Seen]:
    """Nodes at addresses 1, 2, ...: (op, addresses it reads)."""
    return [Seen(number, op, tuple(reads)) for number, (op, reads) in enumerate(nodes, 1)]


# 1 the last layer's sum, 2-3 norm, 4-6 attention, 7-9 its router
PARALLEL = graph(
    ("ADD", [WEIGHT]),
    ("RMS_NORM", [1]),
    ("MUL", [2, WEIGHT]),
    ("MUL_MAT", [WEIGHT, 3]),
    ("SET_ROWS", [4, WEIGHT]),
    ("FLASH_ATTN_EXT", [4, WEIGHT]),
    ("MUL_MAT", [WEIGHT, 3]),
    ("SOFT_MAX", [7]),
    ("RESHAPE", [3]),
)


def test_experts_beside_attention() -> None:
    # The norm is waited for: nothing could be done meanwhile.
    assert find(PARALLEL, {8, 9}) == EarlyNodes(2, (6, 7, 8))


def test_experts_that_read_the_layers_input() -> None:
    nodes = graph(
        ("ADD", [WEIGHT]),
        ("RMS_NORM", [1]),
        ("MUL_MAT", [WEIGHT, 2]),
        ("FLASH_ATTN_EXT", [3]),
        ("NORM", [1]),
        ("MUL_MAT", [WEIGHT, 5]),
        ("ARGSORT", [6]),
    )
    assert find(nodes, {5, 7}) == EarlyNodes(0, (4, 5, 6))


def test_experts_behind_attention() -> None:
    nodes = graph(
        ("ADD", [WEIGHT]),
        ("RMS_NORM", [1]),
        ("MUL_MAT", [WEIGHT, 2]),
        ("FLASH_ATTN_EXT", [3]),
        ("MUL_MAT", [WEIGHT, 4]),
        ("ADD", [5, 1]),
        ("NORM", [6]),
        ("MUL_MAT", [WEIGHT, 7]),
        ("ARGSORT", [8]),
    )
    assert find(nodes, {7, 9}) is None


def test_ids_that_are_known_and_hidden_states_that_are_not() -> None:
    # As in smallthinker: its router reads the layer's input, its experts what attention makes of it.
    nodes = graph(
        ("ADD", [WEIGHT]),
        ("MUL_MAT", [WEIGHT, 1]),
        ("FLASH_ATTN_EXT", [2]),
        ("MUL_MAT", [WEIGHT, 1]),
        ("ARGSORT", [4]),
        ("MUL_MAT", [WEIGHT, 3]),
        ("ADD", [6, 1]),
        ("NORM", [7]),
    )
    assert find(nodes, {5, 8}) is None


def test_weights_that_come_later() -> None:
    assert find(PARALLEL, {8, 9, 77}) is None


def test_nothing_to_do_meanwhile() -> None:
    nodes = graph(("ADD", [WEIGHT]), ("NORM", [1]), ("MUL_MAT", [WEIGHT, 2]), ("SCALE", [WEIGHT]))
    assert find(nodes, {2, 3}) is None


def test_what_writes_elsewhere_is_waited_for() -> None:
    nodes = graph(
        ("ADD", [WEIGHT]),
        ("MUL_MAT", [WEIGHT, 1]),
        ("SET_ROWS", [1, WEIGHT]),
        ("MUL_MAT", [WEIGHT, 1]),
        ("ADD", [3, WEIGHT]),
    )
    assert find(nodes, {5}) == EarlyNodes(2, (4,))


@pytest.mark.parametrize(("count", "found"), [(MAX_NODES, True), (MAX_NODES + 1, False)])
def test_many_nodes(count: int, found: bool) -> None:
    chain = [("SCALE", [1])] + [("SCALE", [number]) for number in range(3, count + 2)]
    nodes = graph(("ADD", [WEIGHT]), ("MUL_MAT", [WEIGHT, 1]), *chain)
    assert len(nodes) == count + 2
    assert (find(nodes, {len(nodes)}) is not None) is found


def test_an_address_that_an_older_graph_had_used() -> None:
    older = [Seen(3, "FLASH_ATTN_EXT", (WEIGHT,)), Seen(8, "SET_ROWS", (WEIGHT,))]
    assert find([*older, *PARALLEL], {8, 9}) == EarlyNodes(4, (8, 9, 10))


def test_the_first_node_is_waited_for() -> None:
    # What reads only weights and inputs begins a graph: before it there is nothing of this graph to stop at.
    older = graph(("MUL_MAT", [WEIGHT]), ("ADD", [1]))
    nodes = [Seen(node.address + 10, node.op, node.sources) for node in graph(("GET_ROWS", [WEIGHT]))]
    nodes += [Seen(12, "MUL_MAT", (WEIGHT, 11)), Seen(13, "NORM", (11,)), Seen(14, "MUL_MAT", (WEIGHT, 13))]
    assert find([*older, *nodes], {13, 14}) == EarlyNodes(2, (4, 5))
