"""`panal generate` killed while it fetches: what was proven stays, what was not is held by nobody."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio

from node.engine.kernels import Kernels
from node.home.fetched import FetchedCells
from node.importing import import_model
from node.model.store import Store
from node.serve.cell_server import CellServer
from node.serve.server import ExpertServer
from routing.wire import cells as wire
from tests.cell_sources import assert_right
from tests.model_parts import ModelParts
from tests.served import address_of, cells_of, handlers_of, listening, run
from tests.swarm_process import PANAL, Home

Parts = Callable[..., ModelParts]

RATE = 1_500_000
"""Bytes a second: all of the demo model's experts take 4 s."""


def assert_nothing_unproven(model: ModelParts, folder: Path) -> None:
    """Every place of every file holds its expert, or nothing."""
    for call in model.manifest.calls:
        path = folder / "cells" / f"{call.layer}-{call.group}.cells"
        if not path.exists():
            continue
        data = np.frombuffer(path.read_bytes(), np.uint8)
        start = 0
        for tensor in call.tensors:
            right = model.held[call.layer, call.group].tensors[tensor.role].data
            places = data[start : start + len(right)]
            assert np.all((places == right) | (places == 0))
            start += -(-len(right) // 4096) * 4096


@pytest.mark.slow
def test_a_real_generate_killed_in_the_middle_of_a_fetch(parts: Parts, tmp_path: Path) -> None:
    model = parts("demo")
    store = Store(tmp_path / "store")
    path = tmp_path / "model.gguf"
    path.write_bytes(model.path.read_bytes())
    stored = import_model(model.library, store, path)
    path.unlink()  # the trunk is here, its experts are not
    cells = cells_of(model, [range(12)])
    said = tmp_path / "said"

    def there() -> dict[tuple[int, int], int]:
        """What another process that reads the same files finds, and computes with."""
        with FetchedCells(stored.folder, model.manifest, writable=False) as reader:
            found = {(call.layer, 0): reader.bits((call.layer, 0)) for call in model.manifest.calls}
            assert_right(model, reader, {key: bits for key, bits in found.items() if bits})
            return found

    def count(bits: dict[tuple[int, int], int]) -> int:
        return sum(each.bit_count() for each in bits.values())

    async def killed_with(config: Path, cells: int) -> dict[tuple[int, int], int]:
        """What was there at least when a `panal generate` was killed, which had so many cells."""
        command = [*PANAL, "generate", "-c", str(config), "-p", "def f(x):\n", "-n", "100000", "--json"]
        with said.open("wb") as stderr:
            process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            while count(before := await trio.to_thread.run_sync(there)) < cells:
                assert process.poll() is None, "it ended before it was killed"
                await trio.sleep(0.02)
            while cells == 48 and "complete" not in said.read_text(encoding="utf-8"):
                assert process.poll() is None, "it ended before it was done"
                await trio.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        return before

    async def test(server: ExpertServer) -> None:
        handlers = handlers_of(server) | {wire.PROTOCOL_ID: CellServer(cells, rate=RATE).serve}
        async with listening(handlers) as endpoint:
            home = Home(
                tmp_path / "asking",
                tmp_path / "store",
                model.path,
                peers=[str(address_of(endpoint))],
                rest=f'[backbone]\nmodel = "{stored.model_id}"\ncontext = 100000\nhome_memory = "100%"\n',
            )
            reached = 0
            for wanted in (6, 20):
                before = await killed_with(home.config, max(wanted, reached + 1))
                assert_nothing_unproven(model, stored.folder)
                after = there()
                assert all(after[key] & bits == bits for key, bits in before.items())
                reached = count(after)
                assert reached < 48
            # It goes on where it was: only what is lacking is fetched.
            assert count(await killed_with(home.config, 48)) == 48
            assert f"home set: {48 - reached} experts fetched" in said.read_text(encoding="utf-8")
            assert_nothing_unproven(model, stored.folder)
            others = [path.name for path in (stored.folder / "cells").iterdir() if path.suffix != ".cells"]
            assert sorted(others) == ["lock", "seals.json"]

    kernels = Kernels(model.library, threads=1)
    server = ExpertServer(cells, kernels, name="test")
    try:
        run(test, server, seconds=90)
    finally:
        server.close()
        kernels.close()
