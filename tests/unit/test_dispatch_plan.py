"""Plans: every pair once, whole experts, home first, few servers, one clear error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from routing.dispatch.errors import FALSE_WORDS, ExpertsUnavailable, NoHolder, name_experts
from routing.dispatch.plan import HOME, Holder, LayerHolders, ServerCall, assign, plan
from routing.errors import LocalError, PeerError


def layer(*holders: tuple[str, range | list[int]]) -> LayerHolders:
    return LayerHolders(5, tuple(Holder.of(peer_id, experts) for peer_id, experts in holders))


def router(n_tokens: int, n_used: int, n_experts: int, seed: int = 0) -> npt.NDArray[np.int32]:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(n_experts)[:n_used] for _ in range(n_tokens)]).astype(np.int32)


def check_cover(ids: npt.NDArray[np.int32], calls: list[ServerCall]) -> None:
    """Each pair exactly once, each expert at one server, rows and counts as the pairs say."""
    n_used = ids.shape[1]
    assert sorted(np.concatenate([call.pairs for call in calls])) == list(range(ids.size))
    owners: dict[int, str] = {}
    for call in calls:
        assert (np.diff(call.pairs) > 0).all()
        assert call.experts.tolist() == ids.reshape(-1)[call.pairs].tolist()
        for expert in call.experts.tolist():
            assert owners.setdefault(expert, call.peer_id) == call.peer_id
        tokens = call.pairs // n_used
        assert call.rows.tolist() == sorted(set(tokens.tolist()))
        assert call.counts.tolist() == [int((tokens == row).sum()) for row in call.rows]
        assert call.counts.dtype == call.experts.dtype == np.uint16


def test_one_token_over_two_servers_in_detail() -> None:
    ids = np.array([[7, 0, 4, 1]], np.int32)
    first, second = plan(ids, layer(("low", range(4)), ("high", range(4, 8))))
    assert (first.peer_id, second.peer_id) == ("low", "high")
    assert (first.experts.tolist(), first.pairs.tolist()) == ([0, 1], [1, 3])
    assert (second.experts.tolist(), second.pairs.tolist()) == ([7, 4], [0, 2])
    assert first.rows.tolist() == second.rows.tolist() == [0]
    assert first.counts.tolist() == second.counts.tolist() == [2]


@pytest.mark.parametrize("n_servers", [1, 2, 3, 8])
@pytest.mark.parametrize("n_tokens", [1, 5, 64])
def test_every_pair_is_planned_once_and_experts_stay_whole(n_servers: int, n_tokens: int) -> None:
    ids = router(n_tokens, 8, 32)
    bounds = np.linspace(0, 32, n_servers + 1).astype(int)
    holders = layer(*((f"p{n}", range(bounds[n], bounds[n + 1])) for n in range(n_servers)))
    calls = plan(ids, holders)
    check_cover(ids, calls)
    assert len(calls) <= n_servers


def test_only_the_rows_a_server_needs_are_sent() -> None:
    ids = np.array([[0, 1], [2, 3], [0, 3]], np.int32)
    low, high = plan(ids, layer(("low", [0, 1]), ("high", [2, 3])))
    assert (low.rows.tolist(), low.counts.tolist()) == ([0, 2], [2, 1])
    assert (high.rows.tolist(), high.counts.tolist()) == ([1, 2], [2, 1])


def test_home_computes_what_it_holds_even_where_one_peer_has_all() -> None:
    calls = plan(router(4, 8, 16), layer(("whole", range(16)), (HOME, range(4))))
    assert [call.peer_id for call in calls] == [HOME, "whole"]
    assert set(calls[0].experts.tolist()) == {0, 1, 2, 3}


def test_everything_at_home_is_one_call() -> None:
    ids = router(3, 4, 8)
    (call,) = plan(ids, layer((HOME, range(8)), ("p", range(8))))
    assert call.peer_id == HOME
    check_cover(ids, [call])


def test_few_servers_and_the_whole_layer_first() -> None:
    ids = np.array([[0, 4]], np.int32)
    halves = [("a", range(4)), ("b", range(4, 8))]
    assert [call.peer_id for call in plan(ids, layer(*halves, ("whole", range(8))))] == ["whole"]
    just_enough = ("c", [0, 4])
    assert [call.peer_id for call in plan(ids, layer(just_enough, ("whole", range(8))))] == ["whole"]


def test_among_equals_the_one_named_first() -> None:
    ids = np.array([[1, 2]], np.int32)
    for names in (["x", "y"], ["y", "x"]):
        (call,) = plan(ids, layer(*((name, range(4)) for name in names)))
        assert call.peer_id == names[0]


def test_the_same_question_has_the_same_answer() -> None:
    ids = router(16, 8, 64)
    holders = layer(*((f"p{n}", range(n * 5, n * 5 + 20)) for n in range(10)))
    once, again = plan(ids, holders), plan(ids.copy(), holders)
    assert [call.peer_id for call in once] == [call.peer_id for call in again]
    for one, other in zip(once, again, strict=True):
        assert one.pairs.tolist() == other.pairs.tolist()


def test_a_token_may_name_an_expert_twice() -> None:
    ids = np.array([[3, 3, 1], [1, 3, 1]], np.int32)
    calls = plan(ids, layer(("a", [3]), ("b", [1])))
    check_cover(ids, calls)
    assert {call.peer_id: call.counts.tolist() for call in calls} == {"a": [2, 1], "b": [1, 2]}


def test_a_row_per_pair_is_its_own_row() -> None:
    ids = np.array([[0, 1], [1, 0]], np.int32)
    one, other = plan(ids, layer(("a", [0]), ("b", [1])), row_per_pair=True)
    assert (one.rows.tolist(), other.rows.tolist()) == ([0, 3], [1, 2])
    assert one.counts.tolist() == other.counts.tolist() == [1, 1]


def test_some_pairs_can_be_planned_again_elsewhere() -> None:
    ids = np.array([[0, 1, 2], [2, 0, 3]], np.int32)
    holders = layer(("a", [0, 2]), ("b", [1, 3]), ("c", [0]), ("d", [2]))
    failed = next(call for call in plan(ids, holders) if call.peer_id == "a")
    left = holders.without("a", 0b101, "gone")
    again = plan(ids, left, pairs=failed.pairs)
    assert {call.peer_id: call.pairs.tolist() for call in again} == {"c": [0, 4], "d": [2, 3]}
    assert [call.rows.tolist() for call in again] == [[0, 1], [0, 1]]


def test_experts_that_nobody_holds_are_named() -> None:
    with pytest.raises(NoHolder) as caught:
        plan(np.array([[0, 2, 3, 9]], np.int32), layer(("a", [0])))
    assert isinstance(caught.value, PeerError) and isinstance(caught.value, ExpertsUnavailable)
    assert (caught.value.layer, caught.value.experts) == (5, (2, 3, 9))
    assert str(caught.value) == (
        "layer 5: no peer holds experts 2-3, 9: start a server for them or add its peer"
    )


def test_the_peer_that_used_to_hold_them_is_named() -> None:
    holders = layer(("a", [0]), ("b", [1]), ("c", [2]))
    holders = holders.without("b", 1 << 1, "connection lost").without("c", 1 << 2, "left")
    with pytest.raises(NoHolder) as caught:
        plan(np.array([[0, 1]], np.int32), holders)
    assert caught.value.peer == "b" and caught.value.reasons == {"b": "connection lost"}
    assert str(caught.value) == (
        "layer 5: no peer holds expert 1 any more (b: connection lost): try again when it is back"
    )


def test_of_who_gave_false_answers_it_is_not_said_that_it_is_gone() -> None:
    holders = layer(("a", [0]), ("b", [1])).without("b", 1 << 1, f"{FALSE_WORDS}: not asked until noon")
    with pytest.raises(NoHolder) as caught:
        plan(np.array([[0, 1]], np.int32), holders)
    assert str(caught.value) == (
        "layer 5: who holds expert 1 is not asked (b: gave false answers: not asked until noon): "
        "start another server for them, or panal market pardon"
    )


def test_without_takes_some_or_all_experts() -> None:
    holders = layer(("a", [0, 1]), ("b", [0]))
    assert holders.without("a", 0b01, "x").holders == (Holder("a", 0b10), Holder("b", 0b01))
    assert holders.without("a", 0b11, "x").holders == (Holder("b", 0b01),)
    assert holders.without("a", 0b01, "x").without("a", 0b10, "y").formerly == {"a": (0b11, "y")}


# --- ranks ---


def test_home_is_first_whatever_it_costs_and_the_doubted_are_last() -> None:
    home = Holder.of(HOME, [0])
    holders = LayerHolders(
        5, (home, Holder("slow", 0b1111, 0.4)), reserve=(Holder("b", 0xFF, 0.01), Holder("c", 0xF0, 0.5))
    )
    assert assign([0, 1], holders) == [(HOME, [0]), ("slow", [1])]
    assert assign([0, 1, 4], holders) == [(HOME, [0]), ("slow", [1]), ("b", [4])]


def test_peers_can_be_left_out_or_put_last() -> None:
    holders = layer(("a", range(4)), ("b", range(4)), ("c", [0]))
    assert assign([0, 1], holders.only(lambda peer: peer != "a")) == [("b", [0, 1])]
    assert assign([0, 1], holders.demoted({"a"})) == [("b", [0, 1])]
    assert assign([0, 1], holders.demoted({"a", "b"})) == [("c", [0]), ("a", [1])]
    with pytest.raises(NoHolder):
        assign([0, 1], holders.only(lambda peer: peer == "c"))


@pytest.mark.parametrize("bad", [-1, 70_000])
@pytest.mark.parametrize("n_tokens", [1, 100])
def test_ids_out_of_range_are_ours_to_blame(bad: int, n_tokens: int) -> None:
    ids = np.zeros((n_tokens, 2), np.int32)
    ids[0, 1] = bad
    with pytest.raises(LocalError, match="layer 5"):
        plan(ids, layer(("a", range(4))))


@pytest.mark.parametrize("shape", [(0, 2), (4,)])
def test_ids_must_be_a_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(LocalError, match="n_tokens, n_used"):
        plan(np.zeros(shape, np.int32), layer(("a", range(4))))


def test_holder_of_runs() -> None:
    assert Holder.of_runs("a", [(0, 2), (5, 5)]) == Holder.of("a", [0, 1, 2, 5])


def test_assign_gives_each_expert_to_one() -> None:
    holders = layer(("a", [0, 1, 2]), ("b", [2, 3]), ("c", [3, 4]))
    assert assign([0, 2, 3, 4], holders) == [("a", [0, 2]), ("c", [3, 4])]


def test_experts_are_named_as_runs() -> None:
    assert name_experts([3]) == "expert 3"
    assert name_experts([0, 1, 2, 7]) == "experts 0-2, 7"
    assert name_experts(list(range(0, 40, 2))) == "experts 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
