"""Whatever recipe a stranger's manifest brings: it is refused, or ggml computes it. The process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.model.gguf.types import TENSOR_TYPES
from node.model.manifest import NO_MATRIX

ROOT = Path(__file__).parent.parent.parent


def work(*command: str) -> str:
    """Output of a child that must end well; ggml's abort would print a backtrace by gdb for seconds."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    last = done.stdout.splitlines()[-1] if done.stdout else "nothing"
    assert done.returncode == 0, f"died after: {last}\n{done.stderr[-2000:]}"
    return last


@pytest.mark.parametrize(
    ("first", "last"), [(0, 3_000), pytest.param(100_000, 160_000, marks=pytest.mark.slow)]
)
def test_no_accepted_recipe_aborts(first: int, last: int) -> None:
    word, found = work("-m", "tests.property.recipe_worker", str(first), str(last)).split()
    assert word == "done" and int(found) > (last - first) // 100


EVERY_TYPE = """
import numpy as np
from node.engine import library as llama
from node.engine.kernels import Kernels
from node.model import recipe as R
from node.model.gguf.types import TENSOR_TYPES, tensor_bytes
from node.model.held import HeldExperts, HeldTensor
from node.model.manifest import NO_MATRIX

kernels = Kernels(llama.load(), threads=2)
for kind in TENSOR_TYPES.values():
    if kind.name in NO_MATRIX:
        continue
    print(kind.name, flush=True)
    data = np.zeros(tensor_bytes((256, 8, 4), kind), np.uint8)
    recipe = R.Recipe("none", R.Matmul("down.weight", R.Input()))
    held = HeldExperts(recipe, {"down.weight": HeldTensor(kind.id, (256, 8, 4), data)}, 0, 4, 256, 8)
    for rows in (1, 3, 40):
        kernels.run(held, np.ones((rows, 256), np.float32), np.full(rows, 2), np.arange(rows * 2) % 4, None)
print("done")
"""


def test_no_accepted_type_aborts() -> None:
    assert work("-c", EVERY_TYPE) == "done"
    assert set(NO_MATRIX) < {kind.name for kind in TENSOR_TYPES.values()}
