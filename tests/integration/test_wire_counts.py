"""Bytes per token and layer over one and three servers, against the sizes that docs/protocol.md gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from node.engine.library import Library
from node.importing import import_model
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import Store, StoredModel
from scripts.bench.engine_model import Shape, make
from scripts.bench.wire_counts import STEPS, Count, count, deal, raw_baseline
from tests.integration.test_bench_scripts import script

N_EMBD, N_USED, N_EXPERTS, TOKENS = 256, 8, 24, 6
SHAPE = Shape(
    layers=2, embd=N_EMBD, ff=32, experts=N_EXPERTS, used=N_USED, heads=2, kv_heads=1, head_size=64,
    vocab=64, context=64, gate_type="Q8_0", down_type="Q8_0", trunk_type="F16", output_type="F16",
)  # fmt: skip
FRAME = 4

BYTES = {"f32": 4 * N_EMBD, "f16": 2 * N_EMBD, "int8": N_EMBD + 2 * (N_EMBD // 32)}


def up(size: int) -> int:
    return -(-size // 8) * 8


def sizes(step: str, experts: tuple[int, ...]) -> tuple[int, int]:
    """One row to these experts of one server and its answer ("Sizes"), with the frames' lengths."""
    combine, codec = step.split()
    row, pairs = BYTES[codec], len(experts)
    runs = {expert // -(-N_EXPERTS // 8) for expert in experts}
    vectors = {"rows": pairs, "sum": 1, "stable": len(runs)}[combine]
    request = up(64 + 4 + 12 + 8 + 8 + 8) + up(row) + up(2) + up(2 * pairs) + 4 * pairs
    answer = 24 + 16 + vectors * row
    return FRAME + request, FRAME + answer


@pytest.fixture(scope="module")
def path(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("counts") / "model.gguf"
    make(library, SHAPE, made)
    return made


@pytest.fixture(scope="module")
def model(library: Library, path: Path) -> StoredModel:
    return import_model(library, Store(path.parent / "store"), path)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 3])
def test_messages_have_the_sizes_of_the_protocol(
    library: Library, path: Path, model: StoredModel, servers: int
) -> None:
    async def counted() -> list[Count]:
        with trio.fail_after(60):
            return await count(library, model, mapped, servers=servers, tokens=TOKENS)

    with MappedModel(open_model(path)) as mapped:
        found = trio.run(counted)
    assert [each.step for each in found] == [step.name for step in STEPS]
    for each in found:
        assert each.calls == TOKENS * SHAPE.layers
        assert all(sum(map(len, asked)) == N_USED for asked in each.asked)
        parts = [sizes(each.step, experts) for asked in each.asked for experts in asked]
        assert each.out == sum(request for request, _ in parts)
        assert each.back == sum(answer for _, answer in parts)
        # A datagram carries 1,200 bytes and some: the link's count is above the messages' by its headers.
        assert each.message_bytes < each.link_bytes
        assert each.datagrams > each.calls
    # The same calls in fewer bytes at each step, all of them below the raw baseline.
    by_step = {each.step: each.message_bytes for each in found}
    for steps in (
        ["rows f32", "sum f32", "sum f16", "sum int8"],
        ["stable f32", "stable f16", "stable int8"],
    ):
        per_call = [raw_baseline(N_EMBD, N_EMBD, N_USED), *(by_step[step] for step in steps)]
        assert per_call == sorted(per_call, reverse=True)
    assert found[0].servers_asked == 1 if servers == 1 else 1 < found[0].servers_asked <= servers


@pytest.mark.parametrize("servers", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 3])
def test_experts_are_dealt_evenly_and_each_once(model: StoredModel, servers: int, length: int) -> None:
    dealt = deal(model.manifest, servers, whole_runs=length > 1)
    assert deal(model.manifest, servers, whole_runs=length > 1) == dealt
    for layer in model.manifest.layers():
        assert sorted(expert for share in dealt for expert in share[layer]) == list(range(N_EXPERTS))
        counts = [len(share[layer]) for share in dealt]
        assert max(counts) - min(counts) <= length
        for share in dealt:
            runs = {expert // length for expert in share[layer]}
            assert share[layer] == [run * length + i for run in sorted(runs) for i in range(length)]
    assert servers == 1 or dealt[0][0] != dealt[0][1]  # another deal for each layer


@pytest.mark.slow
def test_the_script_reports(tmp_path: Path) -> None:
    shape = ["--embd", "256", "--experts", "8", "--used", "2", "--layers", "1"]
    done = script(
        "bench_wire", "--counts", "--json", "--dir", str(tmp_path), "--servers", "1", "--tokens", "2", *shape
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["raw"] == 2 * 4 * (256 + 256)
    assert {each["step"]: (each["out"], each["back"]) for each in report["counts"]}["sum int8"] == tuple(
        2 * size for size in _sizes_of(256, 2)
    )
    assert report["planes"] == []


def _sizes_of(width: int, pairs: int) -> tuple[int, int]:
    row = width + 2 * (width // 32)
    return FRAME + 104 + row + 8 + up(2 * pairs) + 4 * pairs, FRAME + 24 + 16 + row
