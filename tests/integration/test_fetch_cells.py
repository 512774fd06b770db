"""Cells over real sockets: fetched ones compute what the whole file computes, whoever sends what."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from node.engine.gate import LocalExperts
from node.home.call_bits import cells_of
from node.home.fetch import FetchProgress
from node.home.fetched import FetchedCells
from node.home.incoming import WrongBytes
from node.serve import cell_server
from node.serve.cell_server import CellServer
from node.serve.cells import Cells
from node.share import fetch
from routing.quic.endpoint import Handler
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import cells as wire
from routing.wire.experts import RefusalCode
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION
from tests.cell_sources import Swarm, assert_right, everything, served_whole
from tests.model_parts import ModelParts, rows
from tests.served import address_of, connected, listening, run
from tests.served import cells_of as served_cells

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


# --- fetching ---


@pytest.mark.parametrize("name", ["demo", "grovemoe", "gpt-oss"])
def test_all_cells_from_two_sources(parts: Parts, folder: Path, name: str) -> None:
    model = parts(name)

    async def test() -> None:
        swarm = Swarm(model)
        count = model.manifest.calls[0].n_experts
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_whole(model, range(count)))
            await swarm.add(stack, served_whole(model, range(count // 2)))
            with FetchedCells(folder, model.manifest) as into:
                seen: list[FetchProgress] = []
                result = await swarm.fetch(into, on_progress=seen.append)
                total = sum(call.n_experts for call in model.manifest.calls)
                assert (result.cells, result.missing, result.dropped) == (total, {}, {})
                assert sum(result.by_peer.values()) == model.manifest.expert_bytes == into.n_bytes
                assert seen[-1].cells == seen[-1].all_cells == total
                assert seen[-1].n_bytes == seen[-1].all_bytes == model.manifest.expert_bytes
                assert_right(model, into, cells_of(model.manifest, everything(model)))

    run(test)


def test_a_backbone_decodes_with_fetched_cells(model: ModelParts, folder: Path) -> None:
    """Whole layers fetched, the rest from the file: logits are those of the whole file, byte by byte."""

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(12)]))
            with FetchedCells(folder, model.manifest) as into:
                await swarm.fetch(into, {0: range(12), 3: range(12)})
                cells = Cells()
                into.add_to(cells)
                held = dict(model.held)
                for layer in (0, 3):
                    found = cells.find(bytes.fromhex(into.model_id), layer, 0)
                    assert found is not None and found.is_whole
                    held[layer, "exps"] = found.runs[0]
                tokens = rows(model.tokens(9))
                with model.backbone(LocalExperts(model.kernels, held)) as backbone:
                    mine = backbone.run(tokens)
                with model.backbone() as backbone:
                    whole = backbone.run(tokens)
                assert mine.tobytes() == whole.tobytes()

    run(test)


@pytest.mark.parametrize("chunk", [1 << 10, 30_000, 512 << 10])
def test_cells_in_many_chunks_and_many_cells_in_one(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(fetch, "ASK_BYTES", chunk)

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(5), range(5, 12)]))
            with FetchedCells(folder, model.manifest) as into:
                wanted = {1: (0, 3, 4, 5, 6, 7, 11)}
                result = await swarm.fetch(into, wanted)
                assert result.cells == 7 and not result.missing
                assert_right(model, into, cells_of(model.manifest, wanted))
                # What is there is not fetched again.
                again = await swarm.fetch(into, {1: range(3, 9)})
                assert (again.cells, into.bits((1, 0))) == (1, 0b1001_1111_1001)

    run(test)


def test_what_nobody_has_is_said(model: ModelParts, folder: Path) -> None:
    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(4)]))
            with FetchedCells(folder, model.manifest) as into:
                result = await swarm.fetch(into, {0: range(6), 2: range(2)})
                assert (result.cells, result.missing) == (6, {(0, 0): 0b110000})

    run(test)


# --- sources that fail or lie ---


def lying(cells: Cells, spoil: Callable[[wire.CellsRequest, bytearray], None]) -> Handler:
    """A source that changes what it sends."""

    async def serve(stream: Stream) -> None:
        while True:
            try:
                asked = wire.decode_message(await stream.receive_message(wire.REQUEST_BYTES))
            except StreamClosed:
                return
            assert isinstance(asked, wire.CellsRequest)
            held = cells.find(asked.model_id, asked.layer, asked.call_index)
            assert held is not None
            data = bytearray(cell_server.read_blob(held, asked))
            spoil(asked, data)
            await stream.send_message(wire.encode_chunk_header(asked), data)

    return serve


def test_who_sends_wrong_bytes_is_dropped_and_named(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = served_cells(model, [range(12)])
    cell_bytes = model.manifest.calls[0].bytes_per_cell
    monkeypatch.setattr(fetch, "ASK_BYTES", 2 * cell_bytes)
    monkeypatch.setattr(fetch, "WINDOW_BYTES", 1)  # one request at a time: what is wasted can be counted

    def spoil(asked: wire.CellsRequest, data: bytearray) -> None:
        data[-1] ^= 1

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, cells, lying(cells, spoil))
            await swarm.add(stack, cells)
            with FetchedCells(folder, model.manifest) as into:
                result = await swarm.fetch(into)
                liar, honest = swarm.ids
                assert list(result.dropped) == [liar] and "wrong bytes" in result.dropped[liar]
                assert result.by_peer[liar] <= 2 * cell_bytes  # one chunk
                assert result.by_peer[honest] >= model.manifest.expert_bytes - 2 * cell_bytes
                assert not result.missing and result.cells == 48
                assert_right(model, into, cells_of(model.manifest, everything(model)))
            # Alone, it gives nothing, and nothing of it is held, now or later.
        async with AsyncExitStack() as stack:
            swarm = Swarm(model)
            await swarm.add(stack, cells, lying(cells, spoil))
            with FetchedCells(folder / "other", model.manifest) as into:
                result = await swarm.fetch(into, {0: [3]})
                assert (result.cells, result.missing) == (0, {(0, 0): 0b1000})
                assert (
                    "layer 0" in result.dropped[swarm.ids[0]] and "expert 3" in result.dropped[swarm.ids[0]]
                )
                assert into.bits((0, 0)) == 0
            with FetchedCells(folder / "other", model.manifest) as into:
                assert into.bits((0, 0)) == 0

    run(test)


@pytest.mark.slow
def test_other_kinds_of_bad_sources(model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "REPLY_SECONDS", 0.3)
    monkeypatch.setattr("node.share.work.FIRST_REST", 0.01)
    cells = served_cells(model, [range(12)])

    def replying(reply: Callable[[wire.CellsRequest], Sequence[bytes]]) -> Handler:
        async def serve(stream: Stream) -> None:
            asked = wire.decode_message(await stream.receive_message(wire.REQUEST_BYTES))
            assert isinstance(asked, wire.CellsRequest)
            for message in reply(asked):
                await stream.send_message(message)
            await trio.sleep(1)

        return serve

    def refusing(code: RefusalCode, missing: tuple[int, ...] = ()) -> Handler:
        return replying(
            lambda asked: (
                [wire.encode_refusal(wire.refusal_to(asked, code, "no\x1b[31m", missing=missing))] * 9
            )
        )

    bad = {
        "short": replying(lambda asked: [wire.encode_chunk_header(asked) + b"x"]),
        "long": replying(lambda asked: [bytes(600_000)]),
        "garbage": replying(lambda asked: [b"garbage" * 9]),
        "a request": replying(lambda asked: [wire.encode_request(asked)]),
        "silent": replying(lambda asked: []),
        "unknown": refusing(RefusalCode.UNKNOWN_MODEL),
        "malformed": refusing(RefusalCode.MALFORMED),
        "no call": refusing(RefusalCode.UNKNOWN_CALL),
        "not held": refusing(RefusalCode.NOT_HELD, (0, 1, 2)),
        "not held, unnamed": refusing(RefusalCode.NOT_HELD),
        "busy": refusing(RefusalCode.OVERLOADED),
    }

    async def test() -> None:
        for name, handler in bad.items():
            swarm = Swarm(model)
            async with AsyncExitStack() as stack:
                await swarm.add(stack, cells, handler)
                with FetchedCells(folder / name, model.manifest) as into:
                    result = await swarm.fetch(into, {0: range(3)})
                    assert result.cells == 0 and result.missing == {(0, 0): 0b111}, name
                    hostile = name in ("short", "long", "garbage", "a request")
                    assert list(result.dropped) == (swarm.ids if hostile else []), name
                    told = {**result.dropped, **result.given_up}
                    assert all("\x1b" not in text and "\n" not in text for text in told.values())
                    await swarm.add(stack, cells)
                    assert (await swarm.fetch(into, {0: range(3)})).cells == 3, name

    run(test, seconds=30)


def test_a_peer_that_does_not_share(model: ModelParts, folder: Path) -> None:
    async def test() -> None:
        async with listening({}) as endpoint, connected(endpoint) as connection:
            swarm = Swarm(model)
            told = Holdings(
                [VERSION], "", list(served_cells(model, [range(12)]).slices()), ["f32"], ["rows"], 512
            )
            swarm.table.connected(connection.peer_id, told)
            swarm.connections[connection.peer_id] = connection
            with FetchedCells(folder, model.manifest) as into:
                result = await swarm.fetch(into, {0: [0]})
                assert list(result.given_up) == [connection.peer_id] and result.missing

    run(test)


def test_a_source_that_goes_away(model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ASK_BYTES", 10_000)
    cells = served_cells(model, [range(12)])

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, cells)
            await swarm.add(stack, cells)
            leaving = swarm.connections[swarm.ids[0]]

            def leave(progress: FetchProgress) -> None:
                if progress.cells >= 5 and leaving.is_open:
                    leaving.shut(0, "gone")

            with FetchedCells(folder, model.manifest) as into:
                result = await swarm.fetch(into, on_progress=leave)
                assert not leaving.is_open
                assert result.cells == 48 and not result.missing and not result.dropped
                assert_right(model, into, cells_of(model.manifest, everything(model)))

    run(test)


def test_who_is_far_slower_than_another_is_not_waited_for(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.share.work.RATE_SECONDS", 0.5)
    monkeypatch.setattr("node.share.work.LEAST_RATE_SECONDS", 0.01)
    cells = served_cells(model, [range(12)])

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, cells, CellServer(cells, rate=60_000).serve)
            await swarm.add(stack, cells)
            with FetchedCells(folder, model.manifest) as into, trio.fail_after(25):
                result = await swarm.fetch(into)
            # It began with 2 MiB of the 5.7, which it would have sent for half a minute.
            slow, fast = swarm.ids
            assert result.cells == 48 and not result.missing and not result.given_up
            assert result.by_peer[slow] < 400_000 < result.by_peer[fast]

    run(test)


def test_a_large_expert_comes_through_a_file_without_a_name(
    model: ModelParts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.home.incoming.IN_MEMORY_BYTES", 10_000)
    monkeypatch.setattr(fetch, "ASK_BYTES", 30_000)
    places = folder / "cells"

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            await swarm.add(stack, served_cells(model, [range(12)]))
            with FetchedCells(folder, model.manifest) as into:
                assert (await swarm.fetch(into)).cells == 48
                assert_right(model, into, cells_of(model.manifest, everything(model)))
                assert {path.suffix for path in places.iterdir()} <= {".cells", ".json", ""}
                assert not list(places.glob(".*"))

    run(test)


def test_what_is_not_proven_is_in_no_place(model: ModelParts, folder: Path) -> None:
    call = model.manifest.calls[0]
    with FetchedCells(folder, model.manifest) as into:
        incoming = into.incoming((0, 0), 0, 2)
        file = folder / "cells" / "0-exps.cells"
        incoming.take(memoryview(b"x" * (call.bytes_per_cell - 1)))
        assert not any(file.read_bytes())
        with pytest.raises(WrongBytes):
            incoming.take(memoryview(b"x"))
        assert not any(file.read_bytes()) and not incoming.complete


FETCHER = """
import sys, trio
from pathlib import Path
from node.home.call_bits import cells_of
from node.home.fetch import fetch_cells
from node.home.fetched import FetchedCells
from node.model.manifest import decode_manifest
from routing.dispatch.holders import Holder, LayerHolders
from routing.multiaddr import PeerAddress
from tests.served import listening

async def main(address, folder):
    manifest = decode_manifest((folder / "manifest.json").read_bytes())
    async with listening({}) as client:
        connection = await client.connect(PeerAddress.parse(address))
        everything = {call.layer: range(call.n_experts) for call in manifest.calls}
        with FetchedCells(folder, manifest) as into:
            await fetch_cells(
                into, cells_of(manifest, everything), rate=1_500_000,
                holders=lambda layer, index: LayerHolders(layer, (Holder.of(connection.peer_id, range(12)),)),
                connection_to=lambda peer: connection,
                on_progress=lambda progress: print(progress.cells, flush=True),
            )

trio.run(main, sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_where_it_was(model: ModelParts, folder: Path) -> None:
    folder.mkdir()
    (folder / "manifest.json").write_bytes(model.manifest.encoded())

    async def test() -> None:
        swarm = Swarm(model)
        async with AsyncExitStack() as stack:
            endpoint = await swarm.add(stack, served_cells(model, [range(12)]))
            command = [sys.executable, "-c", FETCHER, str(address_of(endpoint)), str(folder)]
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            told = b""
            while not told.endswith(b"\n") or int(told.split()[-1]) < 8:
                told += await process.stdout.receive_some()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            at_least = int(told.split()[-1])
            assert at_least < 48
            with FetchedCells(folder, model.manifest) as into:
                kept = sum(into.bits((layer, 0)).bit_count() for layer in range(4))
                assert at_least <= kept < 48
                result = await swarm.fetch(into)
                assert (result.cells, result.missing) == (48 - kept, {})
                assert_right(model, into, cells_of(model.manifest, everything(model)))

    run(test, seconds=40)
