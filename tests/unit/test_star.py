"""The star over in-memory expert servers: answers, what travels, and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from routing.dispatch.call import CallStats, MoeCall, WireSettings
from routing.dispatch.errors import ExpertsUnavailable, NoHolder
from routing.dispatch.plan import HOME, Holder, LayerHolders, ServerCall
from routing.dispatch.star import ExpertPeer, Star
from routing.errors import LocalError
from routing.wire.codecs import Codec, Float32Array
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    RefusalCode,
    Refused,
    refusal_to,
)
from tests.star_servers import (
    LAYER,
    N_IN,
    THIRDS,
    Server,
    Trouble,
    direct,
    dispatch,
    gone,
    home,
    make_call,
    nan,
    other_call,
    overloaded,
    promised,
    short,
)

# ---- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [1, 5, 32])
@pytest.mark.parametrize("weighted", [True, False])
def test_three_servers_give_the_bytes_of_one_machine(n_tokens: int, weighted: bool) -> None:
    call = make_call(n_tokens, weighted=weighted)
    result, stats = dispatch(call, [Server("a"), Server("b"), Server("c")], THIRDS)
    assert result.tobytes() == direct(call).tobytes()
    assert stats.trips == 1 and not stats.failures


def test_home_and_peers_together_give_the_bytes_of_one_machine() -> None:
    call = make_call()
    held = {HOME: range(5), "a": range(5, 16)}
    result, stats = dispatch(call, [Server("a")], held)
    assert result.tobytes() == direct(call).tobytes()
    assert stats.home_pairs == int((call.ids < 5).sum())
    assert stats.home_pairs + sum(server.pairs for server in stats.servers) == call.ids.size


def test_all_at_home_is_no_trip() -> None:
    call = make_call()
    result, stats = dispatch(call, [Server("a")], {HOME: range(16), "a": range(16)})
    assert result.tobytes() == direct(call).tobytes()
    assert (stats.trips, stats.bytes_out, stats.bytes_back, stats.slowest) == (0, 0, 0, None)


@pytest.mark.parametrize("combine", list(Combine))
def test_a_row_for_each_pair_is_combined_as_rows_whatever_is_set(combine: Combine) -> None:
    base = make_call(weighted=False)
    x = np.random.default_rng(9).standard_normal((*base.ids.shape, N_IN)).astype(np.float32)
    call = replace(base, x=x)
    servers = [Server("a"), Server("b"), Server("c")]
    result, _ = dispatch(call, servers, THIRDS, WireSettings(combine=combine))
    assert result.tobytes() == direct(call).tobytes()
    assert all(request.combine is Combine.ROWS for server in servers for request in server.asked)


def test_a_token_that_names_an_expert_twice() -> None:
    call = replace(make_call(2, 4), ids=np.array([[3, 3, 7, 3], [7, 7, 7, 7]], np.int32))
    for combine in Combine:
        result, _ = dispatch(call, [Server("a")], {"a": range(16)}, WireSettings(combine=combine))
        assert result.tobytes() == promised(call, combine).tobytes()


@pytest.mark.parametrize("codec", list(Codec))
def test_sum_is_near_and_the_same_every_time(codec: Codec) -> None:
    call = make_call()
    settings = WireSettings(codec, codec, Combine.SUM)
    slow_first = [Server("a", delay=0.3), Server("b", delay=0.2), Server("c", delay=0.1)]
    slow_last = [Server("a", delay=0.1), Server("b", delay=0.2), Server("c", delay=0.3)]
    result, _ = dispatch(call, slow_first, THIRDS, settings)
    again, _ = dispatch(call, slow_last, THIRDS, settings)
    assert result.tobytes() == again.tobytes()
    expected = direct(call)
    cosine = float((result * expected).sum() / np.linalg.norm(result) / np.linalg.norm(expected))
    assert cosine > {Codec.F32: 1 - 1e-6, Codec.F16: 1 - 1e-5, Codec.INT8: 0.999}[codec]


def test_sum_of_one_server_in_f32_is_byte_identical() -> None:
    call = make_call()
    result, _ = dispatch(call, [Server("a")], {"a": range(16)}, WireSettings(combine=Combine.SUM))
    assert result.tobytes() == direct(call).tobytes()


def test_only_needed_rows_travel() -> None:
    call = replace(
        make_call(3, 2), ids=np.array([[0, 1], [2, 4], [0, 3]], np.int32), weights=np.ones((3, 2), np.float32)
    )
    servers = [Server("a"), Server("b"), Server("c")]
    dispatch(call, servers, THIRDS)
    for server, rows in zip(servers, ([0, 2], [0, 1], [1]), strict=True):
        (request,) = server.asked
        assert request.x.tobytes() == call.x[rows].tobytes()


# ---- in flight at once --------------------------------------------------------------------------


def test_all_are_asked_at_once_and_the_slowest_is_known() -> None:
    servers = [Server("a", delay=1.0), Server("b", delay=3.0), Server("c", delay=2.0)]
    started_home: list[float] = []

    async def slow_home(call: MoeCall, part: ServerCall) -> Float32Array:
        started_home.append(trio.current_time())
        await trio.sleep(2.5)
        return await home(call, part)

    peers: dict[str, ExpertPeer] = {server.peer_id: server for server in servers}
    held = {HOME: [0, 1], **THIRDS}
    holders = LayerHolders(LAYER, tuple(Holder.of(peer_id, experts) for peer_id, experts in held.items()))
    call = make_call(8)

    async def run() -> tuple[float, float, CallStats, Float32Array]:
        begin = trio.current_time()
        result, stats = await Star(peers.get, slow_home).dispatch(call, holders, WireSettings())
        return begin, trio.current_time() - begin, stats, result

    begin, took, stats, result = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert took == pytest.approx(3.0)
    assert started_home == [begin]
    assert stats.slowest is not None and stats.slowest.peer_id == "b"
    assert {server.peer_id: server.wait for server in stats.servers} == pytest.approx(
        {"a": 1, "b": 3, "c": 2}
    )
    assert all(server.compute == 0.0015 and server.load == 3 for server in stats.servers)
    assert result.tobytes() == direct(call).tobytes()


@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("codec", list(Codec))
def test_bytes_are_what_the_streams_carried(codec: Codec, combine: Combine) -> None:
    servers = [Server("a"), Server("b"), Server("c")]
    _, stats = dispatch(make_call(), servers, THIRDS, WireSettings(codec, codec, combine))
    assert stats.bytes_out == sum(server.bytes_in for server in servers) > 0
    assert stats.bytes_back == sum(server.bytes_out for server in servers) > 0


def test_calls_in_flight_have_ids_of_their_own() -> None:
    servers = [Server("a"), Server("b"), Server("c")]
    dispatch(make_call(), servers, THIRDS)
    assert len({request.call_id for server in servers for request in server.asked}) == 3


# ---- failures -----------------------------------------------------------------------------------


def holds_nothing(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise Refused(refusal_to(request, RefusalCode.NOT_HELD, missing=()), peer="b")


TROUBLES: list[tuple[Trouble, str]] = [
    (gone, "connection lost"),
    (overloaded, "overloaded: 9 calls wait"),
    (nan, "NaN"),
    (other_call, "call id"),
    (short, "shape"),
    (holds_nothing, "does not hold"),
]


@pytest.mark.parametrize(("trouble", "reason"), TROUBLES)
@pytest.mark.parametrize("combine", list(Combine))
def test_a_failed_servers_experts_move_to_others(combine: Combine, trouble: Trouble, reason: str) -> None:
    call = make_call(9)
    servers = [Server("a"), Server("b", trouble=trouble), Server("c"), Server("d")]
    held = {**THIRDS, "d": [1, 4, 7, 10, 13]}
    result, stats = dispatch(call, servers, held, WireSettings(combine=combine))
    if combine is Combine.SUM:
        assert np.allclose(result, direct(call), rtol=1e-5, atol=1e-5)
    else:
        assert result.tobytes() == promised(call, combine).tobytes()
    assert [failure.peer_id for failure in stats.failures] == ["b"]
    assert reason in stats.failures[0].reason
    assert (stats.trips, stats.waves) == (1, 2)
    assert len(servers[1].asked) == 1


def test_whole_experts_move_and_no_expert_is_split() -> None:
    call = make_call(20)
    servers = [Server("b", trouble=gone), Server("c"), Server("d")]
    held = {"b": range(16), "c": range(10), "d": range(6, 16)}
    result, _ = dispatch(call, servers, held)
    assert result.tobytes() == direct(call).tobytes()
    seen: dict[int, str] = {}
    for server in servers[1:]:
        for request in server.asked:
            for number in set(request.experts.tolist()):
                assert seen.setdefault(number, server.peer_id) == server.peer_id
                assert request.experts.tolist().count(number) == int((call.ids == number).sum())


def test_a_server_without_a_replica_is_waited_for_up_to_the_hard_deadline() -> None:
    call = make_call()
    slow = Server("a", delay=3.9)
    result, stats = dispatch(call, [slow], {"a": range(16)}, WireSettings(timeout=4.0))
    assert result.tobytes() == direct(call).tobytes()
    assert (stats.late, stats.failures, stats.hedges, len(slow.asked)) == (["a"], [], 0, 1)
    assert slow.asked[0].deadline_ms == 4000
    slow.delay = 4.1
    with pytest.raises(ExpertsUnavailable, match=r"a gave no answer in 4 s"):
        dispatch(call, [slow], {"a": range(16)}, WireSettings(timeout=4.0))


def test_several_failures_one_after_another() -> None:
    call = make_call(6)
    servers = [Server(name, trouble=gone) for name in "abcd"] + [Server("e", delay=0.5)]
    held = {server.peer_id: range(16) for server in servers}
    result, stats = dispatch(call, servers, held)
    assert result.tobytes() == direct(call).tobytes()
    assert [failure.peer_id for failure in stats.failures] == ["a", "b", "c", "d"]
    assert (stats.waves, stats.trips) == (5, 1)


def test_a_peer_that_is_not_connected_counts_as_failed() -> None:
    call = make_call()
    held = {"away": range(16), "b": range(16)}
    result, stats = dispatch(call, [Server("b")], held)
    assert result.tobytes() == direct(call).tobytes()
    assert stats.failures[0].reason == "away is not connected"


def not_expert(number: int) -> Trouble:
    def refuse(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        if number in request.experts:
            raise Refused(refusal_to(request, RefusalCode.NOT_HELD, missing=(number,)), peer="a")
        return answer

    return refuse


def test_a_server_that_names_what_it_lacks_is_asked_again_for_the_rest() -> None:
    call = make_call(20)
    servers = [Server("a", trouble=not_expert(3)), Server("b")]
    result, stats = dispatch(call, servers, {"a": range(16), "b": [3]})
    assert result.tobytes() == direct(call).tobytes()
    assert [len(server.asked) for server in servers] == [2, 1]
    assert set(servers[1].asked[0].experts.tolist()) == {3}
    assert stats.bytes_back > 0 and len(stats.failures) == 1


def test_a_server_that_always_lacks_one_more_is_asked_only_twice() -> None:
    def one_more(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        missing = (int(request.experts[0]),)
        raise Refused(refusal_to(request, RefusalCode.NOT_HELD, missing=missing), peer="a")

    servers = [Server("a", trouble=one_more), Server("b")]
    call = make_call(20)
    held = {"a": range(16), "b": range(15)}
    with pytest.raises(ExpertsUnavailable) as caught:
        dispatch(call, servers, held)
    assert caught.value.experts == (15,)
    assert len(servers[0].asked) == 2


def test_experts_lost_with_their_only_server_are_one_clear_error() -> None:
    call = replace(make_call(1, 4), ids=np.array([[0, 1, 4, 5]], np.int32))
    with pytest.raises(ExpertsUnavailable) as caught:
        dispatch(call, [Server("a"), Server("b", trouble=gone), Server("c")], THIRDS)
    assert (caught.value.layer, caught.value.experts, caught.value.peer) == (LAYER, (1, 4), "b")
    assert str(caught.value) == (
        "layer 11: no peer holds experts 1, 4 any more (b: connection lost): try again when it is back"
    )


def test_the_next_call_works_when_it_is_back() -> None:
    call = make_call()
    server = Server("b", trouble=gone)
    held = {"b": range(16)}
    with pytest.raises(ExpertsUnavailable):
        dispatch(call, [server], held)
    server.trouble = None
    result, _ = dispatch(call, [server], held)
    assert result.tobytes() == direct(call).tobytes()


def test_giving_up_does_not_wait_for_the_others() -> None:
    async def run() -> float:
        peers: dict[str, ExpertPeer] = {
            "a": Server("a", delay=5.0),
            "b": Server("b", delay=1.0, trouble=gone),
            "c": Server("c", delay=5.0),
        }
        holders = LayerHolders(LAYER, tuple(Holder.of(peer_id, held) for peer_id, held in THIRDS.items()))
        begin = trio.current_time()
        with pytest.raises(ExpertsUnavailable):
            await Star(peers.get).dispatch(make_call(8), holders, WireSettings())
        return trio.current_time() - begin

    assert trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(1.0)


def test_nobody_ever_held_them() -> None:
    with pytest.raises(NoHolder, match="no peer holds expert"):
        dispatch(make_call(), [Server("a")], {"a": range(3)})


# ---- ours to blame ------------------------------------------------------------------------------


def test_homes_own_error_ends_the_call() -> None:
    async def broken(call: MoeCall, part: ServerCall) -> Float32Array:
        raise LocalError("the slice file is gone")

    async def run() -> None:
        peers: dict[str, ExpertPeer] = {"a": Server("a", delay=3.0)}
        holders = LayerHolders(LAYER, (Holder.of(HOME, range(8)), Holder.of("a", range(8, 16))))
        await Star(peers.get, broken).dispatch(make_call(8), holders, WireSettings())

    with pytest.raises(LocalError, match="the slice file is gone"):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_hidden_states_that_are_not_finite_blame_no_peer() -> None:
    call = make_call()
    call.x[0, 0] = np.nan
    with pytest.raises(LocalError, match="layer 11: the trunk gave NaN"):
        dispatch(call, [Server("a")], {"a": range(16)})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ids": np.zeros((0, 4), np.int32)}, "ids"),
        ({"ids": np.zeros((6, 4), np.int32)}, "x is float32"),
        ({"x": np.zeros((5, N_IN), np.float64)}, "x is float64"),
        ({"x": np.zeros((5, 3, N_IN), np.float32)}, "x is float32"),
        ({"weights": np.zeros((5, 3), np.float32)}, "weights"),
        ({"weights": np.zeros((5, 4), np.float64)}, "weights"),
    ],
)
def test_shapes_that_do_not_fit(change: dict[str, Any], match: str) -> None:
    with pytest.raises(LocalError, match=f"layer 11: {match}"):
        dispatch(replace(make_call(), **change), [Server("a")], {"a": range(16)})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            replace(make_call(1200, 1), n_out=65_536),
            "the answer would have 314572840 bytes, the limit is 268435456",
        ),
        (
            replace(make_call(300, 1), x=np.zeros((300, 65_536), np.float32)),
            "the request would have 78645704 bytes, the limit is 67108864",
        ),
    ],
)
def test_a_message_above_the_limit_is_refused_before_it_is_made(call: MoeCall, match: str) -> None:
    server = Server("a")
    with pytest.raises(LocalError, match=match):
        dispatch(call, [server], {"a": range(16)})
    assert not server.asked
