"""What is at home and in files, attacked: threads, a second process, damage, sources that cheat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from node.decode.drafting.experience import FILE_NAME, read_acceptance
from node.home import watching
from node.home.call_bits import cells_of
from node.home.fetch import fetch_cells
from node.home.fetched import FetchedCells
from node.home.incoming import WrongBytes
from node.home.plan_file import write_plan
from node.home.watching import HomeKeeper
from node.serve.cell_server import CellServer, read_blob
from node.serve.cells import Cells
from node.share import sending
from routing.wire import cells as wire
from tests.cell_sources import FAST, everything, sharing
from tests.integration.test_home_opening import plan_for
from tests.integration.test_home_watching import backbone, opened
from tests.model_parts import ModelParts
from tests.served import cells_of as served_cells
from tests.served import connected, run

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def blob_of(model: ModelParts, expert: int) -> bytes:
    """An expert's bytes as a peer sends them, of layer 0."""
    held = served_cells(model, [range(12)]).find(bytes.fromhex(model.stored.model_id), 0, 0)
    assert held is not None
    size = held.call.bytes_per_cell
    return read_blob(held, wire.CellsRequest(bytes(32), 0, 0, 0, expert, 1, 0, size))


def test_taking_home_while_another_layer_begins_to_come(model: ModelParts, tmp_path: Path) -> None:
    """HomeKeeper takes home on a thread (`cells_for`, `add_to`) while the fetch on the loop makes files."""
    wanted = cells_of(model.manifest, everything(model))
    errors: list[BaseException] = []
    for attempt in range(30):
        with FetchedCells(tmp_path / str(attempt), model.manifest) as into:
            into.incoming((0, 0), 0, 1)
            over = threading.Event()

            def take_home(into: FetchedCells = into, over: threading.Event = over) -> None:
                try:
                    while not over.is_set():
                        into.add_to(Cells(), wanted)
                except BaseException as error:  # noqa: BLE001 - raised again below
                    errors.append(error)

            thread = threading.Thread(target=take_home)
            thread.start()
            for layer in (1, 2, 3):
                into.incoming((layer, 0), 0, 1)
                over.wait(0.0005)
            over.set()
            thread.join()
        if errors:
            raise errors[0]


def test_experts_complete_before_a_wrong_one_are_kept(model: ModelParts, folder: Path) -> None:
    """Rule 4 of node.home.fetch: what is complete and right is kept whatever happens after."""
    good = blob_of(model, 0)
    with FetchedCells(folder, model.manifest) as into:
        incoming = into.incoming((0, 0), 0, 2)
        with pytest.raises(WrongBytes):
            incoming.take(memoryview(good + bytes(len(good))))
        assert incoming.complete == [0]


def test_what_a_second_process_uses_is_not_written_over(model: ModelParts, folder: Path) -> None:
    """One process fetches, another has opened the same store for reading and computes with what is there."""
    good = blob_of(model, 0)
    with FetchedCells(folder, model.manifest) as writer:
        # A right expert and a wrong one in a chunk: the writer counts neither, the first is in the file.
        with pytest.raises(WrongBytes):
            writer.incoming((0, 0), 0, 2).take(memoryview(good + bytes(len(good))))
        with FetchedCells(folder, model.manifest, writable=False) as reader:
            if not reader.bits((0, 0)) & 1:
                return  # not believed: then nothing is at stake
            cells = Cells()
            reader.add_to(cells)
            held = cells.find(bytes.fromhex(reader.model_id), 0, 0)
            assert held is not None and held.experts() == [0]
            whole = wire.CellsRequest(bytes(32), 0, 0, 0, 0, 1, 0, len(good))
            assert read_blob(held, whole) == good
            if not writer.bits((0, 0)) & 1:
                # The next source is hostile, too: its bytes are in the reader's map before they are proven.
                with pytest.raises(WrongBytes):
                    writer.incoming((0, 0), 0, 1).take(memoryview(b"\x55" * len(good)))
            assert read_blob(held, whole) == good


DEEP = b'{"0-exps.cells":' + b'{"a":' * 100_000


def test_nested_guesses_count_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"sources":' + b'{"a":' * 100_000)
    read_acceptance(tmp_path)


def test_nested_seals_count_as_none(model: ModelParts, folder: Path) -> None:
    (folder / "cells").mkdir(parents=True)
    (folder / "cells" / "seals.json").write_bytes(DEEP)
    with FetchedCells(folder, model.manifest):
        pass


def test_the_lock_is_given_up_when_opening_fails(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(seals: object) -> dict[str, object]:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("node.home.seals.Seals._read", broken)
        with pytest.raises(MemoryError):
            FetchedCells(folder, model.manifest)
    with FetchedCells(folder, model.manifest):
        pass


def test_what_a_kill_left_half_copied_goes_again(model: ModelParts, folder: Path) -> None:
    """kill -9 in `CellFile.without` (forget) leaves a copy as large as what the layer had."""
    with FetchedCells(folder, model.manifest) as into:
        incoming = into.incoming((0, 0), 0, 1)
        incoming.take(memoryview(blob_of(model, 0)))
        into.note((0, 0), incoming.complete)
    left = folder / "cells" / ".0-exps.cells.deadbeef"  # as `without` names it
    left.write_bytes(bytes(1 << 20))
    with FetchedCells(folder, model.manifest):
        pass
    assert not left.exists()


def test_who_does_not_read_loses_its_place(model: ModelParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller asks for more than its window holds and reads nothing: 8 such callers stop the server."""
    monkeypatch.setattr(sending, "IDLE_SECONDS", 0.3)
    cells = served_cells(model, [range(12)])
    size = min(12 * model.manifest.calls[0].bytes_per_cell, wire.MAX_CHUNK_BYTES)
    ahead = wire.encode_request(
        wire.CellsRequest(bytes.fromhex(model.stored.model_id), 0, 0, 1, 0, 12, 0, size)
    )

    async def test() -> None:
        server = CellServer(cells, rate=FAST)
        async with sharing(server.serve) as endpoint, connected(endpoint) as connection:
            stream = connection.open_stream(wire.PROTOCOL_ID)
            count = 4 + (6 << 20) // size
            for _ in range(count):
                await stream.send_message(ahead)
            with trio.fail_after(
                15
            ):  # as fast as a busy machine sends what the window holds, then the idle time
                while not server.is_busy:
                    await trio.sleep(0.01)
                while server.is_busy:
                    await trio.sleep(0.01)
            assert 0 < server.counts.sent_bytes < count * size, "all was sent: the window was never full"
            assert server.counts.refused == 0 and connection.is_open
            stream.reset()

    run(test)


def test_what_a_new_plan_wants_is_fetched_at_once(
    model: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan comes while another set is being fetched: `_want` cancels that, whose end puts off the next."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watching, "fetch_cells", partial(fetch_cells, rate=50_000))  # it takes its time
    clock = [0.0]
    lines: list[str] = []

    async def until(reached: Callable[[], bool]) -> None:
        while not reached():
            await trio.sleep(0.01)

    async def test() -> None:
        with ExitStack() as stack:
            home = opened(stack, model, tmp_path, 'home_memory = "50%"\n', with_file=False)
            async with backbone(model, home) as live, trio.open_nursery() as nursery:
                keeper = HomeKeeper(home, live, lines.append, now=lambda: clock[0])
                nursery.start_soon(keeper.run)
                await until(lambda: keeper._fetching is not None)
                first = keeper._fetching
                write_plan(home.stored, plan_for(model))
                clock[0] += watching.KEEP_SECONDS
                await until(lambda: any("new plan" in line for line in lines))
                assert home.lacks(keeper.wanted)
                with trio.move_on_after(1.5):
                    await until(lambda: keeper._fetching not in (None, first))
                started = keeper._fetching not in (None, first)
                nursery.cancel_scope.cancel()
            assert started

    run(test)
