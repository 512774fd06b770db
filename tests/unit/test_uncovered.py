"""Pairs that no receipt covers yet: as many as were computed, and no more room than that."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market import uncovered as module
from market.uncovered import LOG_PAIRS, MAX_KEYS, Uncovered

MODEL = bytes(range(32))


def taken(uncovered: Uncovered, peer: str, share: int = 1, of: int = 1) -> dict[tuple[bytes, int], list[int]]:
    return {key: pairs.tolist() for key, pairs in uncovered.take(peer, share, of)}


def array(*experts: int) -> npt.NDArray[np.uint16]:
    return np.array(experts, np.uint16)


def test_pairs_come_back_by_layer_and_expert() -> None:
    uncovered = Uncovered()
    uncovered.add("ann", (MODEL, 7), array(3, 1, 3))
    uncovered.add("ann", (MODEL, 2), array(0))
    uncovered.add("bob", (MODEL, 7), array(65_535))
    assert taken(uncovered, "ann") == {(MODEL, 7): [0, 1, 0, 2], (MODEL, 2): [1]}
    assert taken(uncovered, "ann") == {} == taken(uncovered, "who never came")
    (pairs,) = (pairs for _, pairs in uncovered.take("bob", 1, 1))
    assert len(pairs) == 65_536 and pairs[-1] == 1 == pairs.sum()
    assert uncovered.entries == 0


CALL = st.tuples(
    st.sampled_from("abc"), st.integers(0, 3), st.lists(st.integers(0, 9), min_size=1, max_size=40)
)
PART = st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.just(8))


@settings(max_examples=60, deadline=None)
@given(st.lists(CALL | PART, max_size=40), st.sampled_from([1, 4, LOG_PAIRS]))
def test_it_counts_as_a_count_for_each_cell_would(steps: list[tuple[str, int, object]], log: int) -> None:
    """Shares are rounded down by cell, whatever was summed up in between."""
    uncovered, counts = Uncovered(), {peer: Counter[tuple[int, int]]() for peer in "abc"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOG_PAIRS", log)
        for peer, number, what in steps:
            if isinstance(what, list):
                uncovered.add(peer, (MODEL, number), array(*what))
                counts[peer].update((number, expert) for expert in what)
                continue
            expected = {
                cell: count if number == 8 else count * number // 8 for cell, count in counts[peer].items()
            }
            found = {
                (layer, expert): int(count)
                for (_, layer), pairs in uncovered.take(peer, number, 8)
                for expert, count in enumerate(pairs)
                if count
            }
            assert found == {cell: count for cell, count in expected.items() if count}
            counts[peer] = +Counter({cell: count - expected[cell] for cell, count in counts[peer].items()})
        assert uncovered.entries == sum(len(pairs) for pairs in uncovered._peers.values())
        assert (uncovered.entries == 0) == (not any(counts.values()))


def test_a_busy_peers_log_is_summed_up() -> None:
    uncovered = Uncovered()
    for _ in range(10_000):
        uncovered.add("ann", (MODEL, 0), array(1, 2))
        assert uncovered.entries < LOG_PAIRS + 2
    assert taken(uncovered, "ann") == {(MODEL, 0): [0, 10_000, 10_000]}


def test_past_its_bound_it_forgets_who_has_neither_come_nor_signed_for_longest() -> None:
    uncovered = Uncovered(most_entries=100, shed_to=50)
    uncovered.add("signer", (MODEL, 0), np.arange(20, dtype=np.uint16))
    uncovered.add("old", (MODEL, 0), np.arange(20, dtype=np.uint16))
    taken(uncovered, "signer", 1, 10**6)
    for number in range(60):
        uncovered.add(f"new {number}", (MODEL, 0), array(number))
    assert uncovered.entries == 100
    uncovered.add("last", (MODEL, 0), array(0))
    assert uncovered.entries <= 51
    assert taken(uncovered, "old") == {} == taken(uncovered, "signer")
    assert taken(uncovered, "last") and taken(uncovered, "new 59") and not taken(uncovered, "new 0")


def test_who_signs_is_kept_longer_than_who_does_not() -> None:
    uncovered = Uncovered(most_entries=100, shed_to=50)
    uncovered.add("signer", (MODEL, 0), np.arange(20, dtype=np.uint16))
    for number in range(500):
        uncovered.add(f"new {number}", (MODEL, 0), array(0, 1))
        taken(uncovered, "signer", 1, 10**6)
        assert uncovered.entries <= 100
    assert taken(uncovered, "signer") == {(MODEL, 0): [1] * 20}


def test_many_pairs_of_few_cells_are_summed_up_before_anybody_is_forgotten() -> None:
    uncovered = Uncovered(most_entries=100, shed_to=50)
    uncovered.add("ann", (MODEL, 0), array(*[0] * 60))
    uncovered.add("bob", (MODEL, 0), array(*[1] * 60))
    assert uncovered.entries == 2
    assert taken(uncovered, "ann") == {(MODEL, 0): [60]} and taken(uncovered, "bob") == {(MODEL, 0): [0, 60]}


def test_who_is_forgotten_leaves_nothing() -> None:
    uncovered = Uncovered()
    uncovered.add("ann", (MODEL, 0), array(1))
    uncovered.forget("ann")
    uncovered.forget("ann")
    assert uncovered.entries == 0 and taken(uncovered, "ann") == {}


def test_layers_without_end_are_not_numbered() -> None:
    """A process that takes up one model after the other for years counts no demand for the last."""
    uncovered = Uncovered()
    uncovered._numbers = {(MODEL, layer): np.uint32(0) for layer in range(MAX_KEYS)}
    uncovered.add("ann", (bytes(32), 0), array(1))
    assert uncovered.entries == 0
