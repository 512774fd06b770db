"""Bytes per token and layer as the wire itself counts them: n_embd 3072, top-8, one server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.engine import library as llama
from scripts.bench.engine_model import Shape, make

pytestmark = pytest.mark.slow

N_EMBD, N_USED = 3072, 8
PASSES = 16  # of one token each, in `panal verify --batch 1`
OVERHEAD = 256  # headers, frames, expert ids and router weights of one call, both ways: measured 216

FORMULA = {
    ("rows", "f32"): 4 * N_EMBD + 4 * N_EMBD * N_USED,  # x out, a row per expert back: 110.6 KB
    ("sum", "f16"): 2 * N_EMBD + 2 * N_EMBD,  # 12.3 KB
    ("sum", "int8"): 2 * (N_EMBD + 2 * N_EMBD // 32),  # blocks of 32 with an f16 scale: 6.5 KB
}


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    shape = Shape(
        layers=2, embd=N_EMBD, ff=32, experts=N_USED, used=N_USED, heads=2, kv_heads=1, head_size=64,
        vocab=64, context=64, gate_type="F16", down_type="F16", trunk_type="F16", output_type="F16",
    )  # fmt: skip
    make(llama.load(), shape, path)
    return path


@pytest.mark.parametrize("mode", FORMULA, ids=lambda mode: "+".join(mode))
def test_bytes_per_token_and_layer(wide_model: Path, tmp_path: Path, mode: tuple[str, str]) -> None:
    combine, wire = mode
    command = [
        sys.executable, "-m", "node.cli.main", "verify", str(wide_model), "--servers", "1", "--batch", "1",
        "--combine", combine, "--wire", wire, "--store", str(tmp_path), "--json", "--min-argmax", "0",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    verdict = json.loads(done.stdout)
    assert verdict["trips"] == PASSES * 2
    measured = (verdict["bytes_out"] + verdict["bytes_back"]) / verdict["trips"]
    assert FORMULA[mode] < measured < FORMULA[mode] + OVERHEAD
    # One server that holds a whole layer adds in slot order, as one machine does.
    assert verdict["byte_identical"] is (wire == "f32")
