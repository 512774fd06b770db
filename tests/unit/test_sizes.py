"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.sizes import MAX_BYTES, MemoryBudget, SizeError, size_text


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4 GiB", 4 << 30),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        (" 512MiB ", 512 << 20),
        ("1.5 KiB", 1536),
        ("2 GB", 2 * 10**9),
        ("1 b", 1),
    ],
)
def test_bytes(text: str, n_bytes: int) -> None:
    budget = MemoryBudget.parse(text)
    assert budget == MemoryBudget(n_bytes=n_bytes)
    assert budget.of(1 << 60) == n_bytes
    assert budget.of(1) == 1  # never more than there is


def test_shares() -> None:
    assert MemoryBudget.parse("50%").of(1001) == 500
    assert MemoryBudget.parse("100 %").of(7) == 7
    assert str(MemoryBudget.parse("12.5%")) == "12.5%"


@pytest.mark.parametrize(
    "text",
    ["", "4", "GiB", "4 G", "4 gibi", "-1 GiB", "1e9 B", "4  GiB", "4 GiB x", "0 GiB", "0%", "101%", "nan%",
     "٤ GiB", "9999999999999 TiB", "9" * 500],
)  # fmt: skip
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        MemoryBudget.parse(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@given(st.integers(1, MAX_BYTES))
def test_what_is_shown_can_be_read(n_bytes: int) -> None:
    read = MemoryBudget.parse(size_text(n_bytes)).n_bytes
    assert read is not None
    assert abs(read - n_bytes) <= 0.06 * n_bytes
