"""Fewer trips, attacked: home sets swapped under way, servers that die, clocks that stand still."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from node.decode.batch_answers import answer_all
from node.decode.batch_report import BatchAnswer
from node.decode.drafting import choice
from node.decode.drafting.draft_model import DraftModel
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.rule import PassOutcome
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.session import Session
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from node.swarm.place import Place
from routing.errors import PanalError
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.wire.experts import Combine
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of, run, serving

Parts = Callable[..., ModelParts]

WARM = SamplingSettings(temperature=0.9, seed=7)
SETTINGS = BackboneSettings(threads=1, context=256, deadline=5.0)


@asynccontextmanager
async def swarm(
    model: ModelParts,
    held: Sequence[Sequence[range]],
    *,
    home: Cells | None = None,
    settings: BackboneSettings = SETTINGS,
) -> AsyncIterator[tuple[LiveBackbone, list[tuple[ExpertServer, Endpoint]]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(model, cells_of(model, runs))) for runs in held]
        addresses = [address_of(endpoint) for _, endpoint in servers]
        live = await stack.enter_async_context(
            live_backbone(
                model.library,
                model.stored,
                place=Place.among(addresses, identity=Identity.generate()),
                settings=settings,
                home=home,
            )
        )
        await live.covered()
        yield live, servers


def decode(live: LiveBackbone, model: ModelParts, count: int, *, retries: int = 0) -> list[int]:
    """Tokens after a seeded prompt; passes that fail are made again."""
    live.backbone.context.clear()
    session: Session = live.session()
    session.append(model.tokens(20))
    sampler = Sampler(model.library, WARM)
    found: list[int] = []
    try:
        while len(found) < count:
            try:
                new = session.next_tokens(sampler, count - len(found))
            except PanalError:
                if not retries:
                    raise
                retries -= 1
                continue
            found += new
            session.append([new[-1]])
        return found
    finally:
        sampler.close()
        session.close()


def plain(model: ModelParts, count: int) -> list[int]:
    with model.backbone() as backbone:
        session = Session(backbone)
        session.append(model.tokens(20))
        sampler = Sampler(model.library, WARM)
        try:
            return list(session.generate(sampler, count, lambda token: False))
        finally:
            sampler.close()


@contextmanager
def swapping(live: LiveBackbone, sets: Sequence[Cells]) -> Iterator[list[int]]:
    """Another home set every moment, from a thread of its own; counts them."""
    over = threading.Event()
    swaps = [0]

    def work() -> None:
        while not over.is_set():
            live.port.set_home(sets[swaps[0] % len(sets)])
            swaps[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield swaps
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("draft", ["off", "self", "auto"])
@pytest.mark.parametrize("combine", [Combine.ROWS, Combine.STABLE])
def test_home_swapped_in_a_loop_changes_no_token(parts: Parts, combine: Combine, draft: str) -> None:
    # 1.5 s each.
    model = parts("demo")
    settings = dataclasses.replace(SETTINGS, combine=combine, draft=draft)
    sets = [
        Cells(),
        cells_of(model, [range(12)]),
        cells_of(model, [range(5)]),
        cells_of(model, [range(12)], layers=[0, 2]),
        cells_of(model, [range(2, 4), range(7, 9)]),
    ]

    async def test() -> None:
        async with swarm(model, [[range(4)], [range(4, 8)], [range(8, 12)]], settings=settings) as (live, _):
            still = await live.in_thread(decode, live, model, 40)
            with swapping(live, sets) as swaps:
                moved = await live.in_thread(decode, live, model, 40)
            assert swaps[0] > 100
            assert moved == still
            if combine is Combine.ROWS:
                assert still == plain(model, 40)

    run(test)


def test_a_first_pass_of_no_time_is_forgotten() -> None:
    """A clock that stood still for a pass (a coarse one): guessing would never pay again."""
    costs = PassCosts(2)
    for seconds in (0.0, *[0.05] * 100):
        costs.learn(PassOutcome((), 0, 0, 0.0, seconds, 0.0, 0))
    assert costs.pass_seconds(1) == pytest.approx(0.05, rel=0.2)


def test_a_small_model_has_the_threads_of_the_backbone(
    parts: Parts, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parts("demo")
    threads: list[int] = []

    class Noted(DraftModel):
        def __init__(
            self, library: Library, path: Path, like: LlamaModel, *, n_ctx: int, threads: int = 1
        ) -> None:
            noted.append(threads)
            super().__init__(library, path, like, n_ctx=n_ctx, threads=threads)

    noted = threads
    monkeypatch.setattr(choice, "DraftModel", Noted)
    with model.backbone(threads=2) as backbone:
        guessers = choice.Guessers("model", demo_model, True, backbone, lambda: False, list)
        guessing = guessers.make()
        assert guessing is not None
        guessing.close()
    assert threads == [2]


def test_lanes_swaps_and_a_lost_server_change_no_answer(parts: Parts) -> None:
    """Three lanes for eleven prompts, while home changes, or a server goes: the answers of one lane."""
    model = parts("demo")
    prompts = [model.tokens(4 + 3 * number, seed=number) for number in range(11)]
    sets = [Cells(), cells_of(model, [range(12)]), cells_of(model, [range(5)])]

    async def test() -> None:
        async with swarm(model, [[range(12)], [range(6)], [range(6, 12)]]) as (live, servers):

            def answers(lanes: int) -> list[list[int]]:
                found: list[BatchAnswer] = []
                answer_all(live, prompts, None, lanes, 8, WARM, found.append)
                return [each.tokens for each in found]

            alone = await live.in_thread(answers, 1)
            with swapping(live, sets):
                assert await live.in_thread(answers, 3) == alone
            async with trio.open_nursery() as nursery:

                async def go() -> None:
                    await trio.sleep(0.1)
                    servers[0][1].close()

                nursery.start_soon(go)
                assert await live.in_thread(answers, 3) == alone

    run(test)
