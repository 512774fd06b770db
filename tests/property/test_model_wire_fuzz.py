"""Properties of `/panal/model/1` and `/panal/models/1`: round trips; any bytes are a message or one error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.errors import LocalError
from routing.wire import model_files, model_list
from routing.wire.cells import MAX_CHUNK_BYTES, MAX_OFFSET, encode_refusal
from routing.wire.experts import ProtocolError, Refusal
from routing.wire.holdings import Slice
from routing.wire.model_files import ModelChunk, ModelFile, ModelRequest
from routing.wire.model_list import Metadata, ModelListError, Offer

quick = settings(max_examples=200, deadline=None)
u32 = st.integers(0, 0xFFFFFFFF)
digests = st.binary(min_size=32, max_size=32)
hexes = digests.map(bytes.hex)


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    file = draw(st.sampled_from(list(ModelFile)))
    metadata = draw(digests.filter(any)) if file is ModelFile.METADATA else bytes(32)
    return ModelRequest(
        model_id=draw(digests),
        file=file,
        call_id=draw(u32),
        offset=draw(st.integers(0, MAX_OFFSET)),
        length=draw(st.integers(1, MAX_CHUNK_BYTES)),
        lists=draw(st.booleans()),
        metadata=metadata,
    )


def encoded(message: model_files.Message) -> bytes:
    if isinstance(message, ModelRequest):
        return model_files.encode_request(message)
    if isinstance(message, Refusal):
        return encode_refusal(message)
    request = ModelRequest(bytes(32), message.file, message.call_id, 0, 1)
    return model_files.encode_chunk_header(request) + message.data


def check(data: bytes) -> None:
    """Any bytes: one error, or a message with this very encoding (a refusal's text may be made printable)."""
    try:
        message = model_files.decode_message(data, peer="p")
    except ProtocolError as error:
        assert "\n" not in str(error)
        return
    if not isinstance(message, Refusal):
        assert encoded(message) == data


@quick
@given(requests(), st.binary(min_size=1, max_size=200))
def test_they_come_back(request: ModelRequest, data: bytes) -> None:
    assert model_files.decode_message(model_files.encode_request(request)) == request
    chunk = model_files.decode_message(model_files.encode_chunk_header(request) + data)
    assert isinstance(chunk, ModelChunk) and chunk.data == data
    assert (chunk.call_id, chunk.file) == (request.call_id, request.file)


@quick
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(b"PNAL\1" + data)


@quick
@given(requests().map(model_files.encode_request), st.data())
def test_changed_bytes(message: bytes, data: st.DataObject) -> None:
    changed = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    check(bytes(changed))


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    model_id = draw(hexes)
    cells = Slice("experts", model_id, "qwen3moe", [], [(0, draw(st.integers(0, 90)), [(0, 7), (9, 9)])])
    return Offer(
        model_id=model_id,
        name=draw(st.text("abc é-", max_size=20).map(lambda text: " ".join(text.split()))),
        architecture="qwen3moe",
        layers=draw(st.integers(1, 99)),
        experts=draw(st.integers(1, 512)),
        expert_bytes=draw(st.integers(0, 1 << 40)),
        trunk_bytes=draw(st.integers(0, 1 << 40)),
        manifest_bytes=draw(st.integers(1, 1 << 20)),
        trunk=draw(st.none() | st.builds(Metadata, hexes, st.integers(1, 1 << 20))),
        cells=draw(st.none() | st.just(cells)),
    )


@quick
@given(st.lists(offers(), max_size=5, unique_by=lambda offer: offer.model_id))
def test_a_list_comes_back(models: list[Offer]) -> None:
    assert model_list.decode_list(model_list.encode_list(models)).models == models


def told(data: bytes) -> None:
    for decode in (model_list.decode_list, model_list.decode_request):
        try:
            decode(data, peer="p")
        except ModelListError as error:
            assert "\n" not in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)


@quick
@given(st.binary(max_size=300), json_values)
def test_any_bytes_are_a_list_or_an_error(data: bytes, value: Any) -> None:
    told(data)
    told(json.dumps(value).encode())
    told(b"[" * 100_000)


@quick
@given(offers(), st.sampled_from(list(Offer.__struct_fields__)), json_values)
def test_a_field_of_any_value(offer: Offer, field: str, value: Any) -> None:
    listed = json.loads(model_list.encode_list([offer]))
    listed["models"][0][field] = value
    told(json.dumps(listed).encode())


def offer(**changed: Any) -> dict[str, Any]:
    good = {
        "model_id": "ab" * 32,
        "name": "a model",
        "architecture": "qwen3moe",
        "layers": 4,
        "experts": 32,
        "expert_bytes": 10,
        "trunk_bytes": 10,
        "manifest_bytes": 10,
    }
    return good | changed


def cells(**changed: Any) -> dict[str, Any]:
    good: dict[str, Any] = {"kind": "experts", "model_id": "ab" * 32, "architecture": "qwen3moe"}
    return good | {"experts": [[0, 3, [[0, 31]]]]} | changed


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([offer(), offer()], "there twice"),
        ([offer(model_id="AB" * 32)], "model_id"),
        ([offer(manifest_bytes=0)], "manifest_bytes"),
        ([offer(manifest_bytes=65 << 20)], "manifest_bytes"),
        ([offer(trunk={"digest": "ab" * 32, "n_bytes": 25 << 20})], "n_bytes"),
        ([offer(trunk={"digest": "../../etc", "n_bytes": 1})], "digest"),
        ([offer(architecture="a/b")], "architecture"),
        ([offer(layers=0)], "layers"),
        ([offer(cells=cells(model_id="cd" * 32))], "another model's"),
        ([offer(cells=cells(kind="layers", experts=[], layers=[[0, 1]]))], "of another kind"),
        ([offer(cells=cells(experts=[[3, 0, [[0, 1]]]]))], "not ascending"),
        ([offer(model_id=f"{number:064x}") for number in range(65)], "models"),
    ],
)
def test_what_no_honest_node_says(models: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ModelListError, match=said):
        model_list.decode_list(json.dumps({"versions": [1], "models": models}).encode(), peer="p")


def test_names_are_for_people() -> None:
    listed = {"versions": [1], "models": [offer(name="a\x1b[31m\nb\u202e../../c", later="ignored")]}
    (found,) = model_list.decode_list(json.dumps(listed).encode()).models
    assert found.name == "a [31m b ../../c"
    with pytest.raises(LocalError, match="can't be offered"):
        model_list.encode_list([found, found])
