"""The benchmark scripts, end to end on a tiny model: that they run and what they report, never how fast."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

TINY = {
    "layers": 2, "embd": 256, "ff": 256, "experts": 8, "used": 2, "heads": 4, "kv-heads": 4, "head-size": 64,
    "vocab": 64, "context": 1024, "seed": 1,
}  # fmt: skip
SHAPE = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / name), *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_same_arguments_make_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        done = script("make_random_moe", str(tmp_path / name), *SHAPE, "--seed", seed)
        assert done.returncode == 0, done.stderr
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "types"),
    [("qwen3moe", "Q4_K,Q6_K"), ("olmoe", "IQ4_XS,Q5_K,Q8_0"), ("llama", "F16,F32,F32,F32")],
)
def test_bench_engine_reports(tmp_path: Path, arch: str, types: str) -> None:
    done = script(
        "bench_engine", "--json", "--dir", str(tmp_path), "--arch", arch, "--types", types, *SHAPE,
        "--threads", "1", "--rounds", "2", "--tokens", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    (speeds,), (hook,), (kernels,) = report["speeds"], report["hooks"], report["kernels"]
    assert speeds["identical"] == {"plain": True, "home": True, "swarm": True}
    assert all(rate > 0 for rate in speeds["decode"].values())
    assert set(speeds["prefill"]) == {"64", "512"}
    # Two layers, each with a trip in each of the passes that count: the prompt's and six single tokens.
    assert (speeds["trips"]["passes"], speeds["trips"]["trips"]) == (7, 14)
    assert len(speeds["memory"]) == 2
    assert hook["layers"] == 2
    assert hook["asks"] > 20
    cell = 3 * TINY["embd"] * TINY["ff"]
    assert kernels["n_bytes"] == pytest.approx(2 * cell * BYTES_PER_WEIGHT[types], rel=1e-6)
    assert len(report["targets"]) == 3


# Gate and up of one type, down of another: bytes a weight, from the sizes of ggml's blocks.
BYTES_PER_WEIGHT = {
    "Q4_K,Q6_K": (2 * 144 + 210) / 3 / 256,
    "IQ4_XS,Q5_K,Q8_0": (2 * 136 + 176) / 3 / 256,
    "F16,F32,F32,F32": (2 * 2 + 4) / 3,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (["--used", "9"], "--used 9"),
        (["--ff", "200"], "multiple"),
        (["--types", "Q4_K,NONE"], "NONE"),
        (["--types", "Q4_K"], "two to four"),
        (["--heads", "6"], "must divide"),
        (["--arch", "olmoe", "--head-size", "32"], "as wide as"),
    ],
)
def test_shapes_that_cannot_be_are_refused(tmp_path: Path, wrong: list[str], reason: str) -> None:
    done = script("make_random_moe", str(tmp_path / "model.gguf"), *SHAPE, *wrong)
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_bench_market_reports(tmp_path: Path) -> None:
    done = script(
        "bench_market",
        "--json",
        "--dir",
        str(tmp_path),
        *SHAPE,
        "--types",
        "F16,F16",
        "--rounds",
        "1",
        "--tokens",
        "3",
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert set(report["ways"]) == {"free", "priced", "audited"}
    assert all(row["tokens_per_second"] > 0 and row["cpu_ms"] > 0 for row in report["ways"].values())
    assert report["ways"]["free"]["seconds_ratio"] == report["ways"]["free"]["cpu_ratio"] == 1
    assert report["alone"]["payer_us"] > 0 and report["alone"]["payee_us"] > 0
    books = tmp_path / "priced" / "home" / "market.db"
    assert books.exists() and not (tmp_path / "free" / "home" / "market.db").exists()
