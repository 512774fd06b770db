"""Manifests of strangers: every contradiction is refused in one line, before ggml sees any of it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from node.model import manifest as M
from node.model import recipe as R
from node.model.gguf.types import TYPE_BY_NAME
from node.model.manifest import (
    DIGEST_BYTES,
    ExpertCall,
    ExpertTensor,
    Manifest,
    ManifestError,
    TrunkTensor,
    decode_manifest,
)

F32, Q4_K = TYPE_BY_NAME["F32"].id, TYPE_BY_NAME["Q4_K"].id

Change = Callable[[dict[str, Any]], None]


def call(layer: int, group: str = "exps") -> ExpertCall:
    hidden = R.Glu(
        "SWIGLU", R.Bias("gate.bias", R.Matmul("gate.weight", R.Input())), R.Matmul("up.weight", R.Input())
    )
    return ExpertCall(
        layer=layer,
        group=group,
        n_experts=4,
        run_length=2,
        n_in=256,
        n_out=16,
        recipe=R.Recipe("after", R.Weigh(R.Scale("down.scale", R.Matmul("down.weight", hidden)))),
        tensors=(
            ExpertTensor("down.scale", F32, ()),
            ExpertTensor("down.weight", F32, (12, 16)),
            ExpertTensor("gate.bias", F32, (12,)),
            ExpertTensor("gate.weight", Q4_K, (256, 12)),
            ExpertTensor("up.weight", Q4_K, (256, 12)),
        ),
        digests=base64.b64encode(bytes(range(4 * DIGEST_BYTES))).decode(),
    )


MANIFEST = Manifest(
    M.VERSION,
    "test-moe",
    ("experts",),
    (call(0), call(2), call(2, "chexps")),
    (TrunkTensor("output.weight", F32, (16, 64), "ab" * 32),),
)


def test_a_right_one_comes_back() -> None:
    encoded = MANIFEST.encoded()
    assert decode_manifest(encoded) == MANIFEST
    assert decode_manifest(encoded, model_id=MANIFEST.model_id()) == MANIFEST
    assert decode_manifest(encoded).encoded() == encoded
    spaced = json.dumps(json.loads(encoded), indent=1).encode()
    assert decode_manifest(spaced).model_id() == MANIFEST.model_id()


def test_what_it_says() -> None:
    first, _, chunk = MANIFEST.calls
    assert list(MANIFEST.layers()) == [0, 2]
    assert MANIFEST.call(2, 1) is chunk and MANIFEST.call(1, 0) is None
    assert (first.index, chunk.index) == (0, 1)
    assert (first.label, chunk.label) == ("layer 0", "layer 2 (chexps)")
    assert first.digest(1) == bytes(range(32, 64))
    assert first.bytes_per_cell == 4 + 12 * 16 * 4 + 12 * 4 + 2 * 12 * 144
    assert MANIFEST.expert_bytes == 3 * 4 * first.bytes_per_cell
    assert first.tensors[1].name(7, "chexps") == "blk.7.ffn_down_chexps.weight"


def refusal(encoded: bytes, **options: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        decode_manifest(encoded, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


def changed(change: Change) -> bytes:
    value = copy.deepcopy(json.loads(MANIFEST.encoded()))
    change(value)
    return json.dumps(value).encode()


def set_call(**fields: Any) -> Change:
    return lambda value: value["calls"][0].update(fields)


def set_tensor(number: int, **fields: Any) -> Change:
    return lambda value: value["calls"][0]["tensors"][number].update(fields)


def set_output(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def apply(value: dict[str, Any]) -> None:
        value["calls"][0]["recipe"]["output"] = change(value["calls"][0]["recipe"]["output"])

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(calls=[]), "no layer has routed experts"),
        (lambda v: v.update(version=0), "version"),
        (lambda v: v.update(version=-1), "version"),
        (lambda v: v.update(version=True), "version"),
        (lambda v: v.pop("version"), "version"),
        (lambda v: v.update(version=4), "made by a newer panal; update this one"),
        (lambda v: v.update(version=1 << 40), "made by a newer panal; update this one"),
        (lambda v: v.update(kinds=["layers"]), "kinds"),
        (lambda v: v.update(architecture="two words"), "architecture"),
        (lambda v: v["calls"].append(v["calls"][0]), "there twice"),
        (set_call(group="shexp"), "group 'shexp' is unknown"),
        (set_call(group="a\nb"), "group"),
        (set_call(layer=-1), "layer"),
        (set_call(layer=65536), "layer"),
        (set_call(n_experts=0), "n_experts"),
        (set_call(n_experts=3), "not one digest for each of its 3 experts"),
        (set_call(digests="AAAA"), "not one digest"),
        (set_call(digests="ä"), "not one digest"),
        (set_call(digests="=" * 172), "not one digest"),
        (lambda v: v["calls"][0].pop("run_length"), "run_length"),
        (set_call(run_length=0), "run_length"),
        (set_call(run_length=-2), "run_length"),
        (set_call(run_length=2.5), "run_length"),
        (set_call(run_length=1 << 16), "run_length"),
        (set_call(run_length=5), "runs of 5 of its 4 experts"),
        (set_call(n_in=0), "n_in"),
        (set_call(n_in=65537), "n_in"),
        (set_call(n_in=512), "takes rows of 256, not of 512"),
        (set_call(n_out=17), "do not give rows of 17"),
        (lambda v: v["calls"][0]["tensors"].pop(), "its recipe reads others"),
        (lambda v: v["calls"][0]["tensors"].reverse(), "its recipe reads others"),
        (set_tensor(0, role="side.weight"), "its recipe reads others"),
        (set_tensor(0, role="a\nb"), "role"),
        (set_tensor(1, type=9999), "down.weight has type 9999"),
        (set_tensor(1, type=TYPE_BY_NAME["I32"].id), "down.weight has type I32"),
        (set_tensor(1, type=TYPE_BY_NAME["F64"].id), "down.weight has type F64"),
        (set_tensor(1, type=TYPE_BY_NAME["Q8_1"].id), "down.weight has type Q8_1"),
        (set_tensor(1, type=TYPE_BY_NAME["Q8_K"].id), "down.weight has type Q8_K"),
        (set_tensor(2, type=TYPE_BY_NAME["F16"].id), "gate.bias has type F16"),
        (set_tensor(0, type=TYPE_BY_NAME["F16"].id), "down.scale has type F16"),
        (set_tensor(1, type=Q4_K), "rows of 12 are no whole blocks of Q4_K"),
        (set_tensor(1, shape=[12]), "down.weight has shape"),
        (set_tensor(1, shape=[12, 16, 1]), "down.weight has shape"),
        (set_tensor(1, shape=[12, 65537]), "down.weight has shape"),
        (set_tensor(1, shape=[12, 1 << 40]), "shape"),
        (set_tensor(1, shape=[12, 0]), "shape"),
        (set_tensor(2, shape=[13]), "gate.bias does not fit rows of 12"),
        (set_tensor(2, shape=[]), "gate.bias has shape"),
        (set_tensor(0, shape=[1]), "down.scale has shape"),
        (set_output(lambda o: o["of"]), "weighs 0 times"),
        (set_output(lambda o: {"op": "weigh", "of": o}), "weighs 2 times"),
        (set_output(lambda o: {"op": "cube", "of": o}), "cube"),
        (set_output(lambda o: {"op": "half", "index": 2, "of": o}), "index"),
        (set_output(lambda o: {"op": "norm", "kind": "RMS_NORM", "epsilon": -1.0, "of": o}), "epsilon"),
        (
            set_output(lambda o: {"op": "unary", "kind": "SILU", "of": o, "parameters": [1.0] * 50}),
            "parameters",
        ),
        (set_output(lambda o: {"op": "unary", "kind": "SI\nLU", "of": o}), "kind"),
        (lambda v: v["trunk"][0].update(type=77), "trunk tensor 'output.weight' has unknown type 77"),
        (lambda v: v["trunk"][0].update(digest="ab" * 31), "digest"),
        (lambda v: v["trunk"][0].update(digest="ab" * 32 + "\n"), "digest"),
    ],
)
def test_each_contradiction_is_refused(change: Change, message: str) -> None:
    assert message in refusal(changed(change), source="FILE").removeprefix("FILE: ")


def test_an_unchanged_copy_is_taken() -> None:
    # The changes above are refused for what they change.
    assert decode_manifest(changed(lambda value: None)) == MANIFEST


def older(value: dict[str, Any]) -> None:
    """As the first version had it."""
    value["version"] = 1
    for each in value["calls"]:
        del each["run_length"]


def test_an_older_panals_is_told_from_a_broken_one() -> None:
    message = refusal(changed(older), model_id="ab" * 32, source="manifest.json")
    assert message == "manifest.json: made by an older panal"
    with pytest.raises(M.OldManifest):
        decode_manifest(changed(older))
    with pytest.raises(M.OldManifest):
        decode_manifest(changed(lambda value: value.update(version=2)))
    with pytest.raises(M.OldManifest):  # whatever else it says
        decode_manifest(b'{"version":1}')


def test_another_models_manifest_is_refused() -> None:
    other = changed(set_call(digests=base64.b64encode(bytes(4 * DIGEST_BYTES)).decode()))
    message = refusal(other, model_id=MANIFEST.model_id(), source="slice.gguf")
    assert message.startswith("slice.gguf: is the manifest of model ")
    assert MANIFEST.model_id()[:12] in message


def test_a_recipe_nested_beyond_all_reason() -> None:
    def nest(levels: int) -> Change:
        def wrap(output: dict[str, Any]) -> dict[str, Any]:
            for _ in range(levels):
                output = {"op": "square", "of": output}
            return output

        return set_output(wrap)

    assert "nested deeper than 24" in refusal(changed(nest(30)))
    deep = MANIFEST.encoded().replace(b'{"of":{"of":', b'{"op":"square","of":' * 100_000 + b'{"of":{"of":', 1)
    assert deep != MANIFEST.encoded()
    refusal(deep)


@pytest.mark.parametrize("encoded", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"{" * 10_000, b'{"version":1'])
def test_what_is_no_manifest(encoded: bytes) -> None:
    assert "not a manifest of panal" in refusal(encoded)


def test_bytes_that_are_no_utf8() -> None:
    refusal(MANIFEST.encoded().replace(b"test-moe", b"test\xffmoe"))


def test_a_huge_one_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(M, "MAX_MANIFEST_BYTES", len(MANIFEST.encoded()) - 1)
    assert "passes the limit" in refusal(MANIFEST.encoded())
    monkeypatch.setattr(M, "MAX_MANIFEST_BYTES", len(MANIFEST.encoded()))
    decode_manifest(MANIFEST.encoded())


def test_the_id_counts_everything() -> None:
    def fields(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if isinstance(value, dict | list) and value:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return [leaf for key, each in items for leaf in fields(each, (*path, key))]
        return [path]

    plain = json.loads(MANIFEST.encoded())
    seen = {MANIFEST.model_id()}
    paths = fields(plain)
    for path in paths:
        value = copy.deepcopy(plain)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        inner[path[-1]] = f"{old}x" if isinstance(old, str) else [1] if isinstance(old, list) else old + 1
        encoded = msgspec.json.encode(value, order="sorted")
        assert encoded != MANIFEST.encoded()
        seen.add(blake3(encoded).hexdigest())
    assert len(seen) == len(paths) + 1
