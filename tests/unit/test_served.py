"""What a node has served, counted in one place for every model that it sells, and kept over restarts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from node.market import served_memory
from node.market.served import KEEP_SECONDS, Served
from node.market.served_memory import ServedMemory, decoded
from node.market.served_rate import DAY, HALF_LIFE, ServedRate
from routing.errors import LocalError

MODEL, OTHER = "ab" * 32, "cd" * 32
ME = "me"


class World:
    """A server's surroundings: two clocks, what receipts cover, what is on offer."""

    def __init__(self, path: Path) -> None:
        self.path = path / "served.bin"
        self.now = 1_000.0
        self.unix = 1.8e9
        self.covered: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
        self.sold = {MODEL}

    def demand(self) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
        return self.covered

    def served(self, peer_id: str = ME) -> Served:
        """A process begins."""
        self.covered = {}
        memory = ServedMemory(self.path, peer_id)
        return Served(self, lambda: self.sold, memory, clock=lambda: self.now, wall=lambda: self.unix)

    def sign(self, *pairs: int, model: str = MODEL, layer: int = 0) -> None:
        """Callers sign for so much, by expert."""
        before = self.covered.get((model, layer), np.zeros(len(pairs), np.int64))
        self.covered[model, layer] = before + np.array(pairs)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.unix += seconds


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_model_that_is_sold_is_counted_from_the_beginning(world: World) -> None:
    served = world.served()
    world.sold.add(OTHER)
    world.wait(100)
    world.sign(30, 10)
    world.sign(5, model=OTHER, layer=3)
    assert served.a_day(MODEL)[0] == pytest.approx([30 * DAY / 100, 10 * DAY / 100])
    assert served.a_day(OTHER)[3] == pytest.approx([5 * DAY / 100])
    assert served.a_day("ef" * 32) == {}


def test_time_in_which_nothing_is_sold_says_nothing(world: World) -> None:
    served = world.served()
    world.wait(1_000)
    world.sign(500)
    rate = served.a_day(MODEL)[0]
    world.sold.clear()  # a pause
    world.wait(1)
    served.look()
    world.wait(8 * HALF_LIFE)
    assert served.a_day(MODEL)[0] == pytest.approx(rate, rel=0.01)
    world.sold.add(MODEL)
    served.look()
    world.wait(1_000)
    assert served.a_day(MODEL)[0] < 0.01 * rate, "what was asked lately counts the more after it"


def test_a_restart_goes_on_where_it_was(world: World) -> None:
    served = world.served()
    world.wait(600)
    world.sign(3_000, 0, 7)
    before = served.a_day(MODEL)[0]
    served.close()
    assert world.path.stat().st_mode & 0o777 == 0o600
    world.wait(HALF_LIFE)
    served = world.served()
    assert served.a_day(MODEL)[0] == pytest.approx(before, rel=1e-6)
    world.wait(300)
    world.sign(100)
    expected = (1_500 * 0.5 ** (300 / HALF_LIFE) + 100) / (300 * 0.5 ** (300 / HALF_LIFE) + 300) * DAY
    assert served.a_day(MODEL)[0][0] == pytest.approx(expected, rel=1e-6)
    assert served.a_day(MODEL)[0][1] == 0


def test_what_nobody_asked_for_long_is_forgotten(world: World) -> None:
    served = world.served()
    world.wait(600)
    world.sign(1_000)
    served.close()
    world.wait(9 * HALF_LIFE)
    assert world.served().a_day(MODEL) != {}
    world.wait(2 * HALF_LIFE)
    assert world.served().a_day(MODEL) == {}
    world.unix -= 30 * DAY  # the clock was put back
    assert world.served().a_day(MODEL) != {}


def test_it_is_written_down_every_two_minutes(world: World) -> None:
    served = world.served()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.run)
            await trio.sleep(KEEP_SECONDS * 1.5)
            assert not world.path.exists(), "nothing was served"
            world.wait(KEEP_SECONDS)
            world.sign(40)
            await trio.sleep(KEEP_SECONDS)
            while not world.path.exists():
                await trio.sleep(KEEP_SECONDS)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))
    assert world.served().a_day(MODEL)[0] == pytest.approx([40 * DAY / KEEP_SECONDS])


def test_another_nodes_record_is_not_taken(world: World, caplog: pytest.LogCaptureFixture) -> None:
    served = world.served()
    world.wait(60)
    world.sign(50)
    served.close()
    with caplog.at_level(logging.WARNING, "panal.market"):
        assert world.served("somebody").a_day(MODEL) == {}
    (record,) = caplog.records
    assert "the record of another node's work" in record.message and "\n" not in record.message
    assert world.served().a_day(MODEL) != {}, "the file is as it was"


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _turned(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def _long(data: bytes) -> bytes:
    return data + bytes(served_memory.MAX_BYTES)


@pytest.mark.parametrize("damage", [_cut, _turned, _long, lambda data: b"", lambda data: b"{}", bytes.upper])
def test_a_damaged_record_is_one_line_and_a_fresh_start(
    world: World, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    served = world.served()
    world.wait(60)
    world.sign(50)
    served.close()
    world.path.write_bytes(damage(world.path.read_bytes()))
    with caplog.at_level(logging.WARNING, "panal.market"):
        served = world.served()
    (record,) = caplog.records
    assert str(world.path) in record.message and "\n" not in record.message
    assert served.a_day(MODEL) == {}
    world.wait(60)
    world.sign(8)
    served.close()
    assert world.served().a_day(MODEL)[0] == pytest.approx([8 * DAY / 60]), "and is written anew"


def test_a_record_open_to_others_is_told_and_not_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    served = world.served()
    world.wait(60)
    world.sign(50)
    served.close()
    world.path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "panal.market"):
        assert world.served().a_day(MODEL) == {}
    assert "chmod 600" in caplog.text


def test_where_it_cannot_be_written_it_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.path = world.path.parent / "file" / "served.bin"
    world.path.parent.write_bytes(b"")
    served = world.served()
    with caplog.at_level(logging.WARNING, "panal.market"):
        for _ in range(2):
            world.wait(60)
            world.sign(50)
            served.close()
    (record,) = caplog.records
    assert "counted anew" in record.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": {"short": {"seconds": 1.0, "layers": {}}}},
        {"models": {MODEL: {"seconds": -1.0, "layers": {}}}},
        {"models": {MODEL: {"seconds": float("nan"), "layers": {}}}},
        {"models": {MODEL: {"seconds": 1.0, "layers": {-1: b""}}}},
        {"models": {MODEL: {"seconds": 1.0, "layers": {0: b"123"}}}},
        {"models": {MODEL: {"seconds": 1.0, "layers": {0: np.array([np.inf], "<f4").tobytes()}}}},
        {"models": {MODEL: {"seconds": 1.0, "layers": {0: np.array([-1], "<f4").tobytes()}}}},
        {"models": {MODEL: {"seconds": 1.0, "layers": {0: bytes(4 * 2**20)}}}},
        {"at": float("inf")},
        {"more": 1},
        {"peer": 1},
    ],
)
def test_what_a_record_says_is_looked_at(wrong: dict[str, object]) -> None:
    rest = msgspec.msgpack.encode({"peer": ME, "at": 0.0, "models": {}} | wrong)
    with pytest.raises(LocalError, match="record"):
        decoded(served_memory._HEAD + served_memory._digest(rest) + rest, ME, 0.0, 0.0)


def test_a_record_of_a_large_model_has_room(tmp_path: Path) -> None:
    memory = ServedMemory(tmp_path / "served.bin", ME)
    rate = ServedRate(0.0, 100.0, {layer: np.full(1024, 1e9) for layer in range(512)})
    data = memory.encoded({f"{number:064x}": rate for number in range(3)}, 5.0)
    assert len(data) < served_memory.MAX_BYTES
    small = memory.encoded({MODEL: ServedRate(0.0, 1.0, {layer: np.ones(128) for layer in range(48)})}, 5.0)
    assert len(small) < 25_500
    assert len(decoded(data, ME, 5.0, None)) == 3
