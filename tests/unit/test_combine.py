"""Combining: the order of additions, bit for bit, and shapes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from routing.dispatch.combine import Part, add_slots, combine_rows, combine_sum, order_key, sum_pairs
from routing.dispatch.plan import HOME, Holder, LayerHolders, plan
from routing.errors import LocalError
from routing.wire.codecs import Float32Array

N_OUT = 37


def wild(shape: tuple[int, ...], seed: int = 0) -> Float32Array:
    """Values of very different sizes: any other order of additions shows."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 5, shape)).astype(np.float32)


def chain(values: list[Float32Array]) -> Float32Array:
    """((v0 + v1) + v2) + ..., element by element."""
    result = np.empty_like(values[0])
    for column in range(result.size):
        total = values[0][column]
        for value in values[1:]:
            total = np.float32(total + value[column])
        result[column] = total
    return result


def spread(
    n_tokens: int, n_used: int, n_experts: int, n_servers: int
) -> tuple[npt.NDArray[np.int32], Float32Array, list[Part]]:
    """ids, every pair's row, and the parts of servers named so that plan order is not id order."""
    rng = np.random.default_rng(n_tokens)
    ids = np.stack([rng.permutation(n_experts)[:n_used] for _ in range(n_tokens)]).astype(np.int32)
    rows = wild((n_tokens * n_used, N_OUT))
    holders = tuple(
        Holder.of(f"p{n_servers - n}" if n else HOME, range(n, n_experts, n_servers))
        for n in range(n_servers)
    )
    calls = plan(ids, LayerHolders(0, holders))
    return ids, rows, [Part(call, rows[call.pairs]) for call in calls]


@pytest.mark.parametrize("n_used", [1, 2, 8])
@pytest.mark.parametrize("n_servers", [1, 2, 3])
@pytest.mark.parametrize("n_tokens", [1, 7])
def test_rows_are_the_chain_of_additions_however_spread(n_tokens: int, n_servers: int, n_used: int) -> None:
    _, rows, parts = spread(n_tokens, n_used, 16, n_servers)
    direct = np.stack([chain(list(rows[t * n_used : (t + 1) * n_used])) for t in range(n_tokens)])
    assert combine_rows(parts, n_tokens, n_used, N_OUT).tobytes() == direct.tobytes()
    assert combine_rows(parts[::-1], n_tokens, n_used, N_OUT).tobytes() == direct.tobytes()


@pytest.mark.parametrize("n_servers", [1, 2, 3, 5])
@pytest.mark.parametrize("n_tokens", [1, 7])
def test_sum_adds_home_then_peers_by_id(n_tokens: int, n_servers: int) -> None:
    n_used = 6
    _, rows, parts = spread(n_tokens, n_used, 16, n_servers)
    by_peer = {part.call.peer_id: part for part in parts}
    direct = []
    for token in range(n_tokens):
        vectors = []
        for peer_id in sorted(by_peer, key=lambda name: (name != HOME, name)):
            pairs = [pair for pair in by_peer[peer_id].call.pairs if pair // n_used == token]
            if pairs:
                vectors.append(chain([rows[pair] for pair in pairs]))
        direct.append(chain(vectors))
    summed = [Part(part.call, sum_pairs(part.y, part.call.counts)) for part in parts]
    for order in (summed, summed[::-1]):
        assert combine_sum(order, n_tokens, N_OUT).tobytes() == np.stack(direct).tobytes()


def test_sum_of_one_server_is_rows_bit_for_bit() -> None:
    _, rows, (part,) = spread(5, 8, 16, 1)
    as_rows = combine_rows([part], 5, 8, N_OUT)
    as_sum = combine_sum([Part(part.call, sum_pairs(rows, part.call.counts))], 5, N_OUT)
    assert as_sum.tobytes() == as_rows.tobytes()


def test_negative_zero_survives() -> None:
    ids = np.array([[0, 1]], np.int32)
    calls = plan(ids, LayerHolders(0, (Holder.of("a", [0]), Holder.of("b", [1]))))
    zeros = np.full((1, 3), -0.0, np.float32)
    parts = [Part(call, zeros) for call in calls]
    assert np.signbit(combine_rows(parts, 1, 2, 3)).all()
    assert np.signbit(combine_sum(parts, 1, 3)).all()
    assert np.signbit(sum_pairs(zeros, np.array([1], np.uint16))).all()


def test_what_replaced_a_failed_answer_is_added_last() -> None:
    _, _, parts = spread(1, 8, 16, 3)
    late = Part(parts[0].call, parts[0].y, wave=1)
    assert late.call.peer_id == HOME
    assert sorted([late, *parts[1:]], key=order_key)[-1] is late


def test_sum_where_servers_share_only_some_tokens() -> None:
    ids = np.array([[0], [1], [0]], np.int32)
    calls = plan(ids, LayerHolders(0, (Holder.of("b", [0]), Holder.of("a", [1]))))
    overlapping = plan(np.zeros((3, 1), np.int32), LayerHolders(0, (Holder.of("c", [0]),)))
    parts = [Part(call, np.full((call.rows.size, 2), 2, np.float32)) for call in calls]
    parts.append(Part(overlapping[0], np.full((3, 2), 5, np.float32)))
    assert combine_sum(parts[:2], 3, 2).tolist() == [[2, 2]] * 3
    assert combine_sum([parts[0], parts[2]], 3, 2).tolist() == [[7, 7], [5, 5], [7, 7]]


def test_sum_pairs_by_hand() -> None:
    y = np.array([[1], [2], [3], [4], [5], [6]], np.float32)
    assert sum_pairs(y, np.array([1, 3, 2], np.uint16)).tolist() == [[1], [9], [11]]
    assert y.tolist() == [[1], [2], [3], [4], [5], [6]]


@pytest.mark.parametrize("counts", [[1, 2], [6, 0], [7], []])
def test_sum_pairs_checks_its_counts(counts: list[int]) -> None:
    with pytest.raises(LocalError, match="counts"):
        sum_pairs(np.zeros((6, 2), np.float32), np.array(counts, np.uint16))


def test_missing_or_doubled_pairs_are_refused() -> None:
    _, _, parts = spread(2, 4, 16, 2)
    with pytest.raises(LocalError, match="missing or were answered twice"):
        combine_rows(parts[:1], 2, 4, N_OUT)
    with pytest.raises(LocalError, match="missing or were answered twice"):
        combine_rows([*parts, parts[0]], 2, 4, N_OUT)


def test_wrong_shapes_are_refused() -> None:
    _, _, parts = spread(2, 4, 16, 2)
    with pytest.raises(LocalError, match="do not fit"):
        combine_rows(parts, 2, 4, N_OUT + 1)
    with pytest.raises(LocalError, match="do not fit"):
        combine_sum(parts, 2, N_OUT)
    with pytest.raises(LocalError, match="1 of 3 tokens have no vector"):
        summed = [Part(part.call, sum_pairs(part.y, part.call.counts)) for part in parts]
        combine_sum(summed, 3, N_OUT)


def test_the_inputs_are_left_alone() -> None:
    laid = wild((2, 3, 4))
    before = laid.copy()
    add_slots(laid)
    assert laid.tobytes() == before.tobytes()
