"""Import: what is proven goes into the store, whole or not at all; what cannot be proven is told."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from node.engine.gate import GATE_CONTEXT, GATE_PASSES, gate
from node.engine.library import Library
from node.importing import ImportFailed, import_model
from node.model.gguf.split import open_model
from node.model.manifest import Manifest
from node.model.slice_file import cut_slice
from node.model.store import MIN_PREFIX, Store, StoredModel, StoreError
from routing.errors import LocalError
from tests.gguf_files import write_model
from tests.model_parts import ModelParts
from tests.zoo.names import ZOO

Parts = Callable[..., ModelParts]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(LocalError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def left_behind(store: Store) -> list[str]:
    folder = store.root / "models"
    return names_in(folder) if folder.is_dir() else []


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the gate ---


def check(model: ModelParts, *, trunk: Path | None = None, manifest: Manifest | None = None) -> str:
    return gate(
        model.library,
        (model.path,),
        trunk or model.stored.trunk,
        manifest or model.manifest,
        model.held,
    )


@pytest.mark.parametrize("name", ["demo", "llama4", "grovemoe", "nomic-bert-moe", "jamba@dense", "gpt-oss"])
def test_a_right_trunk_passes(parts: Parts, name: str) -> None:
    assert check(parts(name)) == ""


@pytest.mark.parametrize(
    "tensor",
    ["blk.1.attn_q.weight", "blk.2.ffn_gate_inp.weight", "output_norm.weight", "blk.3.ffn_up_shexp.weight"],
)
def test_a_changed_byte_of_the_trunk_is_seen(parts: Parts, tmp_path: Path, tensor: str) -> None:
    model = parts("demo")
    copy = tmp_path / "trunk.gguf"
    copy.write_bytes(model.stored.trunk.read_bytes())
    found = open_model(copy).tensors[tensor]
    with copy.open("r+b") as file:
        file.seek(found.offset)
        block = bytearray(file.read(found.n_bytes))
        block[1] ^= 0x08  # F32: a mantissa; quantised: the scale's exponent
        block[found.n_bytes // 2 :] = bytes(b ^ 1 for b in block[found.n_bytes // 2 :])
        file.seek(found.offset)
        file.write(block)
    assert check(model, trunk=copy).startswith("a pass of 7 tokens differs from llama.cpp's by up to ")


@pytest.mark.parametrize("layer", [0, 3])
def test_a_changed_expert_is_seen(parts: Parts, layer: int) -> None:
    model = parts("demo")
    held = dict(model.held)
    down = held[layer, "exps"].tensors["down.weight"]
    data = down.data.copy()
    data[::97] ^= 1
    tensors = {**held[layer, "exps"].tensors, "down.weight": dataclasses.replace(down, data=data)}
    held[layer, "exps"] = dataclasses.replace(held[layer, "exps"], tensors=tensors)
    reason = gate(model.library, (model.path,), model.stored.trunk, model.manifest, held)
    assert reason.startswith("a pass of ") and "differs" in reason


def test_the_last_bits_count(parts: Parts) -> None:
    model = parts("qwen3moe")
    held = dict(model.held)
    down = held[2, "exps"].tensors["down.weight"]
    data = down.data.copy()
    data.view(np.uint32)[:] ^= 1  # of f32
    tensors = {**held[2, "exps"].tensors, "down.weight": dataclasses.replace(down, data=data)}
    held[2, "exps"] = dataclasses.replace(held[2, "exps"], tensors=tensors)
    reason = gate(model.library, (model.path,), model.stored.trunk, model.manifest, held)
    assert reason.startswith("a pass of ") and "e-" in reason


def test_a_manifest_of_another_recipe_is_seen(parts: Parts) -> None:
    model = parts("gpt-oss")
    text = model.manifest.encoded().decode().replace('"limit":7.0', '"limit":0.25')
    manifest = msgspec.json.decode(text, type=Manifest)
    assert manifest != model.manifest
    held = {
        (call.layer, call.group): dataclasses.replace(model.held[call.layer, call.group], recipe=call.recipe)
        for call in manifest.calls
    }
    assert "differs" in gate(model.library, (model.path,), model.stored.trunk, manifest, held)


def test_a_manifest_without_a_layer_is_seen(parts: Parts) -> None:
    model = parts("demo")
    manifest = msgspec.structs.replace(model.manifest, calls=model.manifest.calls[:2])
    assert "layer 2" in check(model, manifest=manifest)


def test_weights_in_another_place_are_seen(parts: Parts) -> None:
    model = parts("llama4")
    call = model.manifest.calls[0]
    recipe = msgspec.structs.replace(call.recipe, weights="none")
    manifest = msgspec.structs.replace(
        model.manifest, calls=(msgspec.structs.replace(call, recipe=recipe), *model.manifest.calls[1:])
    )
    assert "its input has shape" in check(model, manifest=manifest)


def test_a_trunk_that_does_not_load(parts: Parts, tmp_path: Path) -> None:
    broken = tmp_path / "trunk.gguf"
    broken.write_bytes(parts("demo").stored.trunk.read_bytes()[:5000])
    assert str(broken) in check(parts("demo"), trunk=broken)


def test_the_gate_is_no_accident() -> None:
    # Passes of several kinds of shape, or a mistake in one of them would go through.
    assert 1 in GATE_PASSES and max(GATE_PASSES) > 1 and len(set(GATE_PASSES)) >= 3
    assert sum(GATE_PASSES) <= GATE_CONTEXT


# --- import ---


def test_an_import_of_the_same_file_is_a_lookup(library: Library, store: Store, demo_model: Path) -> None:
    said: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        said.append(what)

    first = import_model(library, store, demo_model, progress)
    assert {"digesting", "comparing with llama.cpp on the whole file"} <= set(said)
    changed_at = first.trunk.stat().st_mtime_ns
    said.clear()
    second = import_model(library, store, demo_model, progress)
    assert said == [] and second == first
    assert first.trunk.stat().st_mtime_ns == changed_at
    assert left_behind(store) == [first.model_id]
    assert names_in(first.folder) == sorted(["manifest.json", "sources.json", first.trunk.name])
    assert Store(store.root).get(first.model_id) == first


def test_progress_counts_every_byte(library: Library, store: Store, demo_model: Path) -> None:
    done: list[tuple[int, int]] = []
    import_model(library, store, demo_model, lambda what, n, total: done.append((n, total)) if n else None)
    total = sum(tensor.n_bytes for tensor in open_model(demo_model).tensors.values())
    assert done[-1] == (total, total)
    assert [n for n, _ in done] == sorted(n for n, _ in done)


@pytest.mark.parametrize("at", ["writing", "digesting", "comparing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_import_leaves_nothing(
    library: Library, store: Store, demo_model: Path, at: str, error: type[BaseException]
) -> None:
    def progress(what: str, done: int, total: int) -> None:
        if what.startswith(at):
            raise error

    with pytest.raises(error):
        import_model(library, store, demo_model, progress)
    assert left_behind(store) == []
    import_model(library, store, demo_model)


def test_an_interrupted_import_leaves_what_was_there(
    library: Library, store: Store, zoo_file: Callable[..., Path]
) -> None:
    known = import_model(library, store, zoo_file("deepseek2"))

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("comparing"):
            raise RuntimeError

    before = names_in(known.folder)
    with pytest.raises(RuntimeError):
        import_model(library, store, zoo_file("deepseek2@softmax"), progress)
    assert left_behind(store) == [known.model_id] and names_in(known.folder) == before


@pytest.mark.parametrize(
    "names",
    [("deepseek2", "deepseek2@softmax"), ("llama", "llama@used1"), ("smallthinker", "smallthinker@noswa")],
)
def test_the_same_tensors_with_other_metadata_have_trunks_of_their_own(
    library: Library, store: Store, zoo_file: Callable[..., Path], names: tuple[str, str]
) -> None:
    first, second = (import_model(library, store, zoo_file(name)) for name in names)
    assert first.model_id == second.model_id and first.manifest == second.manifest
    assert first.trunk != second.trunk and first.trunk.is_file() and second.trunk.is_file()
    assert len(store.sources(first.model_id)) == 2
    # Each file finds its own; the id alone finds the last.
    assert import_model(library, store, zoo_file(names[0])) == first
    assert store.get(first.model_id) == second


def test_a_changed_file_is_imported_anew(
    library: Library, store: Store, zoo_file: Callable[..., Path], tmp_path: Path
) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(zoo_file("olmoe").read_bytes())
    first = import_model(library, store, copy)
    os.utime(copy, ns=(1, 1))
    assert store.find(open_model(copy)) is None
    assert import_model(library, store, copy).model_id == first.model_id
    tensor = open_model(copy).tensors["blk.0.ffn_up_exps.weight"]
    with copy.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.float32(0.25).tobytes())
    second = import_model(library, store, copy)
    assert second.model_id != first.model_id
    assert left_behind(store) == sorted([first.model_id, second.model_id])


def made_older(stored: StoredModel) -> Path:
    """Turn a model's folder into what the first version of manifests left there."""
    value = json.loads(stored.manifest.encoded())
    value["version"] = 1
    for call in value["calls"]:
        del call["run_length"]
    encoded = msgspec.json.encode(value, order="sorted")
    folder = stored.folder.rename(stored.folder.with_name(blake3(encoded).hexdigest()))
    (folder / "manifest.json").write_bytes(encoded)
    return folder


def test_what_an_older_panal_imported_is_imported_again(
    library: Library, store: Store, demo_model: Path, tmp_path: Path
) -> None:
    first = import_model(library, store, demo_model)
    old = made_older(first)
    message = refused(lambda: store.get(old.name))
    assert message == f"{old / 'manifest.json'}: made by an older panal; import the model again"
    assert store.find(open_model(demo_model)) is None
    again = import_model(library, store, demo_model)
    assert again == first
    assert left_behind(store) == [first.model_id]  # nobody could use the other any more

    copy = tmp_path / "copy.gguf"
    copy.write_bytes(demo_model.read_bytes())
    import_model(library, store, copy)
    old = made_older(again)
    import_model(library, store, copy)
    assert left_behind(store) == sorted([first.model_id, old.name])  # the other file may come back


def test_a_lost_trunk_is_made_again(library: Library, store: Store, demo_model: Path) -> None:
    first = import_model(library, store, demo_model)
    size = first.trunk.stat().st_size
    first.trunk.unlink()
    assert store.find(open_model(demo_model)) is None
    again = import_model(library, store, demo_model)
    assert again == first and again.trunk.stat().st_size == size
    assert len(store.sources(first.model_id)) == 1


def test_a_dense_model_is_refused(library: Library, store: Store, tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (8, 16), "blk.0.ffn_up.weight": (8, 12), "blk.0.ffn_down.weight": (12, 8)}
    path = write_model(tmp_path / "dense.gguf", shapes, {"block_count": 1})
    message = refused(lambda: import_model(library, store, path))
    assert str(path) in message and "no routed experts" in message
    assert left_behind(store) == []


def test_a_slice_file_is_refused(library: Library, store: Store, parts: Parts, tmp_path: Path) -> None:
    model = parts("demo")
    target = tmp_path / "slice.gguf"
    cut_slice(model.file, model.manifest.encoded(), model.stored.model_id, range(4), range(3), target)
    assert "is a slice file" in refused(lambda: import_model(library, store, target))
    assert left_behind(store) == []


def test_an_architecture_llama_does_not_know(
    library: Library, store: Store, zoo_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(zoo_file("olmoe").read_bytes().replace(b"olmoe", b"oddmo"))
    with pytest.raises(ImportFailed) as caught:
        import_model(library, store, path)
    assert "cannot be run in parts" in str(caught.value) and "oddmo" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_behind(store) == []


@pytest.mark.parametrize("name", ["demo", "llama4"])
def test_a_trunk_is_never_taken_for_the_model(
    library: Library, parts: Parts, store: Store, name: str
) -> None:
    trunk = parts(name).stored.trunk
    assert "is a trunk, its experts are empty" in refused(lambda: import_model(library, store, trunk))
    assert left_behind(store) == []


def test_a_store_that_cannot_be_written(library: Library, demo_model: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "choose another store" in refused(lambda: import_model(library, Store(blocked), demo_model))


# --- the store ---


def test_prefixes(library: Library, store: Store, zoo_file: Callable[..., Path]) -> None:
    stored = import_model(library, store, zoo_file("olmoe"))
    for digits in (64, 12, MIN_PREFIX):
        assert store.get(stored.model_id[:digits]) == stored
    for name in (
        stored.model_id[: MIN_PREFIX - 1],
        "",
        "0" * 64,
        "../" + stored.model_id,
        stored.model_id + "0",
    ):
        assert "no such model" in refused(partial(store.get, name))
    twin = store.root / "models" / (stored.model_id[:20] + "0" * 44)
    twin.mkdir()
    assert "2 models" in refused(lambda: store.get(stored.model_id[:20]))
    assert store.get(stored.model_id[:21]) == stored


def test_an_empty_store(store: Store, demo_model: Path) -> None:
    assert "no such model" in refused(lambda: store.get("0" * 12))
    assert store.find(open_model(demo_model)) is None
    assert store.sources("0" * 64) == ()
    assert left_behind(store) == []


def test_what_does_not_belong_there_is_passed_over(library: Library, store: Store, demo_model: Path) -> None:
    (store.root / "models" / "notes").mkdir(parents=True)
    (store.root / "models" / ("A" * 64)).write_text("")
    stored = import_model(library, store, demo_model)
    assert store.get(stored.model_id) == stored


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", None, "import the model again"),
        ("manifest.json", b"{}", "not a manifest of panal"),
        ("manifest.json", b"\xff", "not a manifest of panal"),
        ("sources.json", b"[{}]", "sources.json is damaged"),
        ("sources.json", None, "sources.json is damaged"),
        ("sources.json", b"[]", "sources.json is damaged"),
    ],
)
def test_damage_is_told(
    library: Library, store: Store, demo_model: Path, name: str, content: bytes | None, message: str
) -> None:
    stored = import_model(library, store, demo_model)
    path = stored.folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert message in refused(lambda: store.get(stored.model_id))


def test_another_models_manifest_in_the_folder_is_refused(
    library: Library, store: Store, demo_model: Path
) -> None:
    stored = import_model(library, store, demo_model)
    path = stored.folder / "manifest.json"
    value = json.loads(path.read_bytes())
    value["trunk"][0]["digest"] = "0" * 64
    path.write_text(json.dumps(value))
    with pytest.raises(LocalError, match="is the manifest of model"):
        store.get(stored.model_id)


def test_two_imports_at_once(library: Library, store: Store, demo_model: Path) -> None:
    """A second process that was slower finds the folder and puts its trunk into it."""

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("comparing") and not left_behind(store)[-1].startswith("."):
            return
        if what.startswith("comparing"):
            import_model(library, Store(store.root), demo_model)

    stored = import_model(library, store, demo_model, progress)
    assert left_behind(store) == [stored.model_id]
    assert len(store.sources(stored.model_id)) == 1
    assert store.get(stored.model_id) == stored


@pytest.mark.parametrize("name", ZOO)
def test_every_zoo_model_has_a_small_or_hollow_trunk(parts: Parts, name: str) -> None:
    model = parts(name)
    used = model.stored.trunk.stat().st_blocks * 512
    whole = model.path.stat().st_size
    assert used < whole - model.manifest.expert_bytes // 2


def test_store_error_is_ours() -> None:
    assert issubclass(StoreError, LocalError)
