"""Which calls a server computes on its event loop: those known to be short, while nothing else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from node.serve import server as server_module
from node.serve.compute_thread import ComputeThread
from node.serve.server import ExpertServer
from routing.dispatch.quic_peer import QuicExpertPeer
from tests.model_parts import ModelParts
from tests.served import cells_of, connected, request, run, serving


@pytest.fixture
def model(parts: Callable[..., ModelParts]) -> ModelParts:
    return parts("demo")


async def until_idle(server: ExpertServer) -> None:
    """The thread looks up from its job a moment after the answer has left."""
    with trio.fail_after(30):
        while not server._thread.is_idle:
            await trio.sleep(0.001)


def where_computed(
    model: ModelParts,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    work: Callable[[ExpertServer, QuicExpertPeer], Any],
) -> list[bool]:
    """Of each call that `work` makes, whether it was computed on the loop's thread."""
    loop, found = threading.get_ident(), list[bool]()
    compute = ExpertServer._compute

    def noted(self: ExpertServer, *arguments: Any) -> Any:
        found.append(threading.get_ident() == loop)
        return compute(self, *arguments)

    monkeypatch.setattr(ExpertServer, "_compute", noted)
    monkeypatch.setattr(server_module, "AT_ONCE_SECONDS", seconds)

    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            await work(server, QuicExpertPeer(connection))

    run(test)
    return found


def test_a_short_call_once_it_is_known(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: ExpertServer, peer: QuicExpertPeer) -> None:
        asked = request(model)
        answers = []
        for _ in range(3):
            answers.append((await peer.call(asked)).y.tobytes())
            await until_idle(server)
        rows = model.kernels.run(model.held[0, "exps"], asked.x, asked.counts, asked.experts, asked.weights)
        assert answers == [rows.tobytes()] * 3
        assert server.counts.calls == 3

    assert where_computed(model, monkeypatch, 1.0, work) == [False, True, True]


def test_never_a_long_one(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(_: ExpertServer, peer: QuicExpertPeer) -> None:
        for layer in (0, 0, 0):
            await peer.call(request(model, layer))

    assert where_computed(model, monkeypatch, 1e-9, work) == [False, False, False]


def test_not_while_another_runs(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: ExpertServer, peer: QuicExpertPeer) -> None:
        await peer.call(request(model))
        await until_idle(server)
        held = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._thread.run, held.wait)
            nursery.start_soon(peer.call, request(model))
            while not server._thread.has_waiting("127.0.0.1"):
                await trio.sleep(0.001)
            held.set()

    assert where_computed(model, monkeypatch, 1.0, work) == [False, False]


def test_a_job_whose_caller_has_gone_still_runs() -> None:
    async def test() -> None:
        thread, begun, end = ComputeThread("test"), threading.Event(), threading.Event()

        def job() -> None:
            begun.set()
            end.wait()

        assert thread.is_idle
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, job)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()
        assert thread.waiting == 0 and not thread.is_idle
        end.set()
        with trio.fail_after(30):
            while not thread.is_idle:
                await trio.sleep(0.001)
        thread.close()

    trio.run(test)
