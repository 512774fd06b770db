"""The routing table: who holds what, from what peers say, and what is known of those who left."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from node.model.slice_file import chunk_run
from routing.dispatch.errors import NoHolder
from routing.dispatch.plan import HOME, LayerHolders, assign
from routing.latency import Cost
from routing.table import CallShape, HolderTable
from routing.wire.holdings import Holdings, Slice

MODEL = "ab" * 32
OTHER = "cd" * 32

PLAIN = {(0, 0): CallShape(8, 8), (1, 0): CallShape(8, 8)}
GROVE = {(0, 0): CallShape(8, 8), (0, 1): CallShape(4, 8)}

Experts = list[tuple[int, int, list[tuple[int, int]]]]


def told(experts: Experts, model_id: str = MODEL) -> Holdings:
    held = [Slice(kind="experts", model_id=model_id, architecture="test", experts=experts)]
    return Holdings([1], "", held, ["f32"], ["rows"], 16)


def held_by(holders: LayerHolders) -> dict[str, list[int]]:
    return {
        each.peer_id: [expert for expert in range(each.held.bit_length()) if each.held >> expert & 1]
        for each in holders.holders
    }


@pytest.fixture
def table() -> HolderTable:
    return HolderTable(MODEL, PLAIN)


def test_an_empty_table_lacks_everything(table: HolderTable) -> None:
    assert held_by(table.holders(0, 0)) == {}
    assert table.missing() == {0: list(range(8)), 1: list(range(8))}


def test_peers_and_home(table: HolderTable) -> None:
    table.connected("b", told([(0, 1, [(4, 7)])]))
    table.connected("a", told([(0, 0, [(0, 1), (3, 3)])]))
    assert held_by(table.holders(0, 0)) == {"a": [0, 1, 3], "b": [4, 5, 6, 7]}
    assert held_by(table.holders(1, 0)) == {"b": [4, 5, 6, 7]}
    assert table.missing() == {0: [2], 1: [0, 1, 2, 3]}
    table.set_home({(0, 0): [2], (1, 0): [0, 1, 2, 3]})
    assert table.missing() == {}
    assert next(iter(held_by(table.holders(0, 0)))) == HOME  # home is asked first
    table.set_home({(0, 0): [], (1, 0): range(8)})
    assert table.missing() == {0: [2]}


def test_what_is_not_this_models_is_passed_over(table: HolderTable) -> None:
    table.connected("a", told([(0, 1, [(0, 7)])], model_id=OTHER))
    layers = Slice(kind="layers", model_id=MODEL, architecture="test", layers=[(0, 1)])
    table.connected("b", Holdings([1], "", [layers], [], [], 1))
    table.connected("c", told([(5, 9, [(0, 7)])]))
    assert table.missing() == {0: list(range(8)), 1: list(range(8))}


def test_numbers_beyond_the_model_are_cut(table: HolderTable) -> None:
    table.connected("a", told([(0, 65535, [(6, 65535)])]))
    table.connected("b", told([(0, 0, [(8, 9), (100, 65535)])]))
    assert held_by(table.holders(0, 0)) == {"a": [6, 7]}


def test_two_slices_of_a_peer_are_one_holder(table: HolderTable) -> None:
    first, second = told([(0, 0, [(0, 2)])]).slices[0], told([(0, 0, [(2, 4)])]).slices[0]
    table.connected("a", Holdings([1], "", [first, second], [], [], 1))
    assert held_by(table.holders(0, 0)) == {"a": [0, 1, 2, 3, 4]}


def test_saying_it_again_replaces_what_was_said(table: HolderTable) -> None:
    table.connected("a", told([(0, 1, [(0, 7)])]))
    assert table.missing() == {}
    table.connected("a", told([(0, 1, [(0, 3)])]))
    assert table.missing() == {0: [4, 5, 6, 7], 1: [4, 5, 6, 7]}


def test_who_left_is_named_with_the_reason(table: HolderTable) -> None:
    table.connected("peer-a", told([(0, 1, [(0, 3)])]))
    table.connected("b", told([(0, 1, [(4, 7)])]))
    table.holders(0, 0)
    table.disconnected("peer-a", "no packet for 4 s")
    holders = table.holders(0, 0)
    assert held_by(holders) == {"b": [4, 5, 6, 7]}
    assert holders.formerly == {"peer-a": (0b1111, "no packet for 4 s")}
    assert table.missing() == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    with pytest.raises(NoHolder) as caught:
        assign([2, 3, 5], holders)
    assert caught.value.experts == (2, 3)
    assert "layer 0: no peer holds experts 2-3 any more (peer-a: no packet for 4 s)" in str(caught.value)
    table.connected("peer-a", told([(0, 1, [(0, 3)])]))
    assert table.holders(0, 0).formerly == {} and table.missing() == {}


def test_a_stranger_that_leaves_is_nobody(table: HolderTable) -> None:
    table.disconnected("x", "never here")
    assert table.holders(0, 0).formerly == {}


def test_answers_are_kept_until_something_changes(table: HolderTable) -> None:
    table.connected("a", told([(0, 1, [(0, 7)])]))
    assert table.holders(0, 0) is table.holders(0, 0)
    before = table.holders(0, 0)
    table.disconnected("a", "gone")
    assert table.holders(0, 0) is not before


class Interrupted(HolderTable):
    """Something happens on the event loop while the decoding thread collects."""

    def _collect(self, key: tuple[int, int]) -> LayerHolders:
        found = super()._collect(key)
        if "b" not in self._peers:
            self.connected("b", told([(0, 1, [(4, 7)])]))
        return found


def test_a_change_during_a_look_is_not_lost() -> None:
    table = Interrupted(MODEL, PLAIN)
    table.connected("a", told([(0, 1, [(0, 3)])]))
    assert held_by(table.holders(0, 0)) == {"a": [0, 1, 2, 3]}  # begun before
    assert held_by(table.holders(0, 0)) == {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}


# --- chunk experts ---


@pytest.mark.parametrize(
    ("cells", "chunks"),
    [
        ((0, 7), (0, 3)),
        ((0, 0), (0, 0)),
        ((1, 1), (0, 0)),
        ((1, 2), (0, 1)),
        ((3, 6), (1, 3)),
        ((7, 7), (3, 3)),
    ],
)
def test_runs_of_chunk_experts(cells: tuple[int, int], chunks: tuple[int, int]) -> None:
    assert CallShape(4, 8).run(*cells) == chunks
    assert CallShape(8, 8).run(*cells) == cells


def test_every_cell_comes_with_its_chunk() -> None:
    # ids of chunk experts are ids // 2 (grovemoe): whoever holds a cell must hold what goes with it.
    shape = CallShape(4, 8)
    for first in range(8):
        for last in range(first, 8):
            begin, end = shape.run(first, last)
            assert {cell // 2 for cell in range(first, last + 1)} == set(range(begin, end + 1))


@pytest.mark.parametrize(("chunks", "cells"), [(4, 8), (3, 8), (5, 12), (1, 8), (7, 8)])
def test_runs_are_those_of_slice_files(chunks: int, cells: int) -> None:
    # What a peer serves of its slice and what others take it to hold must be one.
    for first in range(cells):
        for last in range(first, cells):
            begin, end = CallShape(chunks, cells).run(first, last)
            assert range(begin, end + 1) == chunk_run(range(first, last + 1), cells, chunks)


def test_holders_of_chunk_experts() -> None:
    table = HolderTable(MODEL, GROVE)
    table.connected("a", told([(0, 0, [(0, 2)])]))
    table.connected("b", told([(0, 0, [(3, 65535)])]))
    assert held_by(table.holders(0, 1)) == {"a": [0, 1], "b": [1, 2, 3]}
    assert table.missing() == {}
    table.disconnected("b", "gone")
    assert table.missing() == {0: [3, 4, 5, 6, 7]}
    assert table.holders(0, 1).formerly == {"b": (0b1110, "gone")}


def test_the_doubted_come_after_all_others(table: HolderTable) -> None:
    table.connected("a", told([(0, 1, [(0, 7)])]))
    table.connected("b", told([(0, 1, [(0, 3)])]))
    table.weigh({}, ["a"])
    holders = table.holders(0, 0)
    assert held_by(holders) == {"b": [0, 1, 2, 3]}
    assert [each.peer_id for each in holders.reserve] == ["a"]
    assert table.missing() == {}
    assert dict(assign([1, 6], holders)) == {"b": [1], "a": [6]}
    assert dict(assign([1], holders.without("b", 0b1111, "late"))) == {"a": [1]}
    with pytest.raises(NoHolder, match="late"):
        assign([1], holders.without("b", 0b1111, "late").without("a", 0xFF, "gone"))
    table.weigh({}, ["a"])
    assert table.holders(0, 0) is holders
    table.weigh({}, [])
    assert held_by(table.holders(0, 0)) == {"a": list(range(8)), "b": [0, 1, 2, 3]}
    assert table.holders(0, 0).reserve == ()


def priced(**seconds: float) -> dict[str, Cost]:
    return {peer: Cost(each, 0.0) for peer, each in seconds.items()}


def test_the_cheapest_come_first_after_home(table: HolderTable) -> None:
    for peer in "abc":
        table.connected(peer, told([(0, 1, [(0, 7)])]))
    table.set_home({(0, 0): [7]})
    table.weigh(priced(a=0.3, b=0.1, c=0.2), [])
    assert list(held_by(table.holders(0, 0))) == [HOME, "b", "c", "a"]
    assert dict(assign([1, 7], table.holders(0, 0))) == {HOME: [7], "b": [1]}
    table.connected("aa", told([(0, 1, [(0, 7)])]))  # not measured yet: no better than who is
    assert list(held_by(table.holders(0, 0))) == [HOME, "b", "c", "a", "aa"]


def test_what_peers_compute_comes_in_with_their_cost(table: HolderTable) -> None:
    for peer in "ab":
        table.connected(peer, told([(0, 1, [(0, 7)])]))
    table.weigh({"a": Cost(0.010, 0.002), "b": Cost(0.011, 0.0001)}, [])
    assert [(each.peer_id, each.cost, each.per_pair) for each in table.holders(0, 0).holders] == [
        ("b", 0.011, 0.0001),
        ("a", 0.010, 0.002),
    ]


def test_what_was_guessed_makes_room_for_what_was_measured_be_it_ever_so_near(table: HolderTable) -> None:
    for peer in "ab":
        table.connected(peer, told([(0, 1, [(0, 7)])]))
    table.weigh({"a": Cost(0.107, 0.0), "b": Cost(0.110, 0.0, guessed=True)}, [])
    assert list(held_by(table.holders(0, 0))) == ["a", "b"]
    table.weigh({"a": Cost(0.107, 0.0), "b": Cost(0.101, 0.0)}, [])
    assert list(held_by(table.holders(0, 0))) == ["b", "a"]


def test_replicas_do_not_take_turns_at_small_changes(table: HolderTable) -> None:
    rng = np.random.default_rng(1)
    for peer in "ab":
        table.connected(peer, told([(0, 1, [(0, 7)])]))
    table.weigh(priced(a=0.050, b=0.051), [])
    before = table.holders(0, 0)
    for _ in range(200):
        noise = rng.uniform(-0.0049, 0.0049, 2)
        table.weigh(priced(a=0.050 + noise[0], b=0.051 + noise[1]), [])
    assert table.holders(0, 0) is before
    table.weigh(priced(a=0.056, b=0.051), [])
    assert next(iter(held_by(table.holders(0, 0)))) == "b"
    table.weigh(priced(a=0.0508, b=0.051), [])  # back, but not by so much that it pays
    assert next(iter(held_by(table.holders(0, 0)))) == "b"


def test_peers_are_those_that_can_be_asked() -> None:
    table = HolderTable(MODEL, PLAIN, unusable=lambda holdings: holdings.name)
    table.connected("a", told([(0, 1, [(0, 7)])]))
    table.connected("b", told([(0, 1, [(0, 7)])]))
    table.connected("c", msgspec.structs.replace(told([]), name="too old"))
    table.disconnected("b", "gone")
    assert table.peers() == ["a"]


def test_peers_that_cannot_be_asked_hold_nothing() -> None:
    table = HolderTable(MODEL, PLAIN, unusable=lambda holdings: "too old" if holdings.name == "old" else "")
    table.connected("a", msgspec.structs.replace(told([(0, 1, [(0, 7)])]), name="old"))
    assert table.missing() == {0: list(range(8)), 1: list(range(8))}
    assert table.strangers() == {"a": ["too old"]}
    assert table.holders(0, 0).formerly == {"a": (0xFF, "too old")}


def test_the_barred_are_asked_for_nothing_until_they_are_not(table: HolderTable) -> None:
    """Not even for what nobody else holds, doubted or not, and however often they connect anew."""
    table.connected("liar", told([(0, 1, [(0, 7)])]))
    table.connected("honest", told([(0, 1, [(0, 3)])]))
    table.bar({"liar": "gave false answers"})
    table.weigh({}, ["liar"])
    for layer in (0, 1):
        holders = table.holders(layer, 0)
        assert held_by(holders) == {"honest": [0, 1, 2, 3]} and not holders.reserve
    assert table.missing() == {0: [4, 5, 6, 7], 1: [4, 5, 6, 7]}
    assert table.peers() == ["honest"] and table.strangers() == {"liar": ["gave false answers"]}
    with pytest.raises(NoHolder, match=r"experts 4-5 is not asked \(liar: gave false answers\)"):
        assign([4, 5], table.holders(0, 0))
    table.connected("liar", told([(0, 1, [(0, 7)])]))
    assert table.missing()
    table.bar({})
    assert table.missing() == {} and set(table.peers()) == {"liar", "honest"}


def test_what_a_peer_computes_with(table: HolderTable) -> None:
    table.connected("a", msgspec.structs.replace(told([(0, 1, [(0, 7)])]), build="3bc8b73bab461ae1"))
    table.connected("b", told([(0, 1, [(0, 7)])]))
    assert [table.build_of(peer) for peer in ("a", "b", "nobody")] == ["3bc8b73bab461ae1", "", ""]
