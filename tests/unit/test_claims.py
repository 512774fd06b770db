"""Runs side by side share out test files: all of them run, each in one, and whole."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.claims import claimed_items


def test_each_file_is_run_once(tmp_path: Path) -> None:
    tests: list[Any] = [
        SimpleNamespace(nodeid=f"tests/{folder}/test_{number}.py::test_{each}")
        for folder in ("unit", "integration")
        for number in range(5)
        for each in range(3)
    ]
    runs = [claimed_items(tests, tmp_path) for _ in range(3)]
    turns = list(zip_longest(*runs))  # each begins its next test when all have ended one
    shares = [[test for test in share if test is not None] for share in zip(*turns, strict=True)]
    assert sorted(test.nodeid for share in shares for test in share) == sorted(test.nodeid for test in tests)
    assert all(share == [test for test in tests if test in share] for share in shares), "in their order"
    files = [{test.nodeid.partition("::")[0] for test in share} for share in shares]
    assert sum(map(len, files)) == 10 and all(len(each) >= 3 for each in files)
