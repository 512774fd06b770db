"""Verdicts in the store, and the wire that `auto` comes to by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.decode.wire_choice import WireChoice, choose_wire
from node.engine.library import Library
from node.model.gates import FILE_NAME, MAX_BYTES, MAX_GATES, Gate, has_passed, read_gates, record_gate
from node.model.store import StoredModel, StoreError
from node.verify.comparison import Verdict
from node.verify.gate_record import MIN_ROWS, keep_verdict
from routing.wire.codecs import Codec
from tests.unit.test_manifest import MANIFEST

HERE = {"build": "b", "trunk": "t", "combine": "sum", "wire": "int8", "home": 0}
COUNTED: dict[str, Any] = {"rows": 608, "servers": 2, "cosine_mean": 0.9999, "argmax_agreement": 0.99}


def gate(passed: bool = True, **changed: Any) -> Gate:
    return Gate(**{**HERE, **COUNTED, "passed": passed, **changed})


def verdict(gates: list[Gate], **changed: Any) -> bool | None:
    return has_passed(gates, **{**HERE, **changed})


def test_the_newest_verdict_decides() -> None:
    assert verdict([]) is None
    assert verdict([gate(True)]) is True
    assert verdict([gate(True), gate(False)]) is False
    assert verdict([gate(False), gate(True)]) is True


@pytest.mark.parametrize(
    "other",
    [{"build": "c"}, {"trunk": "u"}, {"combine": "rows"}, {"wire": "f16"}],
    ids=lambda each: next(iter(each)),
)
@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_speaks_for_its_own_kind_only(other: dict[str, str], passed: bool) -> None:
    assert verdict([gate(passed)], **other) is None
    assert verdict([gate(not passed), gate(passed, **other)]) is (not passed)


def test_cells_at_home_are_not_rounded_and_prove_nothing() -> None:
    half = gate(True, home=100)
    assert verdict([half], home=0) is None and verdict([half], home=99) is None
    assert verdict([half], home=100) is True and verdict([half], home=200) is True
    # Not even with half of the cells at home did it hold: so it does not without.
    assert verdict([gate(True), gate(False, home=100)], home=0) is False
    assert verdict([gate(False, home=100), gate(True)], home=0) is True


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    assert read_gates(tmp_path) == ()
    record_gate(tmp_path, gate(True))
    record_gate(tmp_path, gate(True, wire="f16"))
    assert read_gates(tmp_path) == (gate(True), gate(True, wire="f16"))
    record_gate(tmp_path, gate(False))  # in the place of the first, as the newest
    assert read_gates(tmp_path) == (gate(True, wire="f16"), gate(False))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    many = [gate(True, home=home) for home in range(MAX_GATES)]
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(many))
    record_gate(tmp_path, gate(False, home=MAX_GATES))
    found = read_gates(tmp_path)
    assert len(found) == MAX_GATES and found[0] == many[1] and not found[-1].passed
    longest = gate(False, build="f" * 16, trunk="trunk-0123456789ab.gguf", home=10**6)
    assert MAX_GATES * len(msgspec.json.encode(longest)) < MAX_BYTES // 5


GOOD = msgspec.json.encode([gate(True)])


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe[]",
        GOOD[:-1],
        GOOD.replace(b'"int8"', b'"int8\xff"'),
        GOOD.replace(b"true", b"1"),
        GOOD.replace(b"608", b"null"),
        GOOD.replace(b"608", b"1e400"),
        GOOD.replace(b'"wire"', b'"wires"'),
        b'{"gates":' + GOOD + b"}",
        b"[" * 100_000,
        GOOD[:-1] + b" " * MAX_BYTES + b"]",
    ],
    ids=range(12),
)
def test_a_damaged_file_says_nothing_and_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damaged)
    assert read_gates(tmp_path) == ()
    record_gate(tmp_path, gate(True))
    assert read_gates(tmp_path) == (gate(True),)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gates\.json: cannot be written: No such file"):
        record_gate(tmp_path / "gone", gate(True))
    (tmp_path / FILE_NAME).mkdir()
    assert read_gates(tmp_path) == ()
    with pytest.raises(StoreError, match="cannot be written"):
        record_gate(tmp_path, gate(True))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("int8", "f16", "codec", "untried"),
    [
        (None, None, Codec.F32, "int8"),
        (None, True, Codec.F16, "int8"),
        (None, False, Codec.F32, "int8"),
        (True, None, Codec.INT8, ""),
        (True, False, Codec.INT8, ""),
        (False, None, Codec.F32, "f16"),
        (False, True, Codec.F16, ""),
        (False, False, Codec.F32, ""),
    ],
)
def test_auto_is_the_smallest_that_passed(
    int8: bool | None, f16: bool | None, codec: Codec, untried: str
) -> None:
    choice = choose_wire("auto", "sum", {"int8": int8, "f16": f16}.__getitem__)
    assert choice == WireChoice(codec, "sum", untried)
    assert bool(choice.hint(Path("node.toml"))) is bool(untried)


@pytest.mark.parametrize("wire", ["f32", "f16", "int8"])
def test_a_wire_that_is_named_is_used(wire: str) -> None:
    choice = choose_wire(wire, "rows", lambda name: pytest.fail("no gate is asked"))
    assert choice.codec.name.lower() == wire and choice.hint(Path("node.toml")) == ""


def test_the_hint_is_one_line_that_can_be_pasted() -> None:
    hint = choose_wire("auto", "sum", {"int8": None, "f16": True}.get).hint(Path("my node.toml"))
    assert hint == (
        "wire auto: f16; whether this model works with int8 and sum has not been verified here: "
        "panal verify -c 'my node.toml' --wire int8 --combine sum"
    )


# --- which verdicts are kept ---


def found(**changed: Any) -> Verdict:
    fields: dict[str, Any] = {
        "model_id": MANIFEST.model_id(),
        "architecture": "test-moe",
        "servers": 2,
        "combine": "sum",
        "wire": "int8",
        "byte_identical": False,
        "cosine_min": 0.9,
        "cosine_mean": 0.9999,
        "argmax_agreement": 0.99,
        "worst_layer": 1,
        "trips": 160,
        "bytes_out": 1,
        "bytes_back": 1,
        "passed": True,
        "reason": "",
        "rows": MIN_ROWS,
    }
    return Verdict(**{**fields, **changed})


@pytest.fixture
def stored(tmp_path: Path) -> StoredModel:
    return StoredModel(MANIFEST.model_id(), tmp_path, MANIFEST, tmp_path / "trunk-0.gguf")


@pytest.mark.parametrize(
    ("changed", "passed", "told"),
    [
        ({}, True, 'recorded: wire = "auto" may use int8 with sum'),
        ({"passed": False}, False, 'recorded: wire = "auto" does not use int8 with sum'),
        # With --min-cosine 0.9 the verdict is a pass, but not of the gate.
        (
            {"cosine_mean": 0.99},
            False,
            'recorded: wire = "auto" does not use int8 with sum, below 0.998 or 98%',
        ),
        (
            {"argmax_agreement": 0.97},
            False,
            'recorded: wire = "auto" does not use int8 with sum, below 0.998 or 98%',
        ),
        ({"wire": "f16", "combine": "rows"}, True, 'recorded: wire = "auto" may use f16 with rows'),
    ],
)
def test_a_verdict_is_kept(
    stored: StoredModel, library: Library, changed: dict[str, Any], passed: bool, told: str
) -> None:
    verdict = found(**changed)
    assert keep_verdict(verdict, stored, library, home=3) == told
    (kept,) = read_gates(stored.folder)
    assert kept == Gate(
        build=library.build_id(),
        trunk="trunk-0.gguf",
        combine=verdict.combine,
        wire=verdict.wire,
        home=3,
        passed=passed,
        rows=MIN_ROWS,
        servers=2,
        cosine_mean=verdict.cosine_mean,
        argmax_agreement=verdict.argmax_agreement,
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"wire": "f32"}, ""),
        ({"trips": 0, "passed": False}, "not recorded: nothing travelled"),
        (
            {"rows": MIN_ROWS - 1},
            f"not recorded: {MIN_ROWS - 1} rows are too few, {MIN_ROWS} are enough (leave --batch out)",
        ),
    ],
)
def test_a_verdict_that_says_nothing_of_the_wire_is_not_kept(
    stored: StoredModel, library: Library, changed: dict[str, Any], told: str
) -> None:
    assert keep_verdict(found(**changed), stored, library, home=0) == told
    assert read_gates(stored.folder) == ()


def test_a_verdict_that_cannot_be_kept_is_a_verdict(stored: StoredModel, library: Library) -> None:
    gone = StoredModel(stored.model_id, stored.folder / "gone", MANIFEST, stored.trunk)
    assert keep_verdict(found(), gone, library, home=0).startswith("not recorded: ")
