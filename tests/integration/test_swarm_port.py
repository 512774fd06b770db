"""A backbone over servers of this process: bytes, counts, faults, and which layer a liar damages."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from node.decode.expert_port import Interrupted
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.not_covered import NotCovered
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.model.held import hold
from node.model.slice_file import chunk_run
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from node.swarm.place import Place
from node.verify.comparison import Bounds, ErrorPort, judge, verify
from routing.dispatch.errors import ExpertsUnavailable
from routing.errors import LocalError, PeerError
from routing.estimates import Fault
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.weighing import WEIGH_SECONDS
from routing.wire import holdings
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    Refusal,
    RefusalCode,
    answer_nbytes,
    framed_nbytes,
    request_nbytes,
)
from routing.wire.messages import decode_message
from tests.model_parts import ModelParts, rows
from tests.served import address_of, cells_of, run, serving

Parts = Callable[..., ModelParts]

THIRDS = [[range(4)], [range(4, 8)], [range(8, 12)]]
SETTINGS = BackboneSettings(threads=1, context=256, deadline=5.0)


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@asynccontextmanager
async def swarm(
    model: ModelParts,
    held: Sequence[Sequence[range]] = THIRDS,
    *,
    home: Cells | None = None,
    settings: BackboneSettings = SETTINGS,
    watch: Callable[[ExpertPort], ExpertPort] = lambda port: port,
) -> AsyncIterator[tuple[LiveBackbone, list[tuple[ExpertServer, Endpoint]]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(model, cells_of(model, runs))) for runs in held]
        live = await stack.enter_async_context(
            live_backbone(
                model.library,
                model.stored,
                place=Place.among(
                    [address_of(endpoint) for _, endpoint in servers], identity=Identity.generate()
                ),
                settings=settings,
                home=home,
                watch=watch,
            )
        )
        await live.covered()
        yield live, servers


def passes(model: ModelParts, compute: Callable[[Any], Float32Array]) -> list[bytes]:
    tokens = model.tokens(14)
    plan = ((0, 5), (5, 1), (6, 7), (13, 1))
    return [compute(rows(tokens[start : start + size], start)).tobytes() for start, size in plan]


def expected(model: ModelParts) -> list[bytes]:
    with model.plain() as plain:
        return passes(model, plain.run)


# --- bytes and counts ---


def test_three_servers_give_the_bytes_of_one_machine(model: ModelParts) -> None:
    async def test() -> None:
        async with swarm(model) as (live, servers):
            found = await live.in_thread(passes, model, live.backbone.run)
            assert found == expected(model)
            assert all(server.counts.calls > 0 and server.counts.refused == 0 for server, _ in servers)
            ledger = live.port.ledger
            assert ledger.trips == ledger.calls == 4 * 4
            asked = sum(server.counts.pairs for server, _ in servers)
            assert asked == 2 * 4 * 14

    run(test)


@pytest.mark.parametrize(
    ("at_home", "trips"),
    [([range(12)], 0), ([range(6), range(6, 12)], 0), ([range(8)], None), ([range(11, 12)], None)],
)
def test_what_is_at_home_is_computed_there(
    model: ModelParts, at_home: list[range], trips: int | None
) -> None:
    async def test() -> None:
        home = cells_of(model, at_home)
        async with swarm(model, home=home) as (live, servers):
            found = await live.in_thread(passes, model, live.backbone.run)
            assert found == expected(model)
            ledger = live.port.ledger
            assert ledger.computed_home > 0
            if trips is not None:
                assert ledger.trips == trips and sum(server.counts.calls for server, _ in servers) == 0
            else:
                assert 0 < ledger.trips <= 16
            assert ledger.calls == 16

    run(test)


@pytest.mark.parametrize("name", ["grovemoe", "llama4"])
def test_models_of_other_shapes(parts: Parts, name: str) -> None:
    other = parts(name)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            servers = []
            for run_of_experts in (range(3), range(3, 8)):
                cells = Cells()
                held = {}
                for call in other.manifest.calls:
                    mine = run_of_experts if call.index == 0 else chunk_run(run_of_experts, 8, call.n_experts)
                    held[call.layer, call.group] = hold(other.mapped, call, mine)
                cells.add(other.stored.model_id, other.manifest, held)
                servers.append(await stack.enter_async_context(serving(other, cells)))
            live = await stack.enter_async_context(
                live_backbone(
                    other.library,
                    other.stored,
                    place=Place.among(
                        [address_of(endpoint) for _, endpoint in servers], identity=Identity.generate()
                    ),
                    settings=dataclasses.replace(SETTINGS, combine=Combine.ROWS),
                )
            )
            await live.covered()
            assert await live.in_thread(passes, other, live.backbone.run) == expected(other)
            assert all(server.counts.calls for server, _ in servers)

    run(test)


def test_one_server_and_sum_give_the_same_bytes(model: ModelParts) -> None:
    async def test() -> None:
        settings = dataclasses.replace(SETTINGS, combine=Combine.SUM)
        async with swarm(model, [[range(12)]], settings=settings) as (live, _):
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_bytes_are_those_of_the_formula(model: ModelParts) -> None:
    async def test() -> None:
        for combine, wire in ((Combine.ROWS, Codec.F32), (Combine.SUM, Codec.F16), (Combine.SUM, Codec.INT8)):
            settings = dataclasses.replace(SETTINGS, combine=combine, wire=wire)
            async with swarm(model, [[range(12)]], settings=settings) as (live, _):
                await live.in_thread(live.backbone.run, rows(model.tokens(6)))
                ledger = live.port.ledger
                vectors = 12 if combine is Combine.ROWS else 6
                assert ledger.bytes_out == 4 * (4 + request_nbytes(6, 12, 256, wire, True))
                assert ledger.bytes_back == 4 * (4 + answer_nbytes(vectors, 256, wire))
                assert ledger.report().bytes_per_token_layer == round(
                    (ledger.bytes_out + ledger.bytes_back) / 24, 1
                )

    run(test)


# --- faults ---


def meddled(servers: list[tuple[ExpertServer, Endpoint]], number: int, meddle: Callable[..., Any]) -> None:
    """Let a running server lie from now on."""
    server = servers[number][0]
    original = server._reply

    async def reply(message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
        result: ExpertsAnswer | Refusal = meddle(await original(message, stream))
        return result

    server._reply = reply  # type: ignore[method-assign]


def once(change: Callable[[Any], Any], layer: int) -> Callable[[Any], Any]:
    done: list[bool] = []

    def meddle(reply: Any) -> Any:
        if reply.layer == layer and not done:
            done.append(True)
            return change(reply)
        return reply

    return meddle


def refuse(reply: Any) -> Refusal:
    return Refusal(reply.call_id, reply.layer, reply.call_index, RefusalCode.OVERLOADED, "too much")


WRONG: list[Callable[[Any], Any]] = [
    refuse,
    lambda reply: dataclasses.replace(reply, call_id=reply.call_id + 1),
    lambda reply: dataclasses.replace(reply, layer=reply.layer + 1),
    lambda reply: dataclasses.replace(reply, y=reply.y[:, :-1]),
    lambda reply: dataclasses.replace(reply, codec=Codec.F16),
]


@pytest.mark.parametrize("change", WRONG, ids=range(len(WRONG)))
def test_a_replica_takes_over(model: ModelParts, change: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with swarm(model, [[range(12)], [range(12)]]) as (live, servers):
            for number in range(2):
                meddled(servers, number, once(change, number + 1))
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


@pytest.mark.parametrize("change", WRONG, ids=range(len(WRONG)))
def test_without_one_the_pass_fails_and_the_next_works(
    model: ModelParts, change: Callable[[Any], Any]
) -> None:
    async def test() -> None:
        async with swarm(model, [[range(12)]]) as (live, servers):
            meddled(servers, 0, once(change, 2))
            with pytest.raises(ExpertsUnavailable) as caught:
                await live.in_thread(passes, model, live.backbone.run)
            message = str(caught.value)
            assert "layer 2" in message and str(servers[0][1].peer_id) in message and "\n" not in message
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_a_late_answer(model: ModelParts) -> None:
    async def test() -> None:
        settings = dataclasses.replace(SETTINGS, deadline=0.3)
        async with swarm(model, [[range(12)]], settings=settings) as (live, servers):
            server = servers[0][0]
            original = server._reply
            slow = [True]

            async def reply(message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
                if slow.pop() if slow else False:
                    await trio.sleep(0.6)
                return await original(message, stream)

            server._reply = reply  # type: ignore[method-assign]
            with pytest.raises(PeerError, match=r"gave no answer in 0\.3 s"):
                await live.in_thread(passes, model, live.backbone.run)
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_home_that_fails_is_ours(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        home = cells_of(model, [range(6)])
        async with swarm(model, home=home) as (live, _):
            held = home.find(bytes.fromhex(model.stored.model_id), 0, 0)
            assert held is not None

            def fail(*arguments: object) -> Float32Array:
                raise LocalError("no memory")

            with monkeypatch.context() as patch:
                patch.setattr(type(held), "compute", fail)
                patch.setattr(type(held), "routed", fail, raising=False)
                with pytest.raises(LocalError):
                    await live.in_thread(passes, model, live.backbone.run)
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_nan_from_the_trunk_is_ours(model: ModelParts) -> None:
    async def test() -> None:
        async with swarm(model) as (live, servers):
            call = model.manifest.calls[0]
            x = np.full((1, 256), np.nan, np.float32)
            ids, weights = np.array([[0, 9]], np.int32), np.ones((1, 2), np.float32)

            def ask() -> Float32Array:
                return live.port.enter(live.port.leave(ExpertInputs(call, x, ids, weights)))

            with pytest.raises(LocalError, match="layer 0: the trunk gave NaN"):
                await live.in_thread(ask)
            assert sum(server.counts.calls for server, _ in servers) == 0

    run(test)


def test_what_nobody_holds_is_named(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with pytest.RaisesGroup(NotCovered, flatten_subgroups=True, allow_unwrapped=True) as caught:
            async with AsyncExitStack() as stack:
                servers = [
                    await stack.enter_async_context(serving(model, cells_of(model, runs)))
                    for runs in ([range(4)], [range(8, 12)])
                ]
                live = await stack.enter_async_context(
                    live_backbone(
                        model.library,
                        model.stored,
                        place=Place.among(
                            [address_of(endpoint) for _, endpoint in servers], identity=Identity.generate()
                        ),
                        settings=SETTINGS,
                    )
                )
                await live.covered(0.3)
        assert "layers 0-3: experts 4-7" in repr(caught.value)

    run(test)


# --- which layer ---


@pytest.mark.parametrize(
    "layer", [2, pytest.param(0, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_the_damaged_layer_is_named(model: ModelParts, layer: int) -> None:
    def damage(reply: Any) -> Any:
        if isinstance(reply, ExpertsAnswer) and reply.layer == layer:
            return dataclasses.replace(reply, y=reply.y * np.float32(1.5))
        return reply

    async def test() -> None:
        watching: list[ErrorPort] = []

        def watch(port: ExpertPort) -> ExpertPort:
            watching.append(ErrorPort(port, model.kernels, model.held))
            return watching[0]

        async with swarm(model, watch=watch) as (live, servers):

            async def check() -> Any:
                comparison, report = await live.in_thread(
                    lambda: verify(live, model.library, (model.path,), watching[0], batches=(1, 5), threads=1)
                )
                return judge(
                    comparison,
                    report,
                    model.manifest,
                    servers=3,
                    combine=Combine.ROWS,
                    wire=Codec.F32,
                    worst_layer=watching[0].worst_layer(),
                    bounds=Bounds(),
                )

            honest = await check()
            assert honest.passed and honest.byte_identical and honest.worst_layer is None
            meddled(servers, 1, damage)
            lied = await check()
            assert not lied.passed and not lied.byte_identical and lied.worst_layer == layer
            assert [each for each, error in watching[0].errors.items() if error > 0] == [layer]
            assert lied.trips > 0

    run(test)


def test_requests_carry_only_what_a_server_needs(model: ModelParts) -> None:
    async def test() -> None:
        async with swarm(model) as (live, servers):
            seen: list[tuple[int, ExpertsRequest]] = []
            for number, (server, _) in enumerate(servers):
                original = server._reply

                async def reply(
                    message: bytes, stream: Stream, number: int = number, original: Any = original
                ) -> Any:
                    decoded = decode_message(message)
                    assert isinstance(decoded, ExpertsRequest)
                    seen.append((number, decoded))
                    return await original(message, stream)

                server._reply = reply  # type: ignore[method-assign]
            await live.in_thread(live.backbone.run, rows(model.tokens(9)))
            for number, asked in seen:
                held = set(range(4 * number, 4 * number + 4))
                assert set(asked.experts.tolist()) <= held
                assert asked.rows <= 9 and asked.counts.min() >= 1
                assert asked.deadline_ms == 5000
            for layer in range(4):
                pairs = sum(asked.pairs for _, asked in seen if asked.layer == layer)
                assert pairs == 18
            assert live.port.ledger.bytes_out == sum(framed_nbytes(asked) for _, asked in seen)

    run(test)


# --- peers that fail again and again ---


def test_a_silent_replica_is_waited_for_once(model: ModelParts) -> None:
    """Not in every layer of every pass: after one failure others are asked first."""

    async def test() -> None:
        settings = dataclasses.replace(SETTINGS, deadline=0.5)
        async with swarm(model, [[range(12)], [range(12)]], settings=settings) as (live, servers):
            first = min(range(2), key=lambda number: servers[number][1].peer_id)  # who is asked first
            asked = 0

            async def silent(message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
                nonlocal asked
                asked += 1
                await trio.sleep_forever()
                raise AssertionError

            servers[first][0]._reply = silent  # type: ignore[method-assign]
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)
            assert asked == 1

    run(test)


def test_the_quicker_replica_is_asked_before_long(model: ModelParts) -> None:
    async def test() -> None:
        async with swarm(model, [[range(12)], [range(12)]]) as (live, servers):
            first = min(
                range(2), key=lambda number: live.table.peers().index(str(servers[number][1].peer_id))
            )

            def slow_down(number: int) -> None:
                server = servers[number][0]
                original = server._reply

                async def reply(message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
                    await trio.sleep(0.06)
                    return await original(message, stream)

                server._reply = reply  # type: ignore[method-assign]

            slow_down(first)
            for _ in range(3):
                live.backbone.context.clear()
                assert await live.in_thread(passes, model, live.backbone.run) == expected(model)
                before = servers[first][0].counts.calls
                await trio.sleep(WEIGH_SECONDS)
            live.backbone.context.clear()
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)
            assert servers[first][0].counts.calls == before
            assert live.port.ledger.trips == 4 * 16

    run(test)


def test_a_suspect_is_asked_where_nobody_else_is_left(model: ModelParts) -> None:
    async def test() -> None:
        async with swarm(model, [[range(12)], [range(6)]]) as (live, servers):
            for _, endpoint in servers:
                now = trio.current_time()
                live.port.estimates.failed(str(endpoint.peer_id), "direct", Fault.WRONG, now)
            assert live.table.missing() == {}
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_huge_values_are_blamed_on_who_sent_them(model: ModelParts) -> None:
    """Finite each, infinite when added: not our file's fault, and no warning of numpy's."""

    async def test() -> None:
        async with swarm(model, [[range(12)]]) as (live, servers):

            def huge(answer: ExpertsAnswer) -> ExpertsAnswer:
                return dataclasses.replace(answer, y=np.full_like(answer.y, 3e38))

            meddled(servers, 0, once(huge, 2))
            with pytest.raises(ExpertsUnavailable, match="overflow") as caught:
                await live.in_thread(passes, model, live.backbone.run)
            assert str(servers[0][1].peer_id) in str(caught.value)
            assert await live.in_thread(passes, model, live.backbone.run) == expected(model)

    run(test)


def test_a_covered_swarm_does_not_wait_for_the_others(model: ModelParts) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            _, endpoint = await stack.enter_async_context(serving(model, cells_of(model, [range(12)])))
            dead = PeerAddress("127.0.0.1", 9, Identity.generate().peer_id)
            live = await stack.enter_async_context(
                live_backbone(
                    model.library,
                    model.stored,
                    place=Place.among([address_of(endpoint), dead], identity=Identity.generate()),
                    settings=SETTINGS,
                )
            )
            with trio.fail_after(4.5):  # the dial of the dead one takes 5
                await live.covered()

    run(test)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"versions": [2]}, "speaks /panal/experts 2, not 1"),
        ({"codecs": ["f16"]}, "does not speak f32"),
        ({"combines": ["sum"]}, "does not combine by rows"),
        ({"max_rows": 100}, "takes 100 rows at once, ubatch is 512"),
    ],
)
def test_a_peer_that_cannot_be_asked_covers_nothing(
    model: ModelParts, change: dict[str, Any], why: str
) -> None:
    async def test() -> None:
        async with serving(model, cells_of(model, [range(12)])) as (server, endpoint):
            told = holdings.decode_holdings(server._told)
            server._told = holdings.encode_holdings(msgspec.structs.replace(told, **change))
            async with live_backbone(
                model.library,
                model.stored,
                place=Place.among([address_of(endpoint)], identity=Identity.generate()),
                settings=SETTINGS,
            ) as live:
                with pytest.raises(NotCovered, match=why):
                    await live.covered(0.5)

    run(test)


def test_passes_that_need_nobody_end_with_the_event_loop_too(model: ModelParts) -> None:
    done = [0]
    enough = 20_000  # passes of a millisecond each: far more than the scope below leaves time for

    def decode_on(live: LiveBackbone) -> None:
        while done[0] < enough:
            live.backbone.context.clear()
            live.backbone.run(rows(model.tokens(1)))
            done[0] += 1

    async def test() -> None:
        home = cells_of(model, [range(12)])
        with trio.move_on_after(0.5):
            async with swarm(model, [], home=home) as (live, _):
                await live.in_thread(decode_on, live)

    with pytest.raises((Interrupted, ExceptionGroup)):
        run(test)
    assert 0 < done[0] < enough
