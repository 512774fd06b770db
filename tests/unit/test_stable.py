"""combine = stable: groups of pairs, whole runs in plans and tables, the order of additions, what travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from node.cli.arguments import COMBINES
from node.config import shape
from node.decode.not_covered import Asked, describe
from node.model.digests import RUNS, run_length
from routing.dispatch.asking import make_request
from routing.dispatch.call import MoeCall, WireSettings, combine_for
from routing.dispatch.combine import Part, add_runs, combine_rows, combine_stable, sum_runs
from routing.dispatch.errors import NoHolder
from routing.dispatch.plan import HOME, Holder, LayerHolders, assign, plan
from routing.errors import LocalError
from routing.table import CallShape, HolderTable
from routing.wire.codecs import Codec
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    check_answer,
    decode_message,
    encode_message,
    max_reply_bytes,
    message_nbytes,
)
from routing.wire.runs import MAX_RUN_LENGTH, run_groups
from tests.star_servers import THIRDS, Server, by_runs, direct, dispatch, make_call
from tests.unit.test_messages import changed, example_request
from tests.unit.test_table import MODEL, told

U16 = np.uint16

# ---- groups -------------------------------------------------------------------------------------


def test_groups_by_hand() -> None:
    groups = run_groups(np.array([3, 1, 4], U16), np.array([5, 0, 4, 7, 3, 2, 9, 3], U16), 4)
    assert groups.order.tolist() == [1, 0, 2, 3, 4, 5, 7, 6]
    assert groups.sizes.tolist() == [1, 2, 1, 3, 1] and groups.sizes.dtype == U16
    assert groups.rows.tolist() == [0, 0, 1, 2, 2]
    assert groups.runs.tolist() == [0, 1, 1, 0, 2]


def test_groups_at_the_bounds() -> None:
    counts, experts = np.array([1, 2], U16), np.array([65535, 65535, 0], U16)
    assert run_groups(counts, experts, 1).runs.tolist() == [65535, 0, 65535]
    assert run_groups(counts, experts, MAX_RUN_LENGTH).runs.tolist() == [1, 0, 1]


@pytest.mark.parametrize("length", [-1, 0, MAX_RUN_LENGTH + 1])
def test_runs_have_a_length(length: int) -> None:
    with pytest.raises(LocalError, match="out of range"):
        run_groups(np.array([1], U16), np.array([3], U16), length)


@pytest.mark.parametrize("counts", [[], [1], [2, 2]])
def test_counts_that_do_not_fit(counts: list[int]) -> None:
    with pytest.raises(LocalError, match="do not fit"):
        run_groups(np.array(counts, U16), np.array([1, 2, 3], U16), 2)
    with pytest.raises(LocalError, match="do not fit"):
        sum_runs(np.zeros((3, 2), np.float32), np.array(counts, U16), np.array([1, 2, 3], U16), 2)


@pytest.mark.parametrize(
    ("n_experts", "n_cells", "length"),
    [
        (1, 1, 1),
        (8, 8, 1),
        (9, 9, 2),
        (12, 12, 2),
        (128, 128, 16),
        (512, 512, 64),
        (64, 128, 8),
        (4, 8, 1),
        (5, 12, 1),
    ],
)
def test_the_rule_of_manifests(n_experts: int, n_cells: int, length: int) -> None:
    assert run_length(n_experts, n_cells) == length
    assert -(-n_cells // run_length(n_cells, n_cells)) <= RUNS


def test_whole_runs_of_cells_come_with_whole_runs_of_chunk_experts() -> None:
    # Else experts placed by whole runs would leave a run of chunk experts with nobody.
    for n_cells in range(1, 70):
        for n_chunks in range(1, n_cells + 1):
            cells, chunks = run_length(n_cells, n_cells), run_length(n_chunks, n_cells)
            shape = CallShape(n_chunks, n_cells)
            held = [
                set(range(first, last + 1))
                for start in range(0, n_cells, cells)
                for first, last in [shape.run(start, min(start + cells, n_cells) - 1)]
            ]
            for start in range(0, n_chunks, chunks):
                run = set(range(start, min(start + chunks, n_chunks)))
                assert any(run <= each for each in held), (n_cells, n_chunks)


# ---- the order of additions ---------------------------------------------------------------------


def parts_of(call: MoeCall, held: dict[str, range], rows: np.ndarray[Any, Any]) -> list[Part]:
    holders = LayerHolders(0, tuple(Holder.of(peer, experts) for peer, experts in held.items()))
    return [
        Part(each, sum_runs(rows[each.pairs], each.counts, each.experts, call.run_length))
        for each in plan(call.ids, holders)
    ]


def test_runs_are_added_in_ascending_order_whoever_they_are_from() -> None:
    ids = np.array([[6, 1, 4, 0]], np.int32)
    rows = np.array([[1.0], [1e8], [3.0], [-1e8]], np.float32)
    run_0, run_2, run_3 = np.float32(1e8) + np.float32(-1e8), np.float32(3), np.float32(1)
    right = (run_0 + run_2) + run_3
    assert right != (rows[0] + rows[1] + rows[2] + rows[3])[0]  # in slot order
    assert add_runs(rows, ids, 2).tolist() == [[right]]
    call = replace(make_call(1, 4), ids=ids, run_length=2)
    for held in ({"a": range(8)}, {"b": range(4), "a": range(4, 8)}, {"a": range(6), HOME: range(6, 8)}):
        parts = parts_of(call, held, rows)
        for order in (parts, parts[::-1]):
            late = [replace(part, wave=number) for number, part in enumerate(order)]
            assert combine_stable(late, 1, 4, 1, 2).tolist() == [[right]]


def test_negative_zero_survives() -> None:
    zeros = np.full((4, 3), -0.0, np.float32)
    ids = np.array([[0, 5, 1, 7]], np.int32)
    assert np.signbit(add_runs(zeros, ids, 2)).all()
    parts = parts_of(
        replace(make_call(1, 4), ids=ids, run_length=2), {"a": range(4), "b": range(4, 8)}, zeros
    )
    assert np.signbit(combine_stable(parts, 1, 4, 3, 2)).all()


def test_overflow_warns_nobody() -> None:
    huge = np.full((4, 1), 3e38, np.float32)
    assert np.isinf(add_runs(huge, np.array([[0, 1, 2, 3]], np.int32), 2)).all()


def test_parts_that_do_not_fit_are_refused() -> None:
    call = make_call(3, 4, run_length=4)
    rows = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    parts = parts_of(call, {"a": range(8), "b": range(8, 16)}, rows)
    combine_stable(parts, 3, 4, 5, 4)
    with pytest.raises(LocalError, match="missing or were answered twice"):
        combine_stable(parts[:1], 3, 4, 5, 4)
    with pytest.raises(LocalError, match="missing or were answered twice"):
        combine_stable([*parts, parts[0]], 3, 4, 5, 4)
    with pytest.raises(LocalError, match="do not fit"):
        combine_stable(parts, 3, 4, 6, 4)
    with pytest.raises(LocalError, match="do not fit"):
        combine_stable([replace(parts[0], y=parts[0].y[1:]), parts[1]], 3, 4, 5, 4)
    with pytest.raises(LocalError, match="2 experts do not fit 3 pairs"):
        sum_runs(rows[:3], np.array([2], U16), np.array([1, 2], U16), 2)
    torn = parts_of(
        replace(call, ids=np.array([[0, 2, 9, 8]] * 3, np.int32)), {"a": range(2), "b": range(2, 16)}, rows
    )
    with pytest.raises(LocalError, match="run of 4 experts were computed by two"):
        combine_stable(torn, 3, 4, 5, 4)


# ---- whole runs ---------------------------------------------------------------------------------


def holders(*held: tuple[str, list[int] | range], run: int = 4, n_experts: int = 14) -> LayerHolders:
    found = LayerHolders(5, tuple(Holder.of(peer, experts) for peer, experts in held))
    return found.by_runs(run, n_experts)


def numbers(held: int) -> list[int]:
    return [expert for expert in range(held.bit_length()) if held >> expert & 1]


def test_only_whole_runs_count_and_the_last_may_be_shorter() -> None:
    found = holders(("a", range(7)), ("b", range(5, 14)), ("c", [0, 1, 2, 12]), ("d", [12, 13]))
    assert {each.peer_id: numbers(each.held) for each in found.holders} == {
        "a": [0, 1, 2, 3],
        "b": [8, 9, 10, 11, 12, 13],
        "d": [12, 13],
    }
    reserve = (
        LayerHolders(5, (), reserve=(Holder.of("a", range(7)), Holder.of("b", [2]))).by_runs(4, 14).reserve
    )
    assert [numbers(each.held) for each in reserve] == [[0, 1, 2, 3]]
    assert numbers(holders((HOME, range(3)), run=1).holders[0].held) == [0, 1, 2]


def test_who_lacks_one_expert_is_not_asked_for_its_run() -> None:
    found = holders(("a", range(8)), ("b", range(14)))
    assert dict(assign([1, 6], found.without("a", 1 << 6, "not held"))) == {"b": [1, 6]}
    less = found.without("b", 1 << 2, "not held").without("a", 1 << 5, "not held")
    assert dict(assign([1, 6], less)) == {"a": [1], "b": [6]}
    assert less.only(lambda peer: True).run_length == less.demoted({"a"}).run_length == 4


def test_what_stable_needs_is_named() -> None:
    found = holders(("a", range(7)), ("b", range(5, 14)))
    with pytest.raises(NoHolder) as caught:
        assign([1, 5, 9], found)
    assert str(caught.value) == (
        "layer 5: no peer holds expert 5 in whole runs of 4 (combine = stable): "
        "start a server for them or add its peer"
    )
    assert caught.value.run_length == 4
    with pytest.raises(
        NoHolder, match=r"expert 1 in whole runs of 4 \(combine = stable\) any more \(a: left\)"
    ):
        assign([1], found.without("a", 1, "left"))


STABLE = {(0, 0): CallShape(8, 8, 4), (1, 0): CallShape(8, 8, 4), (1, 1): CallShape(4, 8, 2)}


def test_the_table_counts_whole_runs() -> None:
    table = HolderTable(MODEL, STABLE)
    table.connected("a", told([(0, 1, [(0, 5)])]))
    table.connected("b", told([(1, 1, [(2, 7)])]))
    assert {each.peer_id: numbers(each.held) for each in table.holders(1, 0).holders} == {
        "a": [0, 1, 2, 3],
        "b": [4, 5, 6, 7],
    }
    assert {each.peer_id: numbers(each.held) for each in table.holders(1, 1).holders} == {
        "a": [0, 1],
        "b": [2, 3],
    }
    assert table.holders(1, 0).run_length == 4 and table.holders(1, 1).run_length == 2
    assert table.missing() == {0: [4, 5, 6, 7]}
    assert table.missing(whole_runs=False) == {0: [6, 7]}
    assert table.run_lengths([0]) == [4]
    table.set_home({(0, 0): [6, 7]})  # together they hold all of it, but neither does
    assert table.missing() == {0: [4, 5, 6, 7]} and table.missing(whole_runs=False) == {}
    assert HOME not in [each.peer_id for each in table.holders(0, 0).holders]
    table.set_home({(0, 0): [4, 5, 6, 7]})
    assert table.missing() == {} and table.holders(0, 0).holders[0].peer_id == HOME


def test_runs_held_in_parts_are_told() -> None:
    asked = Asked({}, {}, "ab" * 32, lan=True, configured=True, run_lengths=[2, 16, 2], in_parts=True)
    line = describe({0: [0, 1], 1: [3]}, asked)
    assert line == (
        "no connected peer holds layer 0: experts 0-1; layer 1: expert 3 in whole runs of 2 or 16 "
        "(combine = stable): start them or add their address; some of these runs are there in parts: "
        "serve them whole, or use combine = rows or sum"
    )
    assert "runs" not in describe({0: [0, 1]}, replace(asked, run_lengths=[1], in_parts=False))


# ---- the star -----------------------------------------------------------------------------------

PLACEMENTS: list[dict[str, list[int] | range]] = [
    {"a": range(16)},
    {"b": range(8), "a": range(8, 16)},
    {"a": [0, 1, 2, 3, 8, 9, 10, 11], "b": [4, 5, 6, 7, 12, 13, 14, 15]},
    {"a": range(4), "c": range(4, 12), "b": range(12, 16)},
    {"d": range(4), "c": range(4, 8), "b": range(8, 12), "a": range(12, 16)},
    {"a": range(16), "b": range(16), "c": range(4, 8)},
]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bytes_are_the_same_over_any_peers(codec: Codec) -> None:
    call = make_call(9, 6, run_length=4)
    settings = WireSettings(codec, codec, Combine.STABLE)
    found = {
        dispatch(call, [Server(name) for name in "abcd"], held, settings)[0].tobytes() for held in PLACEMENTS
    }
    assert len(found) == 1
    summed = replace(settings, combine=Combine.SUM)
    others = {
        dispatch(call, [Server(name) for name in "abcd"], held, summed)[0].tobytes() for held in PLACEMENTS
    }
    assert len(others) > 1  # so this call can tell


@pytest.mark.parametrize("at_home", [range(4), range(4, 12), range(16)])
def test_with_f32_the_bytes_are_the_same_with_some_of_it_at_home(at_home: range) -> None:
    call = make_call(9, 6, run_length=4)
    held = {HOME: at_home, "a": range(8), "b": range(8, 16)}
    result, stats = dispatch(call, [Server("a"), Server("b")], held, WireSettings(combine=Combine.STABLE))
    assert result.tobytes() == by_runs(call).tobytes() != direct(call).tobytes()
    assert stats.home_pairs > 0
    assert np.allclose(result, direct(call), rtol=1e-5, atol=1e-5)


def test_runs_that_might_be_split_are_ours_to_blame() -> None:
    call = make_call(run_length=0)
    with pytest.raises(LocalError, match="layer 11: runs of 0 experts"):
        dispatch(call, [Server("a")], {"a": range(16)}, WireSettings(combine=Combine.STABLE))
    rows, _ = dispatch(call, [Server("a"), Server("b"), Server("c")], THIRDS)  # rows need no runs
    assert rows.tobytes() == direct(call).tobytes()


def test_config_and_command_know_the_same_modes() -> None:
    assert get_args(shape.Combine) == COMBINES == tuple(combine.name.lower() for combine in Combine)


def test_one_row_a_pair_is_asked_for_as_rows() -> None:
    for combine in Combine:
        assert combine_for(combine, row_per_pair=True) is Combine.ROWS
        assert combine_for(combine, row_per_pair=False) is combine


# ---- the wire -----------------------------------------------------------------------------------


def stable_request(**fields: Any) -> ExpertsRequest:
    return replace(
        example_request(),
        counts=np.array([3, 1], U16),
        experts=np.array([9, 0, 8, 9], U16),
        weights=np.array([1, 0.5, 0.25, 2], np.float32),
        combine=Combine.STABLE,
        run_length=4,
        **fields,
    )


def test_what_travels() -> None:
    request = stable_request()
    message = encode_message(request)
    assert message[50] == 3 and message[60:64] == b"\x04\0\0\0" and message_nbytes(request) == len(message)
    back = decode_message(message)
    assert isinstance(back, ExpertsRequest)
    assert (back.combine, back.run_length, back.vectors, request.vectors) == (Combine.STABLE, 4, 3, 3)
    y = np.ones((3, 4), np.float32)
    answer = ExpertsAnswer(7, 3, 0, y, Codec.F16, Combine.STABLE)
    check_answer(request, answer)
    for rows in (1, 2, 4):
        with pytest.raises(ProtocolError, match="shape"):
            check_answer(request, replace(answer, y=np.ones((rows, 4), np.float32)))
    with pytest.raises(ProtocolError, match="combined as sum, not stable"):
        check_answer(request, replace(answer, combine=Combine.SUM))
    wide = stable_request(n_out=4096)
    assert max_reply_bytes(wide) == message_nbytes(replace(answer, y=np.ones((3, 4096), np.float32)))


@pytest.mark.parametrize("length", [0, MAX_RUN_LENGTH + 1, 1 << 31, (1 << 32) - 1])
def test_a_strangers_run_length_is_checked(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"runs of {length} experts with combine stable"):
        decode_message(changed(encode_message(stable_request()), 60, length, "I"))


@pytest.mark.parametrize("combine", [Combine.ROWS, Combine.SUM])
def test_only_stable_has_runs(combine: Combine) -> None:
    with pytest.raises(ProtocolError, match=f"runs of 4 experts with combine {combine.name.lower()}"):
        decode_message(changed(encode_message(stable_request()), 50, combine))
    with pytest.raises(LocalError, match="runs of 4"):
        encode_message(replace(stable_request(), combine=combine))
    with pytest.raises(LocalError, match="runs of 0"):
        encode_message(replace(stable_request(), run_length=0))


def test_as_many_vectors_as_pairs_may_come_back() -> None:
    answer = ExpertsAnswer(7, 3, 0, np.ones((20_000, 1), np.float32), Codec.F32, Combine.STABLE)
    assert decode_message(encode_message(answer)) is not None
    with pytest.raises(ProtocolError, match="20000 rows, more than the 16384"):
        decode_message(encode_message(replace(answer, combine=Combine.SUM)))


def test_requests_name_the_runs_only_where_they_count() -> None:
    call = make_call(run_length=4)
    (part,) = plan(call.ids, LayerHolders(0, (Holder.of("a", range(16)),)))
    for combine in Combine:
        request = make_request(call, part, WireSettings(combine=combine), 1)
        assert request.run_length == (4 if combine is Combine.STABLE else 0)


def test_rows_and_stable_differ_only_in_the_last_bits() -> None:
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permutation(32)[:8] for _ in range(20)]).astype(np.int32)
    (part,) = plan(ids, LayerHolders(0, (Holder.of("a", range(32)),)))
    rows = rng.standard_normal((160, 64)).astype(np.float32)
    as_rows = combine_rows([Part(part, rows)], 20, 8, 64)
    stable = add_runs(rows, ids, 4)
    assert as_rows.tobytes() != stable.tobytes()
    assert np.abs(as_rows - stable).max() < 1e-5


def test_a_call_that_is_spread_over_replicas_is_spread_by_runs() -> None:
    slow = [replace(Holder.of(peer, range(16)), cost=0.01, per_pair=0.05) for peer in "abcd"]
    needed = [0, 1, 2, 3, 5, 6, 8, 12, 13]
    pairs = dict.fromkeys(needed, 1)
    alone = LayerHolders(0, tuple(slow))
    assert len(assign(needed, alone, pairs)) == 4 and len(assign(needed[:4], alone, pairs)) == 4
    spread = assign(needed, alone.by_runs(4, 16), pairs)
    assert sorted(experts for _, experts in spread) == [[0, 1, 2, 3], [5, 6], [8], [12, 13]]
    assert len(assign(needed[:4], alone.by_runs(4, 16), pairs)) == 1
