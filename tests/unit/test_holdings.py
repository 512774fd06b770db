"""`/panal/slices/1`: one refusal for each rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routing.errors import LocalError
from routing.wire.holdings import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    Holdings,
    HoldingsError,
    Slice,
    compact_cells,
    decode_holdings,
    decode_request,
    encode_holdings,
)


def answer() -> dict[str, Any]:
    """The documented example, as JSON's own types."""
    return {
        "versions": [1],
        "name": "casa de Ana",
        "slices": [
            {
                "kind": "experts",
                "model_id": "0f" * 32,
                "architecture": "qwen3moe",
                "layers": [],
                "experts": [[0, 47, [[0, 39], [64, 64]]]],
            }
        ],
        "codecs": ["f32", "f16", "int8"],
        "combines": ["rows", "sum"],
        "max_rows": 512,
    }


def decoded(fields: dict[str, Any]) -> Holdings:
    return decode_holdings(msgspec.json.encode(fields), peer="12D3KooWpeer")


def test_the_example_decodes() -> None:
    (held,) = decoded(answer()).slices
    assert held.expert_runs(47) == [(0, 39), (64, 64)]
    assert held.expert_runs(48) == ()
    assert list(held.layer_numbers()) == list(range(48))


def test_unknown_fields_and_words_are_a_later_versions() -> None:
    fields = answer() | {"mood": {"deep": [1, 2, 3]}, "codecs": ["f32", "int4"]}
    assert decoded(fields).codecs == ["f32", "int4"]


def test_what_it_runs_is_printable_and_may_be_left_out() -> None:
    assert decoded(answer()).software == ""
    assert decoded(answer() | {"software": "panal 0.1.0"}).software == "panal 0.1.0"
    wild = answer() | {"software": "panal\x1b[31m 9" + "9" * 100}
    assert decoded(wild).software == "panal [31m 9" + "9" * 20
    with pytest.raises(HoldingsError):
        decoded(answer() | {"software": "x" * 1000})


def test_the_build_class_is_printable_and_may_be_left_out() -> None:
    assert decoded(answer()).build == "", "an older version does not tell it"
    assert decoded(answer() | {"build": "3bc8b73bab461ae1"}).build == "3bc8b73bab461ae1"
    assert decoded(answer() | {"build": "3b\n" + "c" * 100}).build == "3b " + "c" * 61

    class Older(msgspec.Struct):
        """What versions before it read."""

        versions: list[int]
        software: str = ""

    told = encode_holdings(msgspec.structs.replace(decoded(answer()), build="3bc8b73bab461ae1"))
    assert msgspec.json.decode(told, type=Older).versions == [1]


def test_whole_layers() -> None:
    fields = answer()
    fields["slices"][0] |= {"kind": "layers", "layers": [[0, 3], [8, 8]], "experts": []}
    (held,) = decoded(fields).slices
    assert list(held.layer_numbers()) == [0, 1, 2, 3, 8]


def test_a_name_is_made_printable() -> None:
    assert decoded(answer() | {"name": "Ana\x1b[2J\n\u202ecasa  "}).name == "Ana [2J casa"
    assert decoded(answer() | {"name": "ñ" * 60}).name == "ñ" * 32


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"versions": []}, "versions"),
        ({"versions": [0]}, "versions"),
        ({"versions": list(range(1, 18))}, "versions"),
        ({"name": "n" * 257}, "name"),
        ({"name": 7}, "name"),
        ({"slices": [answer()["slices"][0]] * 65}, "slices"),
        ({"codecs": ["F32"]}, "codecs"),
        ({"codecs": ["f32"] * 17}, "codecs"),
        ({"combines": ["a b"]}, "combines"),
        ({"max_rows": 0}, "max_rows"),
        ({"max_rows": 16_385}, "max_rows"),
        ({"max_rows": 1e300}, "max_rows"),
    ],
)
def test_field(change: dict[str, Any], match: str) -> None:
    with pytest.raises(HoldingsError, match=match) as caught:
        decoded(answer() | change)
    assert caught.value.peer == "12D3KooWpeer" and "12D3KooWpeer" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "spans"}, "kind"),
        ({"model_id": "0f" * 31}, "model_id"),
        ({"model_id": "0F" * 32}, "model_id"),
        ({"model_id": "0f" * 32 + "\n"}, "model_id"),
        ({"architecture": "a\x1b"}, "architecture"),
        ({"architecture": "qwen3moe\n"}, "architecture"),
        ({"architecture": ""}, "architecture"),
        ({"experts": []}, "kind experts takes"),
        ({"layers": [[0, 1]]}, "kind experts takes"),
        ({"kind": "layers", "layers": [[0, 1]]}, "kind layers takes"),
        ({"kind": "layers", "experts": []}, "kind layers takes"),
        ({"experts": [[3, 2, [[0, 1]]]]}, "runs of layers are not ascending"),
        ({"experts": [[0, 4, [[0, 1]]], [4, 5, [[0, 1]]]]}, "runs of layers are not ascending"),
        ({"experts": [[0, 1, [[5, 4]]]]}, "runs of experts are not ascending"),
        ({"experts": [[0, 1, [[0, 4], [4, 5]]]]}, "runs of experts are not ascending"),
        ({"experts": [[0, 1, []]]}, "experts"),
        ({"experts": [[0, 1, [[-1, 4]]]]}, "experts"),
        ({"experts": [[0, 65_536, [[0, 1]]]]}, "experts"),
        ({"experts": [[0, 1, [[0, 65_536]]]]}, "experts"),
        ({"experts": [[0, 1]]}, "experts"),
        ({"experts": [[0, 1, [[2 * i, 2 * i] for i in range(513)]]]}, "experts"),
        ({"experts": [[i, i, [[0, 1]]] for i in range(513)]}, "experts"),
    ],
)
def test_slice_field(change: dict[str, Any], match: str) -> None:
    fields = answer()
    fields["slices"][0] |= change
    with pytest.raises(HoldingsError, match=match):
        decoded(fields)


def test_sizes_have_limits() -> None:
    with pytest.raises(HoldingsError, match="65537 bytes, more than the 65536"):
        decode_holdings(b" " * (MAX_ANSWER_BYTES + 1))
    with pytest.raises(HoldingsError, match="1025 bytes, more than the 1024"):
        decode_request(b" " * (MAX_REQUEST_BYTES + 1))


@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"versions":[1],"z":' + b"[" * 60_000,
        b'{"name":"\xff"}',
    ],
)
def test_what_is_no_answer(buffer: bytes) -> None:
    with pytest.raises(HoldingsError):
        decode_holdings(buffer)


def test_what_no_peer_would_take_is_not_sent() -> None:
    held = Slice(kind="experts", model_id="0f" * 32, architecture="qwen3moe", experts=[(0, 1, [(4, 3)])])
    with pytest.raises(LocalError, match="can't be announced"):
        encode_holdings(Holdings([1], "n", [held], ["f32"], ["rows"], 512))


def test_cells_are_compacted() -> None:
    assert compact_cells({2: [0, 1, 2], 3: [2, 1, 0, 0], 4: [1, 5], 6: [1, 5], 9: []}) == [
        (2, 3, [(0, 2)]),
        (4, 4, [(1, 1), (5, 5)]),
        (6, 6, [(1, 1), (5, 5)]),
    ]
