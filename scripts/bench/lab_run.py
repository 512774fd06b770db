"""How a benchmark in the lab begins and ends: where its files lie, what it prints, its exit code."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routing.errors import LocalError
from scripts.bench.engine_model import add_shape_options


def add_run_options(parser: argparse.ArgumentParser, shape: dict[str, Any]) -> None:
    """--dir, --json, and the model's shape with these defaults."""
    parser.add_argument("--dir", type=Path, help="keep model, store and logs there; else nothing is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_shape_options(parser)
    parser.set_defaults(**shape)


def run(
    name: str,
    args: argparse.Namespace,
    bench: Callable[[Path], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Measure in a folder and print the report; 2 and one line if it cannot be measured."""
    try:
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as scratch:
            report = bench(args.dir or Path(scratch))
    except (LocalError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0
