"""The lab of network namespaces (wanlab), as a fixture; skipped with the reason where it cannot be made."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def wanlab(shared_dir: Path) -> Any:
    """The lab's module: `wanlab.WanLab(topology)`."""
    if os.geteuid() != 0:
        pytest.skip("wanlab makes network namespaces, which needs root")
    for tool in ("ip", "nft", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"wanlab needs {tool}")
    if not Path("/dev/net/tun").exists():
        pytest.skip("wanlab needs /dev/net/tun")
    spec = importlib.util.spec_from_file_location("wanlab", shared_dir / "lab" / "wanlab.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wanlab"] = module
    spec.loader.exec_module(module)
    return module
