"""Fixtures of all tests: models, and what lies beside the clone on a developer's machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from node.engine import library as llama
from node.engine.library import Library
from node.model.store import Store
from tests.model_parts import ModelParts
from tests.zoo import make_zoo

pytest_plugins = ["tests.claims"]

# The same examples on every run, and no verdict from the clock of a busy machine.
settings.register_profile("panal", derandomize=True, deadline=None)
settings.load_profile("panal")

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "node" / "demo" / "tiny-qwen2moe-12e2-shared.Q4_K_M.gguf"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """../shared beside the clone: larger models and wanlab. Without it the test is skipped."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"needs {path}, which is not on this machine")
    return path


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The trained model that ships in the package: qwen2moe, 4 layers, 12 experts, 2 used."""
    return DEMO_MODEL


@pytest.fixture(scope="session")
def zoo_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """zoo_file(name, experts="f32") -> the file of a zoo model, made once a session."""
    folder = tmp_path_factory.mktemp("zoo")

    def get(name: str, experts: str = "f32") -> Path:
        path = folder / f"{name}.{experts}.gguf"
        if not path.exists():
            make_zoo.make(name, path, experts)
        return path

    return get


@pytest.fixture(scope="session")
def library() -> Library:
    """The pinned llama.cpp; one a process."""
    return llama.load()


@pytest.fixture(scope="session")
def parts(
    library: Library, tmp_path_factory: pytest.TempPathFactory, zoo_file: Callable[..., Path]
) -> Iterator[Callable[..., ModelParts]]:
    """parts(name, experts="f32") -> a zoo model, "demo" or a path: imported, all its experts at hand."""
    store = Store(tmp_path_factory.mktemp("store"))
    made: dict[tuple[str, str], ModelParts] = {}

    def get(name: str | Path = "demo", experts: str = "f32") -> ModelParts:
        key = (str(name), experts)
        if key not in made:
            path = (
                DEMO_MODEL if name == "demo" else name if isinstance(name, Path) else zoo_file(name, experts)
            )
            made[key] = ModelParts(library, store, path)
        return made[key]

    yield get
    for each in made.values():
        each.close()
