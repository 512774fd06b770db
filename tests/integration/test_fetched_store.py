"""Fetched cells in the store: what is proven, damaged, forgotten, and who may write."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from node.home import cell_file
from node.home.call_bits import cells_of
from node.home.fetched import FetchedCells
from node.model.gguf.writer import DISK_MARGIN_BYTES
from node.serve.cells import Cells
from routing.errors import LocalError
from tests.cell_sources import Swarm, assert_right, everything, served_whole
from tests.model_parts import ModelParts
from tests.served import cells_of as served_cells
from tests.served import run

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def fetched_folder(model: ModelParts, folder: Path, wanted: Mapping[int, Iterable[int]]) -> None:
    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_whole(model, range(model.manifest.calls[0].n_experts)))
            with FetchedCells(folder, model.manifest) as into:
                assert not (await swarm.fetch(into, wanted)).missing

    run(test)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Files that were read through."""
    files: list[str] = []
    look = cell_file.CellFile.look

    def noted(file: cell_file.CellFile) -> None:
        files.append(file.path.name)
        look(file)

    monkeypatch.setattr(cell_file.CellFile, "look", noted)
    yield files


def test_what_was_proven_is_not_read_again(model: ModelParts, folder: Path, looked: list[str]) -> None:
    fetched_folder(model, folder, {0: range(12), 2: [5]})
    with FetchedCells(folder, model.manifest) as into:
        assert not looked and into.bits((0, 0)) == 0xFFF and into.bits((2, 0)) == 1 << 5
    file = folder / "cells" / "2-exps.cells"
    assert file.stat().st_blocks * 512 < file.stat().st_size  # holes take no room
    os.utime(file)  # touched by somebody: believed only after another look
    with FetchedCells(folder, model.manifest) as into:
        assert looked == ["2-exps.cells"] and into.bits((2, 0)) == 1 << 5
    (folder / "cells" / "seals.json").write_bytes(b"{nonsense")
    with FetchedCells(folder, model.manifest, writable=False) as into:
        assert len(looked) == 3 and into.bits((0, 0)) == 0xFFF
    with FetchedCells(folder, model.manifest) as into:
        assert len(looked) == 5
    with FetchedCells(folder, model.manifest) as into:
        assert len(looked) == 5 and into.bits((0, 0)) == 0xFFF


def test_damaged_bytes_are_not_held(model: ModelParts, folder: Path) -> None:
    fetched_folder(model, folder, {0: range(12)})
    file = folder / "cells" / "0-exps.cells"
    with file.open("r+b") as opened:
        opened.seek(3 * model.manifest.calls[0].tensors[0].bytes_per_expert + 7)
        byte = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte[0] ^ 1]))
    with FetchedCells(folder, model.manifest) as into:
        assert into.bits((0, 0)) == 0xFFF & ~(1 << 3)
    file.write_bytes(file.read_bytes()[:-1])  # cut short: begun anew
    with FetchedCells(folder, model.manifest, writable=False) as into:
        assert into.bits((0, 0)) == 0
    with FetchedCells(folder, model.manifest) as into:
        assert into.bits((0, 0)) == 0 and into.n_bytes == 0


def test_forgotten_cells_are_gone_and_runs_in_use_stay(parts: Parts, folder: Path, looked: list[str]) -> None:
    model = parts("grovemoe")
    layers = sorted(everything(model))
    first, last = layers[0], layers[-1]
    fetched_folder(model, folder, {first: range(8), last: range(4)})
    cells = Cells()
    with FetchedCells(folder, model.manifest) as into:
        into.add_to(cells)
        before = into.n_bytes
        wanted = cells_of(model.manifest, {first: range(8)})
        gone = into.forget({first: [0, 1, 2], last: range(4)})
        # Chunk experts serve two experts each: that of 2 and 3 stays.
        assert into.bits((first, 0)) == 0b11111000 and into.bits((first, 1)) == 0b1110
        assert into.bits((last, 0)) == into.bits((last, 1)) == 0
        assert gone == before - into.n_bytes > 0
        assert not (folder / "cells" / f"{last}-exps.cells").exists()
        assert_right(model, into, cells_of(model.manifest, {first: range(3, 8)}))
        # The old runs still compute the right bytes.
        for (layer, index), _bits in wanted.items():
            held = cells.find(bytes.fromhex(into.model_id), layer, index)
            call = model.manifest.call(layer, index)
            assert held is not None and call is not None
            for tensor in call.tensors:
                old = held.runs[0].tensors[tensor.role].data
                assert old.tobytes() == model.held[layer, call.group].tensors[tensor.role].data.tobytes()
    looked.clear()
    with FetchedCells(folder, model.manifest) as into:
        assert not looked and into.bits((first, 0)) == 0b11111000
        assert into.forget({first: range(8)}) > 0 and into.n_bytes == 0
        with pytest.raises(LocalError, match="no such layer"):
            into.forget({999: [0]})


def test_one_process_writes(model: ModelParts, folder: Path) -> None:
    fetched_folder(model, folder, {0: [1]})
    with FetchedCells(folder, model.manifest):
        with pytest.raises(LocalError, match="another panal fetches") as caught:
            FetchedCells(folder, model.manifest)
        assert "\n" not in str(caught.value)
        with FetchedCells(folder, model.manifest, writable=False) as reading:
            assert reading.bits((0, 0)) == 0b10
    with FetchedCells(folder, model.manifest):
        pass


def test_a_decoding_side_takes_what_has_come_meanwhile(model: ModelParts, folder: Path) -> None:
    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(12)]))
            with FetchedCells(folder, model.manifest) as into:
                cells = Cells()
                for experts in ([3], [1, 3, 7], range(12)):
                    await swarm.fetch(into, {1: experts})
                    into.add_to(cells)
                    held = cells.find(bytes.fromhex(into.model_id), 1, 0)
                    assert held is not None and held.experts() == sorted(experts) and len(held.runs) == 1
                assert held is not None and held.is_whole
                chosen = Cells()
                into.add_to(chosen, cells_of(model.manifest, {1: [2, 5]}))
                held = chosen.find(bytes.fromhex(into.model_id), 1, 0)
                assert held is not None and held.experts() == [2, 5]

    run(test)


def test_no_room_is_said_before_anything_is_asked(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = model.manifest.expert_bytes + DISK_MARGIN_BYTES - 1
    usage = type(shutil.disk_usage("/"))(0, 0, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(12)]))
            with FetchedCells(folder, model.manifest) as into:
                with pytest.raises(LocalError, match="make room") as caught:
                    await swarm.fetch(into)
                assert "\n" not in str(caught.value) and into.n_bytes == 0
                assert (await swarm.fetch(into, {0: range(12)})).cells == 12

    run(test)


def test_a_disk_that_gets_full(model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 10 * model.manifest.calls[0].bytes_per_cell + 1000
    pwrite = os.pwrite

    def limited(fd: int, data: memoryview, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = pwrite(fd, data[:room], offset)
        room -= written
        return written

    monkeypatch.setattr(os, "pwrite", limited)

    async def test() -> None:
        nonlocal room
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(12)]))
            with FetchedCells(folder, model.manifest) as into:
                with pytest.raises(LocalError, match="No space left") as caught:
                    await swarm.fetch(into)
                assert "\n" not in str(caught.value)
            with FetchedCells(folder, model.manifest) as into:
                kept = sum(into.bits((layer, 0)).bit_count() for layer in range(4))
                assert 5 <= kept <= 10
                room = 1 << 40
                assert (await swarm.fetch(into)).cells == 48 - kept
                assert_right(model, into, cells_of(model.manifest, everything(model)))

    run(test)
