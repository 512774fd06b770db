"""A model fetched from nodes of this process: whole and in parts, from several, from liars, after an end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from node.engine.gate import LocalExperts
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.model.chunks import CHUNK_BYTES
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.types import ValueType
from node.model.gguf.values import GGUFValue
from node.model.held import hold
from node.model.slice_file import cut_slice, read_slice
from node.model.store import Store, StoredModel
from node.share import choosing, fetch, getting
from node.share.share_list import remove_share
from routing.errors import LocalError, PeerError
from routing.quic.endpoint import Endpoint
from routing.wire import cells as cells_wire
from routing.wire import model_files, model_list
from routing.wire.model_files import ModelFile
from routing.wire.model_list import Offer
from tests.model_parts import ModelParts, rows
from tests.served import run
from tests.share_sources import get, giving, make_model, share, with_metadata

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wide(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelParts]:
    """A model whose experts have several chunks, in a store that shares it as "wide"."""
    folder = tmp_path_factory.mktemp("wide")
    model = ModelParts(library, Store(folder / "store"), make_model(library, folder))
    share(library, model.store, model.path)
    yield model
    model.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else comes: no need to wait for them."""
    monkeypatch.setattr(choosing, "GATHER_SECONDS", 0.3)
    monkeypatch.setattr(choosing, "COVER_SECONDS", 0.5)
    monkeypatch.setattr(choosing, "REACH_SECONDS", 1.5)
    monkeypatch.setattr(getting, "AGAIN_SECONDS", 0.05)


def cut(model: ModelParts, target: Path, layers: range, experts: range) -> bytes:
    cut_slice(model.file, model.manifest.encoded(), model.stored.model_id, layers, experts, target)
    return target.read_bytes()


def assert_same_trunk(model: ModelParts, store: Store) -> StoredModel:
    """The same tensors and the same metadata as an import makes of the file."""
    stored = store.get(model.stored.model_id)
    assert stored.trunk.name == model.stored.trunk.name and stored.manifest == model.manifest
    mine, theirs = open_model(stored.trunk), open_model(model.stored.trunk)
    assert mine.metadata.keys() == theirs.metadata.keys() and mine.tensors.keys() == theirs.tensors.keys()
    with MappedModel(mine) as one, MappedModel(theirs) as other:
        for name in mine.tensors:
            assert one.tensor_view(name) == other.tensor_view(name), name
    return stored


def assert_nothing_left(folder: Path, store: Store) -> None:
    assert not list(folder.glob("*.part")) and not list((store.root / "getting").glob("*"))


def test_trunk_and_all_experts(wide: ModelParts, tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"

    async def test() -> None:
        async with giving(wide.store) as (sharing, endpoint):
            got = await get([endpoint], store, "WIDE", folder)  # names have no case
            assert (got.model_id, got.name) == (wide.stored.model_id, "wide")
            assert not got.lacking and not got.dropped and list(got.by_peer) == [endpoint.identity.peer_id]
            assert got.metadata_from == (endpoint.identity.peer_id,)
            sent = sharing.cells.counts.sent_bytes + sharing.models.counts.sent_bytes
            assert got.n_bytes == sent  # nothing came twice
            again = await get([endpoint], store, wide.stored.model_id[:8], folder)
            assert again.slices == got.slices and not again.n_bytes and again.trunk == got.trunk
            assert sharing.cells.counts.sent_bytes + sharing.models.counts.sent_bytes == sent

    run(test, seconds=60)
    stored = assert_same_trunk(wide, store)
    (path,) = folder.iterdir()
    assert path.name == f"{wide.stored.model_id[:12]}-layers-0-1-experts-0-3.gguf"
    assert path.read_bytes() == cut(wide, tmp_path / "cut.gguf", range(2), range(4))
    assert_nothing_left(folder, store)
    # What came computes what the model's own file computes.
    kernels = Kernels(wide.library, threads=1)
    with MappedModel(read_slice(path).file) as mapped:
        held = {
            (call.layer, call.group): hold(mapped, call, range(4), range(4)) for call in stored.manifest.calls
        }
        fetched = ModelParts.__new__(ModelParts)
        fetched.library, fetched.stored = wide.library, stored
        tokens = rows(wide.tokens(9))
        with (
            wide.backbone() as mine,
            fetched.backbone(LocalExperts(kernels, held)) as theirs,
        ):
            assert np.array_equal(mine.run(tokens), theirs.run(tokens))
        del held
    kernels.close()


@pytest.mark.parametrize("name", ["llama4", "gpt-oss", "grovemoe", "jamba@dense", "nomic-bert-moe"])
def test_models_of_other_kinds(
    library: Library, zoo_file: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """Hollow trunks, biases, chunk experts, recurrent ones, encoders: the trunk passes the gate without its
    experts, and the slices are those that would be cut."""
    path = tmp_path / "model.gguf"
    path.write_bytes(zoo_file(name).read_bytes())
    model = ModelParts(library, Store(tmp_path / "given"), path)
    share(library, model.store, path)
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"

    async def test() -> None:
        async with giving(model.store) as (_, endpoint):
            got = await get([endpoint], store, "model", folder, experts="1-2")
            assert not got.lacking and got.trunk is not None

    run(test, seconds=60)
    assert_same_trunk(model, store)
    layers = range(max(model.manifest.layers()) + 1)
    for piece in folder.iterdir():
        assert piece.read_bytes() == cut(model, tmp_path / "cut.gguf", layers, range(1, 3))
    model.close()


def test_parts_of_it_from_two_who_hold_other_parts(wide: ModelParts, tmp_path: Path) -> None:
    """Cells are given by who serves them, too; the trunk by one, and what a third has nobody needs."""
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"
    served = {0: range(2), 1: range(2, 4)}
    empty = [Store(tmp_path / f"empty{number}") for number in served]

    async def test() -> None:
        async with AsyncExitStack() as stack:
            endpoints: list[Endpoint] = []
            for number, experts in served.items():
                sharing, endpoint = await stack.enter_async_context(giving(empty[number]))
                from tests.served import cells_of

                sharing.serve_cells(cells_of(wide, [experts]))
                endpoints.append(endpoint)
            got = await get(
                endpoints, store, wide.stored.model_id, folder, trunk=False, layers="0,1", experts="1-2"
            )
            assert len(got.slices) == 1 and not got.lacking and len(got.by_peer) == 2
            # Nobody has the trunk, and nobody has expert 3 of which a second slice would be.
            with pytest.raises(PeerError, match="no connected peer gives its trunk"):
                await get(endpoints, store, wide.stored.model_id, folder, cells=False)
            part = await get(
                endpoints[:1], store, wide.stored.model_id, folder, trunk=False, layers="1", experts="0-3"
            )
            assert part.lacking == 2 * wide.manifest.calls[0].bytes_per_cell and not part.slices
            work = folder / f"{wide.stored.model_id[:12]}-layers-1-1-experts-0-3.gguf.part"
            assert work.is_dir() and not work.with_name(work.name.removesuffix(".part")).exists()
            rest = await get(
                endpoints, store, wide.stored.model_id, folder, trunk=False, layers="1", experts="0-3"
            )
            assert not rest.lacking and rest.was_there == part.lacking and len(rest.slices) == 1
            assert rest.n_bytes < part.lacking + 2 * CHUNK_BYTES

    run(test, seconds=60)
    assert (folder / f"{wide.stored.model_id[:12]}-layers-0-1-experts-1-2.gguf").read_bytes() == cut(
        wide, tmp_path / "cut.gguf", range(2), range(1, 3)
    )
    assert (folder / f"{wide.stored.model_id[:12]}-layers-1-1-experts-0-3.gguf").read_bytes() == cut(
        wide, tmp_path / "cut.gguf", range(1, 2), range(4)
    )


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def lies_in_chunks(request: Any, data: bytes) -> bytes:
    return data if request.lists else flip(data)


def lies_in_lists(request: Any, data: bytes) -> bytes:
    return flip(data) if request.lists else data


def lies_in_the_trunk(request: Any, data: bytes) -> bytes:
    is_trunk = isinstance(request, model_files.ModelRequest) and request.file is ModelFile.TRUNK
    return flip(data) if is_trunk and not request.lists else data


def lies_in_the_manifest(request: Any, data: bytes) -> bytes:
    is_manifest = isinstance(request, model_files.ModelRequest) and request.file is ModelFile.MANIFEST
    return flip(data) if is_manifest else data


@pytest.mark.parametrize(
    ("lie", "about"),
    [
        (lies_in_chunks, "sent wrong bytes as "),
        (lies_in_lists, "sent wrong bytes as a list of digests of "),
        (lies_in_the_trunk, "sent wrong bytes as the trunk"),
    ],
)
def test_a_liar_is_dropped_after_one_chunk_and_named(
    wide: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Any, about: str
) -> None:
    monkeypatch.setattr(fetch, "WINDOW_BYTES", 1)  # one request at a time: what a liar got in can be counted
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"

    async def test() -> None:
        async with giving(wide.store, lie=lie) as (lying, liar), giving(wide.store) as (_, honest):
            got = await get([liar, honest], store, "wide", folder)
            assert list(got.dropped) == [liar.identity.peer_id]
            assert got.dropped[liar.identity.peer_id].startswith(about)
            assert not got.lacking and len(got.slices) == 1
            if lie is lies_in_chunks:  # its first chunk was its last
                assert lying.cells.counts.sent_bytes + lying.models.counts.sent_bytes <= CHUNK_BYTES

    run(test, seconds=60)
    assert_same_trunk(wide, store)
    (path,) = folder.iterdir()
    assert path.read_bytes() == cut(wide, tmp_path / "cut.gguf", range(2), range(4))


def test_only_liars(wide: ModelParts, tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"

    async def test() -> None:
        async with giving(wide.store, lie=lies_in_the_trunk) as (_, liar):
            got = await get([liar], store, "wide", folder, cells=False)
            assert got.lacking and got.trunk is None and list(got.dropped) == [liar.identity.peer_id]
        async with giving(wide.store, lie=lies_in_the_manifest) as (_, liar):
            said = f"nobody gave its manifest: {liar.identity.peer_id} sent wrong bytes as the manifest"
            with pytest.raises(PeerError, match=said):
                await get([liar], Store(tmp_path / "empty"), "wide", folder, cells=False)

    run(test, seconds=60)
    assert not (store.root / "models").exists()


def test_ended_in_the_middle_it_goes_on_with_what_there_was(wide: ModelParts, tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"
    sent: list[int] = []

    async def test() -> None:
        async with giving(wide.store, rate=8e6) as (sharing, endpoint):
            for share_of_all in (0.3, 0.7):
                with trio.CancelScope() as scope:

                    def stop(done: int, total: int, peers: object, until: float = share_of_all) -> None:
                        if total and done >= until * total:
                            scope.cancel()

                    await get([endpoint], store, "wide", folder, on_progress=stop)
                assert scope.cancelled_caught
                assert not list(folder.glob("*.gguf")) and not (store.root / "models").exists()
            got = await get([endpoint], store, "wide", folder)
            assert not got.lacking and got.was_there > 0
            sent.append(sharing.cells.counts.sent_bytes + sharing.models.counts.sent_bytes)

    run(test, seconds=60)
    assert_same_trunk(wide, store)
    (path,) = folder.iterdir()
    assert path.read_bytes() == cut(wide, tmp_path / "cut.gguf", range(2), range(4))
    every = wide.manifest.expert_bytes + wide.manifest.trunk_bytes
    assert sent[0] <= 1.1 * every + 2 * fetch.WINDOW_BYTES  # but for what was on the way at each end


def test_metadata_that_sources_do_not_agree_about(wide: ModelParts, tmp_path: Path) -> None:
    text = GGUFValue(ValueType.STRING, "{{ messages }}")
    other = with_metadata(wide.path, tmp_path / "wide.gguf", {"tokenizer.chat_template": text})
    second = Store(tmp_path / "second")
    shared = share(wide.library, second, other)
    assert shared.model_id == wide.stored.model_id
    store, folder = Store(tmp_path / "store"), tmp_path / "slices"

    async def test() -> None:
        async with giving(wide.store) as (_, one), giving(second) as (_, two):
            peers = one.identity.peer_id, two.identity.peer_id
            with pytest.raises(LocalError, match="different metadata") as caught:
                await get([one, two], store, "wide", folder, cells=False)
            assert all(each in str(caught.value) for each in (shared.metadata[:12], *peers))
            got = await get([one, two], store, "wide", folder, cells=False, metadata=shared.metadata[:10])
            assert got.metadata == shared.metadata and got.metadata_from == (two.identity.peer_id,)
            assert got.by_peer.keys() <= set(peers)  # whoever is quicker: the tensors are the same

    run(test, seconds=60)
    stored = store.get(wide.stored.model_id)
    assert open_model(stored.trunk).find_str("tokenizer.chat_template") == "{{ messages }}"


def test_metadata_with_which_the_graph_is_another(wide: ModelParts, tmp_path: Path) -> None:
    """The tensors are right, and proven; what they are to mean is not what the model is."""
    garbage = Store(tmp_path / "garbage")
    path = tmp_path / "wide.gguf"
    path.write_bytes(wide.path.read_bytes())
    shared = share(wide.library, garbage, path)
    folder = garbage.root / "models" / shared.model_id
    store = Store(tmp_path / "store")

    def list_again(metadata: Path) -> None:

        from node.model.chunks import digest_of

        listed = json.loads((garbage.root / "shares.json").read_text())
        listed[0]["metadata"] = digest_of([memoryview(metadata.read_bytes())]).hex()
        (garbage.root / "shares.json").write_text(json.dumps(listed))

    async def test() -> None:
        (metadata,) = folder.glob("metadata-*.gguf")
        right = metadata.read_bytes()
        for wrong, said in (
            (b"GGUF" + bytes(100), "sent what is no metadata: .*GGUF version 0"),
            (right.replace(b"qwen3moe", b"qwen2moe"), "sent what is no metadata: .*another architecture"),
            (right[:-200], "sent what is no metadata"),
        ):
            metadata.write_bytes(wrong)
            list_again(metadata)
            async with giving(garbage) as (_, endpoint):
                with pytest.raises(PeerError, match=said):
                    await get([endpoint], store, "wide", tmp_path, cells=False)
        used = b"qwen3moe.expert_used_count" + (4).to_bytes(4, "little")
        assert used in right
        for count, said in ((5, "expert_used_count is 5"), (0, "expert_used_count is 0")):
            metadata.write_bytes(
                right.replace(used + (2).to_bytes(4, "little"), used + count.to_bytes(4, "little"))
            )
            list_again(metadata)
            async with giving(garbage) as (_, endpoint):
                with pytest.raises(LocalError, match=said):
                    await get([endpoint], store, "wide", tmp_path, cells=False)

    run(test, seconds=60)
    assert not (store.root / "models").exists()


def test_what_is_not_given(wide: ModelParts, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    other = Store(tmp_path / "other")

    async def test() -> None:
        async with giving(wide.store) as (sharing, endpoint), giving(other) as (_, nothing):
            with pytest.raises(PeerError, match=r"narrow: nobody gives it; there are wide \([0-9a-f]{12}\)"):
                await get([endpoint, nothing], store, "narrow", tmp_path)
            told: list[str] = []
            with pytest.raises(PeerError, match="nobody gives any model"):
                await get([nothing], store, "wide", tmp_path, progress=lambda what, *_: told.append(what))
            assert told[0] == "starting to look for peers"
            assert told[1].startswith("looking for wide: 0 of ") and told[1].endswith(" peers asked, 0 s")
            with pytest.raises(LocalError, match="there are 2 layers"):
                await get([endpoint], store, "wide", tmp_path, trunk=False, layers="0-2")
            with pytest.raises(LocalError, match="choose from 0-3"):
                await get([endpoint], store, "wide", tmp_path, trunk=False, experts="2-4")
            sharing.pause("paused")
            with pytest.raises(PeerError, match="nobody gives any model"):
                await get([endpoint], store, "wide", tmp_path)
            sharing.resume()
            told.clear()
            wanted = {"trunk": False, "layers": "0", "experts": "0"}
            await get(
                [endpoint], store, "wide", tmp_path, progress=lambda what, *_: told.append(what), **wanted
            )
            waits = "looking for wide: 1 peer gives it, waiting for others, "
            assert any(each.startswith(waits) for each in told)

    run(test, seconds=60)


def test_one_name_for_two_models(wide: ModelParts, demo_model: Path, tmp_path: Path) -> None:
    second, store = Store(tmp_path / "second"), Store(tmp_path / "store")
    shared = share(wide.library, second, demo_model, "wide")

    async def test() -> None:
        async with giving(wide.store) as (_, one), giving(second) as (_, two):
            with pytest.raises(LocalError, match="several models are offered so, give an id") as caught:
                await get([one, two], store, "wide", tmp_path)
            assert shared.model_id in str(caught.value) and wide.stored.model_id in str(caught.value)
            got = await get([one, two], store, shared.model_id, tmp_path, trunk=False)
            assert not got.lacking and got.model_id == shared.model_id

    run(test, seconds=60)
    remove_share(second, "WIDE")
    with pytest.raises(LocalError, match="no model that is shared"):
        remove_share(second, "wide")


def test_what_a_source_calls_a_model_is_no_file_name(
    wide: ModelParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    real = model_list.encode_list

    def renamed(models: list[Offer]) -> bytes:
        listed = json.loads(real(models))
        for each in listed["models"]:
            each["name"] = "../../etc/\x1b[31mpasswd\n"
        return json.dumps(listed).encode()

    async def test() -> None:
        async with giving(wide.store) as (_, endpoint):
            monkeypatch.setattr(model_list, "encode_list", renamed)
            got = await get(
                [endpoint], store, wide.stored.model_id, tmp_path / "out", layers="0", trunk=False
            )
            assert got.name == "../../etc/ [31mpasswd"

    run(test, seconds=60)
    names = [f"{wide.stored.model_id[:12]}-layers-0-0-experts-0-3.gguf"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_what_was_fetched_is_given_on(wide: ModelParts, tmp_path: Path) -> None:
    """Who has only the trunk shares it by its id; its metadata came along."""
    from node.config import ModelRef
    from node.share.giving import share_model

    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")

    async def fetched() -> None:
        async with giving(wide.store) as (_, endpoint):
            await get([endpoint], first, "wide", tmp_path, cells=False)

    run(fetched, seconds=60)
    ref = ModelRef(model_id=wide.stored.model_id[:12])
    shared = share_model(wide.library, first, ref, "again", lambda what, done, total: None)
    assert shared.path == ""

    async def given_on() -> None:
        async with giving(first) as (_, endpoint):
            got = await get([endpoint], second, "again", tmp_path, cells=False)
            assert got.metadata == shared.metadata

    run(given_on, seconds=60)
    assert_same_trunk(wide, second)


def test_lists_are_not_made_again_and_again(wide: ModelParts, tmp_path: Path) -> None:
    made: list[int] = []

    async def test() -> None:
        async with giving(wide.store) as (sharing, endpoint):
            for number in range(2):
                await get(
                    [endpoint], Store(tmp_path / f"s{number}"), "wide", tmp_path / f"{number}", trunk=False
                )
                made.append(sharing.cells._kept)
            assert made[0] == made[1] == 8 * 3 * 32

    run(test, seconds=60)


def test_requests_for_lists(wide: ModelParts) -> None:
    """A range of them, as of anything else."""
    from node.model.chunks import list_of
    from node.serve.cell_server import expert_parts
    from tests.served import connected

    async def test() -> None:
        async with giving(wide.store) as (sharing, endpoint), connected(endpoint) as connection:
            sharing.offers(trio.current_time())
            held = sharing.cells._cells.find(bytes.fromhex(wide.stored.model_id), 1, 0)
            assert held is not None
            every = b"".join(list_of(expert_parts(held, expert)) for expert in (1, 2, 3))
            stream = connection.open_stream(cells_wire.PROTOCOL_ID)
            for offset, length in ((0, len(every)), (1, 31), (96, 96), (95, 2), (len(every) - 1, 1)):
                asked = cells_wire.CellsRequest(
                    bytes.fromhex(wide.stored.model_id), 1, 0, 9, 1, 3, offset, length, lists=True
                )
                await stream.send_message(cells_wire.encode_request(asked))
                reply = cells_wire.decode_message(await stream.receive_message(1 << 20))
                assert isinstance(reply, cells_wire.CellsChunk)
                assert reply.data == every[offset : offset + length]

    run(test, seconds=60)
