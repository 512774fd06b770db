"""A home set in use, over real servers: swapped under decoding, fetched, counted, changed for a better."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from node.config import parse_config
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.rule import AlwaysRule
from node.decode.drafting.self_draft import SelfDraft
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.session import Session
from node.engine.kernels import Kernels
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer
from node.home import watching
from node.home.home_set import HomeSet, shapes_of
from node.home.opening import OpenHome, open_home
from node.home.plan_file import read_heat, write_plan
from node.home.reconsider import LEAST_AGE, STEP_SECONDS
from node.home.watching import HomeKeeper, keep_home
from node.importing import import_model
from node.model.store import Store
from node.serve.cell_server import CellServer
from node.serve.server import ExpertServer
from node.swarm.place import Place
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.wire import cells as wire
from tests.cell_sources import FAST
from tests.integration.test_home_opening import HOT, experts_of, hot_plan, plan_for
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of, handlers_of, listening, run

Parts = Callable[..., ModelParts]

SETTINGS = BackboneSettings(threads=1, context=256, deadline=10.0)
PROMPT = "import os\nimport sys\n\ndef main(argv):\n"


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@asynccontextmanager
async def sharing_server(model: ModelParts, experts: Sequence[range]) -> AsyncIterator[Endpoint]:
    """A server that computes and shares these experts of all layers."""
    kernels = Kernels(model.library, threads=1)
    cells = cells_of(model, experts)
    server = ExpertServer(cells, kernels, name="test")
    handlers = handlers_of(server) | {wire.PROTOCOL_ID: CellServer(cells, rate=FAST).serve}
    try:
        async with listening(handlers) as endpoint:
            yield endpoint
    finally:
        server.close()
        kernels.close()


@asynccontextmanager
async def backbone(model: ModelParts, home: OpenHome) -> AsyncIterator[LiveBackbone]:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(sharing_server(model, runs))
            for runs in ([range(8)], [range(4, 12)])
        ]
        place = Place.among([address_of(endpoint) for endpoint in servers], identity=Identity.generate())
        live = await stack.enter_async_context(
            live_backbone(model.library, home.stored, place=place, settings=SETTINGS, home=home.cells)
        )
        await live.covered()
        yield live


def opened(
    stack: ExitStack, model: ModelParts, folder: Path, more: str, *, with_file: bool = True
) -> OpenHome:
    """The model in a store of its own, and what a config with these lines has at home."""
    store = Store(folder / "store")
    path = folder / "model.gguf"
    path.write_bytes(model.path.read_bytes())
    stored = import_model(model.library, store, path)
    if not with_file:
        path.unlink()
    text = f'[backbone]\nmodel = "{stored.model_id[:12]}"\n{more}'
    made = parse_config(text, folder / "node.toml", folder / "store")
    return stack.enter_context(open_home(model.library, store, stored, made))


def generate(live: LiveBackbone, count: int) -> list[int]:
    live.backbone.context.clear()
    guessing = Guessing(SelfDraft(live.backbone, live.port.left_out), AlwaysRule(4))
    session = Session(live.backbone, guessing=guessing, on_pass=live.port.ledger.count_pass)
    session.append(Tokenizer(live.backbone.model).encode(PROMPT))
    sampler = Sampler(live.backbone.model.library, SamplingSettings())
    try:
        return list(session.generate(sampler, count, lambda token: False))
    finally:
        sampler.close()
        session.close()


def trips_of(live: LiveBackbone, count: int = 12) -> int:
    before = live.port.ledger.trips
    generate(live, count)
    return live.port.ledger.trips - before


def test_cells_are_swapped_under_decoding(model: ModelParts, tmp_path: Path) -> None:
    async def test() -> None:
        with ExitStack() as stack:
            home = opened(stack, model, tmp_path, 'home_memory = "100%"\n')
            shapes = home.shapes
            sets = [
                HomeSet(),
                HomeSet.whole([0, 3], shapes),
                HomeSet.of({layer: [1, 5, 9] for layer in shapes}),
                HomeSet.whole(shapes, shapes),
                HomeSet.whole([1], shapes) | HomeSet.of({2: range(6)}),
            ]
            async with backbone(model, home) as live:
                expected = await live.in_thread(generate, live, 40)
                swaps, found = 0, list[int]()

                async def swap(scope: trio.CancelScope) -> None:
                    nonlocal swaps
                    with scope:
                        while True:
                            cells = await trio.to_thread.run_sync(home.cells_for, sets[swaps % len(sets)])
                            live.port.set_home(cells)
                            swaps += 1
                            await trio.sleep(0.002)

                scope = trio.CancelScope()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(swap, scope)
                    while swaps < 60:
                        found = await live.in_thread(generate, live, 40)
                        assert found == expected
                    scope.cancel()

    run(test, seconds=60)


def test_what_is_lacking_is_fetched_and_kept(
    model: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.05)
    lines: list[str] = []

    async def test() -> None:
        with ExitStack() as stack:
            home = opened(stack, model, tmp_path, 'home_memory = "50%"\n', with_file=False)
            assert home.choice.lacking == home.choice.wanted and experts_of(home) == {}
            async with backbone(model, home) as live:
                plain = await live.in_thread(trips_of, live)
                async with keep_home(home, live, lines.append) as keeper:
                    while not lines:
                        await trio.sleep(0.02)
                    assert await live.in_thread(trips_of, live) < plain * 0.7
                    report = keeper.as_dict()
                    assert report["at_home_bytes"] == report["bytes"] and report["changes"]
        assert "fetched" in lines[0] and "complete" in lines[0]
        stored = home.stored
        assert read_heat(stored, shapes_of(stored.manifest)).tokens > 12  # what was chosen meanwhile is kept
        with ExitStack() as stack:  # next time they are at home from the beginning
            text = f'[backbone]\nmodel = "{stored.model_id[:12]}"\nhome_memory = "50%"\n'
            made = parse_config(text, tmp_path / "node.toml", tmp_path / "store")
            again = stack.enter_context(open_home(model.library, Store(tmp_path / "store"), stored, made))
            assert not again.choice.lacking and experts_of(again) == again.choice.wanted.experts()

    run(test, seconds=60)


def test_a_new_plan_and_new_heat_change_what_is_at_home(
    model: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    clock = [0.0]
    lines: list[str] = []

    async def until(reached: Callable[[], bool]) -> None:
        while not reached():
            await trio.sleep(0.01)

    async def test() -> None:
        with ExitStack() as stack:
            home = opened(stack, model, tmp_path, 'home_memory = "20%"\n')
            assert home.choice.by == "default order"
            async with backbone(model, home) as live, trio.open_nursery() as nursery:
                keeper = HomeKeeper(home, live, lines.append, now=lambda: clock[0])
                nursery.start_soon(keeper.run)
                # The user makes a plan while the node runs.
                write_plan(home.stored, hot_plan(model))
                clock[0] += watching.KEEP_SECONDS
                await until(lambda: bool(lines))
                assert "new plan" in lines[0]
                before = keeper.wanted
                assert len(before.experts()) == 4 and not before.whole_layers(home.shapes)
                # Now other experts are chosen than in the plan's text, as widely: the last ones most.
                chances = np.array(HOT[::-1]) / sum(HOT)
                rng = np.random.default_rng(0)
                for _ in range(250):
                    for layer in range(4):
                        live.port.heat.note(layer, 0, rng.choice(12, (100, 2), p=chances).astype(np.int32))
                clock[0] += LEAST_AGE + 1
                await trio.sleep(0.2)
                for _ in range(5):
                    clock[0] += STEP_SECONDS
                    await trio.sleep(0.1)
                assert keeper.wanted != before
                held_now = keeper.wanted.experts()
                assert all(11 in held_now[layer] for layer in held_now)
                assert keeper.wanted.n_bytes(home.shapes) <= (home.budget or 0)
                assert all("\n" not in line for line in lines) and len(lines) == len(keeper.changes)
                for layer, experts in held_now.items():
                    assert live.table.holders(layer, 0).holders[0].held == sum(1 << each for each in experts)
                nursery.cancel_scope.cancel()

    run(test, seconds=60)


def test_plans_that_break_in_use_are_told_and_stop_nothing(
    model: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    clock = [0.0]
    lines: list[str] = []

    async def test() -> None:
        with ExitStack() as stack:
            home = opened(stack, model, tmp_path, 'home_memory = "50%"\n')
            async with backbone(model, home) as live, trio.open_nursery() as nursery:
                keeper = HomeKeeper(home, live, lines.append, now=lambda: clock[0])
                nursery.start_soon(keeper.run)
                write_plan(home.stored, plan_for(model)).write_bytes(b"{")
                clock[0] += watching.KEEP_SECONDS
                while not lines:
                    await trio.sleep(0.01)
                assert "is no home plan" in lines[0] and "panal home plan" in lines[0]
                assert len(await live.in_thread(generate, live, 8)) == 8
                nursery.cancel_scope.cancel()

    run(test, seconds=60)
