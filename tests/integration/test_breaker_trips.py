"""Fewer trips, attacked: home sets swapped under way, servers that die, early sends given up, odd sizes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.session import Session
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
