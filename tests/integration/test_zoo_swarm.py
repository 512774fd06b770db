"""Byte identity over real server processes: every zoo architecture over two, the shared models over three."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.config import parse_config, render_config
from node.config.shape import ServeTable
from node.engine import library as llama
from node.importing import import_model
from node.interrupt import run_interruptible
from node.local_swarm import LocalSwarm, shares
from node.model.store import Store
from node.verify.comparison import Bounds
from node.verify.swarm_check import check_swarm
from tests.zoo.make_zoo import zoo

pytestmark = pytest.mark.slow

BATCHES = (1, 5, 64)
SHARED = (
    "tiny-qwen3moe-32e4.Q4_K_M",
    "tiny-qwen3moe-32e4.Q8_0",
    "tiny-qwen2moe-12e2-shared.Q4_K_M",
    "tiny-qwen2moe-12e2-shared.Q8_0",
    "tiny-gpt-oss-16e4-random.MXFP4",
)
TRAINED = SHARED[:4]


@dataclass(frozen=True)
class ZooSwarm:
    """Two server processes, each with half of every zoo model's experts."""

    swarm: LocalSwarm
    store: Path
    folder: Path
    files: dict[str, Path]


@pytest.fixture(scope="module")
def zoo_swarm(tmp_path_factory: pytest.TempPathFactory, zoo_file: Callable[..., Path]) -> Iterator[ZooSwarm]:
    folder = tmp_path_factory.mktemp("zoo-swarm")
    store = folder / "store"
    files = {name: zoo_file(name) for name in zoo()}
    serves: tuple[list[ServeTable], list[ServeTable]] = ([], [])
    for file in files.values():
        manifest = import_model(llama.load(), Store(store), file).manifest
        for number in (0, 1):
            serves[number].extend(shares(file, manifest, number, 2))
    with LocalSwarm(folder, store, threads=1) as swarm:
        swarm.start_with(serves)
        yield ZooSwarm(swarm, store, folder, files)


@pytest.mark.parametrize("name", zoo())
def test_zoo_model_over_two_servers(zoo_swarm: ZooSwarm, name: str) -> None:
    text = render_config(
        store=str(zoo_swarm.store),
        identity=str(zoo_swarm.folder / "backbone.key"),
        threads=1,
        peers=[str(address) for address in zoo_swarm.swarm.addresses],
        model=str(zoo_swarm.files[name]),
    )
    config = parse_config(text, zoo_swarm.folder / "node.toml", zoo_swarm.store)
    verdict = run_interruptible(
        lambda: check_swarm(config, combine="rows", wire="f32", batches=BATCHES, bounds=Bounds())
    )
    assert verdict.byte_identical, verdict
    assert verdict.passed, verdict.reason
    assert verdict.trips > 0


def run_verify(model: Path, store: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "node.cli.main", "verify", str(model), "--servers", "3", "--json"]
    done = subprocess.run(
        [*command, "--store", str(store), *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    verdict: dict[str, object] = json.loads(done.stdout)
    assert (done.returncode == 0) is verdict["passed"]
    return verdict


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared-store")


@pytest.mark.parametrize("name", SHARED)
def test_shared_model_over_three_servers(shared_dir: Path, shared_store: Path, name: str) -> None:
    verdict = run_verify(shared_dir / "models" / f"{name}.gguf", shared_store, "--batch", "1,5,64")
    assert verdict["byte_identical"] is True
    assert verdict["passed"] is True
    assert verdict["worst_layer"] is None


def test_demo_model_over_three_servers(demo_model: Path, shared_store: Path) -> None:
    verdict = run_verify(demo_model, shared_store)
    assert verdict["byte_identical"] is True
    assert set(verdict) == {
        "model_id", "architecture", "servers", "combine", "wire", "byte_identical", "cosine_min",
        "cosine_mean", "argmax_agreement", "worst_layer", "trips", "bytes_out", "bytes_back", "passed",
        "reason", "routes", "rows", "gate",
    }  # fmt: skip


@pytest.mark.parametrize("wire", ["f16", "int8"])
@pytest.mark.parametrize("name", TRAINED)
def test_lossy_modes_pass_the_gate(shared_dir: Path, shared_store: Path, name: str, wire: str) -> None:
    model = shared_dir / "models" / f"{name}.gguf"
    verdict = run_verify(model, shared_store, "--combine", "sum", "--wire", wire)
    assert verdict["passed"] is True, verdict
    assert verdict["byte_identical"] is False


@pytest.mark.parametrize("wire", ["f32", "int8"])
def test_stable_passes_the_gate(shared_dir: Path, shared_store: Path, wire: str) -> None:
    model = shared_dir / "models" / f"{SHARED[0]}.gguf"
    verdict = run_verify(model, shared_store, "--combine", "stable", "--wire", wire)
    assert (verdict["passed"], verdict["combine"], verdict["servers"]) == (True, "stable", 3), verdict


def test_a_bound_that_does_not_hold_fails(demo_model: Path, shared_store: Path) -> None:
    verdict = run_verify(demo_model, shared_store, "--combine", "sum", "--wire", "int8", "--min-cosine", "1")
    assert verdict["passed"] is False
    assert "mean cosine" in str(verdict["reason"])
    assert verdict["worst_layer"] in range(4)
