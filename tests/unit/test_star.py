"""The star over in-memory expert servers that compute real experts and speak the real wire format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.dispatch.call import CallStats, MoeCall, WireSettings
from routing.dispatch.combine import add_slots, sum_pairs
from routing.dispatch.errors import ExpertsUnavailable, NoHolder
from routing.dispatch.plan import HOME, Holder, LayerHolders, ServerCall
from routing.dispatch.star import ExpertPeer, Star
from routing.errors import LocalError, PeerError
from routing.estimates import FIRST_DOUBT, HEDGE_BURST, HEDGE_SHARE, MARGIN, Estimates, Fault
from routing.wire.codecs import Codec, Float32Array
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    RefusalCode,
    Refused,
    decode_message,
    encode_message,
    refusal_to,
)

N_EXPERTS, N_IN, N_OUT = 16, 40, 24
LAYER = 11
MODEL_ID = bytes(range(32))

_rng = np.random.default_rng(42)
EXPERTS = _rng.standard_normal((N_EXPERTS, N_OUT, N_IN)).astype(np.float32)


def expert(number: int, row: Float32Array) -> Float32Array:
    """One expert on one row; the same bits whatever stands beside it."""
    result: Float32Array = np.maximum((EXPERTS[number] * row).sum(axis=1, dtype=np.float32), np.float32(-0.5))
    return result


def compute(x: Float32Array, counts: Iterable[int], experts: Iterable[int]) -> Float32Array:
    """Every pair's unweighted output, in pair order."""
    rows = np.repeat(np.arange(len(x)), list(counts))
    return np.stack([expert(number, x[row]) for row, number in zip(rows, experts, strict=True)])


def make_call(n_tokens: int = 5, n_used: int = 4, *, weighted: bool = True, seed: int = 0) -> MoeCall:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(N_EXPERTS)[:n_used] for _ in range(n_tokens)]).astype(np.int32)
    x = rng.standard_normal((n_tokens, N_IN)).astype(np.float32)
    weights = rng.random((n_tokens, n_used)).astype(np.float32) if weighted else None
    return MoeCall(MODEL_ID, LAYER, 0, x, ids, weights, N_OUT)


def direct(call: MoeCall) -> Float32Array:
    """The call's result on one machine."""
    n_tokens, n_used = call.ids.shape
    laid = np.empty((n_tokens, n_used, N_OUT), np.float32)
    for token in range(n_tokens):
        for slot in range(n_used):
            row = call.x[token, slot] if call.row_per_pair else call.x[token]
            laid[token, slot] = expert(int(call.ids[token, slot]), row)
    if call.weights is not None:
        laid *= call.weights[:, :, None]
    return add_slots(laid)


Trouble = Callable[[ExpertsRequest, ExpertsAnswer], ExpertsAnswer]


@dataclass
class Server:
    """An expert server in memory: what goes in and out passes through bytes.

    Attributes:
        delay: seconds before it answers.
        trouble: what happens to its answer instead: may raise.
        asked: the requests it saw.
        bytes_in, bytes_out: what its stream carried, length prefixes included.
        cancelled: requests that were given up while it worked on them.
    """

    peer_id: str
    delay: float = 0.0
    trouble: Trouble | None = None
    asked: list[ExpertsRequest] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0
    cancelled: int = 0
    path: str = "direct"
    rtt: float = 0.0

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        arrived = encode_message(request)
        self.bytes_in += 4 + len(arrived)
        seen = decode_message(arrived)
        assert isinstance(seen, ExpertsRequest)
        self.asked.append(seen)
        try:
            await trio.sleep(self.delay)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        y = compute(seen.x, seen.counts.tolist(), seen.experts.tolist())
        if seen.weights is not None:
            y *= seen.weights[:, None]
        if seen.combine is Combine.SUM:
            y = sum_pairs(y, seen.counts)
        answer = ExpertsAnswer(
            seen.call_id, seen.layer, seen.call_index, y, seen.codec_back, seen.combine, 1500, 3
        )
        if self.trouble is not None:
            try:
                return self.trouble(seen, answer)
            except Refused as refused:
                self.bytes_out += 4 + len(encode_message(refused.refusal))
                raise
        sent = encode_message(answer)
        self.bytes_out += 4 + len(sent)
        back = decode_message(sent)
        assert isinstance(back, ExpertsAnswer)
        return back


async def home(call: MoeCall, part: ServerCall) -> Float32Array:
    x, weights = call.part(part)
    y = compute(x, part.counts.tolist(), part.experts.tolist())
    return y if weights is None else y * weights[:, None]


def dispatch(
    call: MoeCall,
    servers: list[Server],
    held: Mapping[str, Iterable[int]],
    settings: WireSettings | None = None,
) -> tuple[Float32Array, CallStats]:
    """Run one dispatch to its end on the autojump clock."""
    peers: dict[str, ExpertPeer] = {server.peer_id: server for server in servers}
    holders = LayerHolders(LAYER, tuple(Holder.of(peer_id, experts) for peer_id, experts in held.items()))

    async def run() -> tuple[Float32Array, CallStats]:
        star = Star(peers.get, home if HOME in held else None)
        return await star.dispatch(call, holders, settings or WireSettings())

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


THIRDS = {"a": range(0, 16, 3), "b": range(1, 16, 3), "c": range(2, 16, 3)}


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


def test_a_row_for_each_pair_is_combined_as_rows_even_if_sum_is_set() -> None:
    base = make_call(weighted=False)
    x = np.random.default_rng(9).standard_normal((*base.ids.shape, N_IN)).astype(np.float32)
    call = replace(base, x=x)
    servers = [Server("a"), Server("b"), Server("c")]
    result, _ = dispatch(call, servers, THIRDS, WireSettings(combine=Combine.SUM))
    assert result.tobytes() == direct(call).tobytes()
    assert all(request.combine is Combine.ROWS for server in servers for request in server.asked)


def test_a_token_that_names_an_expert_twice() -> None:
    call = replace(make_call(2, 4), ids=np.array([[3, 3, 7, 3], [7, 7, 7, 7]], np.int32))
    for combine in Combine:
        result, _ = dispatch(call, [Server("a")], {"a": range(16)}, WireSettings(combine=combine))
        assert result.tobytes() == direct(call).tobytes()


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


def gone(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise PeerError("connection lost", peer="b")


def overloaded(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise Refused(refusal_to(request, RefusalCode.OVERLOADED, "9 calls wait"), peer="b")


def nan(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    y = answer.y.copy()
    y[-1, -1] = np.nan
    return replace(answer, y=y)


def other_call(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    return replace(answer, call_id=answer.call_id + 1)


def short(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    return replace(answer, y=answer.y[:-1])


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
    if combine is Combine.ROWS:
        assert result.tobytes() == direct(call).tobytes()
    else:
        assert np.allclose(result, direct(call), rtol=1e-5, atol=1e-5)
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


# ---- late answers -------------------------------------------------------------------------------


class Swarm:
    """Servers, and a star that keeps what it has learnt of them from call to call."""

    def __init__(self, *servers: Server) -> None:
        self.servers = {server.peer_id: server for server in servers}
        self.star = Star(self.servers.get)

    async def ask(
        self, held: Mapping[str, Iterable[int]], settings: WireSettings | None = None, seed: int = 0
    ) -> tuple[float, CallStats]:
        """One call: seconds it took, and what it cost. Its result must be that of one machine."""
        call = make_call(seed=seed)
        holders = LayerHolders(LAYER, tuple(Holder.of(peer, experts) for peer, experts in held.items()))
        begin = trio.current_time()
        settings = settings or WireSettings()
        result, stats = await self.star.dispatch(call, holders, settings)
        if settings.combine is Combine.ROWS:
            assert result.tobytes() == direct(call).tobytes()
        else:
            assert np.allclose(result, direct(call), rtol=1e-5, atol=1e-5)
        return trio.current_time() - begin, stats


def on_a_mock_clock(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


BOTH = {"a": range(16), "b": range(16)}


def test_a_late_answer_is_hedged_after_the_tail_of_what_was_measured() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        for seed in range(20):
            await swarm.ask(BOTH, seed=seed)
        assert not b.asked
        a.delay = 100.0
        took, stats = await swarm.ask(BOTH)
        # The mean, the margin for what was never late before, and the other's answer on a first call.
        assert took == pytest.approx(0.02 + MARGIN + 0.02, abs=0.01)
        assert (stats.late, stats.hedges, stats.hedges_won, stats.failures) == (["a"], 1, 1, [])
        assert (stats.trips, stats.waves) == (1, 2)
        assert a.cancelled == 1 and b.cancelled == 0
        assert swarm.star.estimates.doubted("a", "direct", trio.current_time())
        assert not swarm.star.estimates.doubted("a", "direct", trio.current_time() + FIRST_DOUBT)

    on_a_mock_clock(test)


def test_the_late_one_may_still_win() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=50.0)
        swarm = Swarm(a, b)
        for seed in range(20):
            await swarm.ask(BOTH, seed=seed)
        a.delay = 0.5
        took, stats = await swarm.ask(BOTH)
        assert took == pytest.approx(0.5)
        assert (stats.hedges, stats.hedges_won, [each.peer_id for each in stats.servers]) == (1, 0, ["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert (a.cancelled, b.cancelled) == (0, 1)
        assert not swarm.star.estimates.doubted("a", "direct", trio.current_time())

    on_a_mock_clock(test)


@pytest.mark.parametrize("combine", list(Combine))
def test_a_hedge_may_take_several_servers_and_all_of_it_counts_or_none(combine: Combine) -> None:
    async def test() -> None:
        a, b, c = Server("a", delay=100.0), Server("b", delay=0.3), Server("c", delay=0.1)
        swarm = Swarm(a, b, c)
        held = {"a": range(16), "b": range(8), "c": range(8, 16)}
        took, stats = await swarm.ask(held, WireSettings(combine=combine))
        assert took == pytest.approx(
            swarm.star.estimates.patience("x", "", rtt=0, nbytes=9000, pairs=20) + 0.3, 0.1
        )
        assert (stats.hedges, stats.hedges_won) == (2, 2)
        asked = [set(server.asked[0].experts.tolist()) for server in (b, c)]
        assert not asked[0] & asked[1] and asked[0] | asked[1] == set(a.asked[0].experts.tolist())
        # c answers long before b; a, a moment before b: then it is a's answer alone that counts.
        fresh = Swarm(Server("a", delay=took - 0.01), Server("b", delay=0.3), Server("c", delay=0.1))
        again, stats = await fresh.ask(held, WireSettings(combine=combine))
        assert again == pytest.approx(took - 0.01)
        assert (stats.hedges, stats.hedges_won) == (2, 0)

    on_a_mock_clock(test)


def test_a_hedge_that_cannot_have_all_pairs_is_not_sent() -> None:
    async def test() -> None:
        a, b = Server("a", delay=6.0), Server("b")
        took, stats = await Swarm(a, b).ask({"a": range(16), "b": range(3)})
        assert took == pytest.approx(6.0)
        assert stats.hedges == 0 and not b.asked

    on_a_mock_clock(test)


def test_when_the_late_one_fails_the_hedge_is_waited_for() -> None:
    async def test() -> None:
        a, b = Server("a", delay=2.0, trouble=gone), Server("b", delay=3.0)
        swarm = Swarm(a, b)
        _, stats = await swarm.ask(BOTH)
        assert [failure.peer_id for failure in stats.failures] == ["a"]
        assert (stats.hedges, stats.hedges_won, stats.moved, len(b.asked)) == (1, 1, 0, 1)

    on_a_mock_clock(test)


def test_when_the_hedge_fails_the_late_one_is_waited_for_and_others_are_tried() -> None:
    async def test() -> None:
        a, b, c = Server("a", delay=5.0), Server("b", delay=0.1, trouble=gone), Server("c", delay=0.1)
        took, stats = await Swarm(a, b).ask(BOTH)
        assert took == pytest.approx(5.0) and [each.peer_id for each in stats.failures] == ["b"]
        took, stats = await Swarm(a, b, c).ask({**BOTH, "c": range(16)})
        assert took < 2.0 and [each.peer_id for each in stats.servers] == ["c"]

    on_a_mock_clock(test)


def test_when_all_fail_each_is_named() -> None:
    async def test() -> None:
        a, b = Server("a", delay=2.0, trouble=gone), Server("b", delay=0.1, trouble=nan)
        with pytest.raises(ExpertsUnavailable) as caught:
            await Swarm(a, b).ask(BOTH)
        assert set(caught.value.reasons) == {"a", "b"}

    on_a_mock_clock(test)


def test_a_bug_in_a_hedge_ends_its_call_and_nothing_else() -> None:
    def bug(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        raise ZeroDivisionError

    async def test() -> None:
        a, b = Server("a", delay=5.0), Server("b", delay=0.1, trouble=bug)
        swarm = Swarm(a, b)
        with pytest.raises(ZeroDivisionError):
            await swarm.ask(BOTH)
        a.delay, b.trouble = 0.1, None
        await swarm.ask(BOTH)

    on_a_mock_clock(test)


def test_a_star_works_in_one_event_loop_after_the_other() -> None:
    swarm = Swarm(Server("a", delay=100.0), Server("b", delay=0.1))

    async def test() -> None:
        took, stats = await swarm.ask({**BOTH})
        assert took < 2 and stats.hedges_won == 1

    on_a_mock_clock(test)
    swarm.star.estimates = Estimates()
    on_a_mock_clock(test)


def test_a_hang_is_hedged_by_a_third_when_the_second_hangs_too() -> None:
    async def test() -> None:
        hung, also = Server("a", delay=100.0), Server("b", delay=100.0)
        c = Server("c", delay=0.1)
        took, stats = await Swarm(hung, also, c).ask({**BOTH, "c": range(16)})
        assert took < 4.0
        assert stats.late == ["a", "b"] and (hung.cancelled, also.cancelled) == (1, 1)

    on_a_mock_clock(test)


def test_the_doubted_are_not_hedged_to_right_after_their_fault() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        for seed in range(3):
            await swarm.ask({"b": range(16)}, seed=seed)
        swarm.star.estimates.failed("b", "direct", Fault.WRONG, trio.current_time())
        a.delay = 5.0
        took, stats = await swarm.ask(BOTH)
        assert took == pytest.approx(5.0) and stats.hedges == 0

    on_a_mock_clock(test)


def test_a_swarm_that_is_slow_as_a_whole_is_not_asked_twice_as_much() -> None:
    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        turns = [{"a": range(16), "b": range(16)}, {"b": range(16), "a": range(16)}]
        for seed in range(20):
            await swarm.ask(turns[seed % 2], seed=seed)
        spent = 0
        delays = np.random.default_rng(5).exponential(1.0, 400)  # nothing to be learnt from the last ones
        for number, delay in enumerate(delays):
            a.delay = b.delay = float(delay)
            spent += (await swarm.ask(turns[number % 2]))[1].hedges
        assert 0 < spent <= HEDGE_BURST + HEDGE_SHARE * (400 + spent)

    on_a_mock_clock(test)


def test_an_overflow_is_traced_to_its_sender_within_the_pass() -> None:
    def huge(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
        return replace(answer, y=np.full_like(answer.y, 3e38))

    async def test() -> None:
        servers = [Server("a"), Server("b", trouble=huge), Server("c"), Server("d")]
        swarm = Swarm(*servers)
        _, stats = await swarm.ask({**THIRDS, "d": [1, 4, 7, 10, 13]})
        assert [each.peer_id for each in stats.failures] == ["b"] and stats.moved == 1
        assert swarm.star.estimates.doubted("b", "another path", trio.current_time())

    on_a_mock_clock(test)


FATES: list[tuple[float, Trouble | None]] = [
    (0.02, None),
    (0.5, None),
    (3.0, None),
    (1e6, None),
    (0.05, gone),
    (2.0, gone),
    (0.05, nan),
    (1.5, short),
    (0.0, overloaded),
]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(FATES), st.integers(0, 2**16 - 1)), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from(list(Combine)),
)
def test_whatever_fails_and_hangs_the_bytes_are_those_of_one_machine(
    fates: list[tuple[tuple[float, Trouble | None], int]], seed: int, combine: Combine
) -> None:
    """One honest server holds everything; any number of others hold something and do as they like."""

    async def test() -> None:
        servers = [Server(f"p{number}", delay, trouble) for number, ((delay, trouble), _) in enumerate(fates)]
        held = {
            f"p{number}": [expert for expert in range(16) if bits >> expert & 1]
            for number, (_, bits) in enumerate(fates)
        }
        honest = Server("z", delay=0.3)
        swarm = Swarm(*servers, honest)
        for turn in range(3):
            _, stats = await swarm.ask({**held, "z": range(16)}, WireSettings(combine=combine), seed + turn)
            assert stats.hedges_won <= stats.hedges
        # No expert's rows are split, whoever was asked.
        for server in (*servers, honest):
            for request in server.asked:
                for number in set(request.experts.tolist()):
                    rows = request.experts.tolist().count(number)
                    assert rows in {int((make_call(seed=seed + t).ids == number).sum()) for t in range(3)}

    on_a_mock_clock(test)


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
