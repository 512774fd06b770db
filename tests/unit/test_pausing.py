"""A node that pauses: the file, the clock, what else the device is used for, and who is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from node.config import DeviceConfig
from node.device.device_use import CALM_SECONDS, Seen
from node.device.effect import REFUSAL, PauseEffect
from node.device.folder import NodeFolder
from node.device.pause_file import read_pause
from node.device.pause_rules import PauseState, Reason
from node.device.pausing import LOOK_SECONDS, Pausing
from node.device.probing import Probe
from node.device.schedule import Schedule
from routing.errors import LocalError

MONDAY_NOON = 1796040000.0


class Clock:
    """Unix time that passes with trio's."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        try:
            return MONDAY_NOON + trio.current_time() + self.ahead
        except RuntimeError:
            return MONDAY_NOON + self.ahead


class World:
    """A paused or serving node's surroundings."""

    def __init__(self, folder: Path) -> None:
        self.folder = NodeFolder(folder)
        self.clock = Clock()
        self.states: list[PauseState] = []

    def pausing(self, probe: Probe | None = None, **device: object) -> Pausing:
        config = DeviceConfig(**device)  # type: ignore[arg-type]
        return Pausing(self.folder, config, self.states.append, probe=probe, clock=self.clock)

    def run(self, pausing: Pausing, then: Callable[[], Awaitable[None]]) -> None:
        """Run it beside `then`, whose end ends it; time flies."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(pausing.run)
                await then()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_pause_outlives_the_process(world: World) -> None:
    world.pausing().pause(3600)
    again = world.pausing()
    assert again.state.paused and again.state.until == MONDAY_NOON + 3600
    world.clock.ahead = 3601
    assert not again.state.paused
    world.pausing().pause()
    assert world.pausing().state.text == "by hand"
    world.pausing().resume()
    assert not world.pausing().state.paused and not world.folder.pause.exists()


def test_a_damaged_file_is_a_pause(world: World) -> None:
    for content in ("", "{", '{"since": "x"}', "[" * 2000):
        world.folder.pause.write_text(content)
        assert world.pausing().state.paused
    world.pausing().resume()
    assert not world.pausing().state.paused


def test_who_is_told(world: World) -> None:
    pausing = world.pausing()

    async def then() -> None:
        assert [state.paused for state in world.states] == [False]
        pausing.pause(60)
        assert [state.paused for state in world.states] == [False, True], "at once"
        pausing.pause(120)
        assert world.states[-1].until == world.clock() + 120, "another end is news, too"
        await trio.sleep(120 + 2 * LOOK_SECONDS)
        assert [state.paused for state in world.states] == [False, True, True, False]

    world.run(pausing, then)


def test_another_process_pauses_it_by_the_file(world: World) -> None:
    pausing = world.pausing()

    async def then() -> None:
        world.pausing().pause()
        await trio.sleep(2 * LOOK_SECONDS)
        assert pausing.state.by_hand
        world.pausing().resume()
        await trio.sleep(2 * LOOK_SECONDS)
        assert not pausing.state.paused

    world.run(pausing, then)


def test_a_schedule(world: World) -> None:
    pausing = world.pausing(schedule=Schedule.parse(["daily 00:00-24:00"]))
    assert not pausing.state.paused
    never = world.pausing(schedule=Schedule.parse(["sun 03:00-03:01"]))
    assert never.state.reasons == (Reason.SCHEDULE,)
    never.resume()
    assert never.state.paused


class Busy(Probe):
    """A device on which somebody types."""

    idle: bool | None = False

    def look(self) -> Seen:
        return Seen(session_idle=self.idle)


def test_only_while_idle(world: World) -> None:
    probe = Busy()
    pausing = world.pausing(probe, idle_only=True)

    async def then() -> None:
        assert pausing.state.reasons == (Reason.IN_USE,), "before it serves at all"
        probe.idle = True
        await trio.sleep(CALM_SECONDS + 10)
        assert not pausing.state.paused

    world.run(pausing, then)


def test_a_system_that_tells_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    probe = Busy()
    probe.idle = None
    pausing = world.pausing(probe, idle_only=True)

    async def then() -> None:
        assert not pausing.state.paused
        assert "tells nothing of its use" in caplog.text

    world.run(pausing, then)


def test_a_folder_that_is_not_there_yet(world: World) -> None:
    world.folder = NodeFolder(world.folder.root / "new")
    world.pausing().pause()
    assert read_pause(world.folder.pause) is not None


def test_a_folder_that_cannot_be_written(world: World) -> None:
    (world.folder.root / "file").write_text("")
    world.folder = NodeFolder(world.folder.root / "file")
    pausing = world.pausing()
    with pytest.raises(LocalError, match="can't be written"):
        pausing.pause()
    assert pausing.state.paused, "all the same"


class Part:
    def __init__(self) -> None:
        self.said: list[str] = []

    def pause(self, text: str) -> None:
        self.said.append(text)

    def resume(self) -> None:
        self.said.append("")


class Node:
    announced = 0

    def offer_changed(self) -> None:
        self.announced += 1


def test_the_effect(world: World) -> None:
    node, early, late = Node(), Part(), Part()
    effect = PauseEffect(node)
    effect.serve(early, None)
    pausing = world.pausing()
    effect.take(pausing.pause())
    effect.take(pausing.pause(60))
    effect.serve(late)
    assert (early.said, late.said, node.announced) == (["", REFUSAL], [REFUSAL], 1)
    effect.take(pausing.resume())
    assert (early.said, late.said, node.announced) == (["", REFUSAL, ""], [REFUSAL, ""], 2)
    assert "hand" not in REFUSAL, "why is nobody else's business"
