"""Budgets of an answer and of a day, and what is said when one is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from market.budget import DAY_SECONDS, KEPT_DAYS, Purse, UsedUp
from market.credits import credits_text
from node.config import MarketConfig
from node.device.folder import NodeFolder
from node.market.spending import Spending
from routing.errors import LocalError

NOON = 20_000 * DAY_SECONDS + DAY_SECONDS / 2


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "0 credits"),
        (1, "0.000001 credits"),
        (31, "0.000031 credits"),
        (31_249, "0.0312 credits"),
        (1_000_000, "1 credit"),
        (1_230_000, "1.23 credits"),
        (12_345_678, "12.3 credits"),
        (1_234_567_890, "1,235 credits"),
        (-5_500_000, "-5.5 credits"),
    ],
)
def test_amounts_for_people(micro: int, text: str) -> None:
    assert credits_text(micro) == text


def test_without_budgets_anything_goes() -> None:
    purse = Purse()
    purse.pay(10**15, NOON)
    purse.check(NOON)
    assert purse.reached(10**15, NOON) == "" and purse.today(NOON) == 10**15


def test_an_answer_ends_when_it_has_cost_its_budget() -> None:
    purse = Purse(answer=100)
    assert [purse.reached(cost, NOON) for cost in (0, 99, 100, 101)] == ["", "", "answer", "answer"]
    assert Purse(answer=0).reached(0, NOON) == ""  # what costs nothing
    assert "market.budget_answer" in purse.why("answer") and "0.0001 credits" in purse.why("answer")


def test_a_day_ends_all_answers_and_lets_none_begin() -> None:
    purse = Purse(day=1_000_000)
    purse.pay(999_999, NOON)
    purse.check(NOON)
    assert purse.reached(999_999, NOON) == ""
    purse.pay(1, NOON)
    assert purse.reached(0, NOON) == "day"
    with pytest.raises(UsedUp, match="today's budget of 1 credit is spent") as caught:
        purse.check(NOON + 60)
    assert caught.value.retry_after == DAY_SECONDS / 2 - 60
    assert "in 11 h 59 min" in str(caught.value) and "\n" not in str(caught.value)


def test_days_begin_at_midnight_utc() -> None:
    midnight = 20_001 * DAY_SECONDS
    purse = Purse(day=10)
    purse.pay(10, midnight - 0.1)
    assert purse.reached(0, midnight - 0.1) == "day"
    assert purse.reached(0, midnight) == "" and purse.today(midnight) == 0
    with pytest.raises(UsedUp, match="less than a minute"):
        purse.check(midnight - 0.1)
    purse.check(midnight)


def test_a_clock_that_is_set_back_finds_what_that_day_has_cost() -> None:
    purse = Purse(day=10)
    purse.pay(10, NOON)
    for day in range(1, 3 * KEPT_DAYS):
        purse.pay(3, NOON + day * DAY_SECONDS)  # a clock that ran ahead
    purse.pay(4, NOON)
    assert purse.today(NOON) >= 4
    kept = purse.unsaved()
    assert kept is not None and len(kept) == KEPT_DAYS
    purse = Purse(day=10, spent={20_000: 10, 20_001: 3})
    assert purse.reached(0, NOON) == "day" and purse.reached(0, NOON + DAY_SECONDS) == ""


def test_what_could_not_be_saved_is_given_again() -> None:
    purse = Purse()
    assert purse.unsaved() is None
    purse.pay(0, NOON)
    assert purse.unsaved() is None
    purse.pay(5, NOON)
    assert purse.unsaved() == {20_000: 5}
    assert purse.unsaved() is None
    purse.not_saved()
    assert purse.unsaved() == {20_000: 5}


# --- over restarts ---


def spending(root: Path, day: int | None = 100) -> Spending:
    return Spending(MarketConfig(mode="fixed", budget_day=day), NodeFolder(root))


def test_a_days_total_survives_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "node"
    first = spending(root)
    first.purse.pay(60, NOON)
    first.save()
    first.purse.pay(30, NOON)
    first.close()
    second = spending(root)
    assert second.purse.today(NOON) == 90
    second.purse.pay(10, NOON)
    second.close()
    with pytest.raises(UsedUp):
        spending(root).purse.check(NOON)
    file = NodeFolder(root).spent
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in root.iterdir()) == [file.name]


def test_nothing_spent_is_nothing_written(tmp_path: Path) -> None:
    made = spending(tmp_path)
    made.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"spent": {"x": 1}}', b'{"spent": {"1": "2"}}', b"\0" * 9000]
)
def test_a_damaged_file_is_said_in_one_line(tmp_path: Path, data: bytes) -> None:
    NodeFolder(tmp_path).spent.write_bytes(data)
    with pytest.raises(LocalError, match=r"spent\.json: no record of what was spent; remove it") as caught:
        spending(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_disk_that_is_full_costs_the_memory_and_not_the_node(tmp_path: Path) -> None:
    root = tmp_path / "file"
    made = spending(root)
    root.write_text("no folder")
    made.purse.pay(5, NOON)
    made.save()
    root.unlink()
    made.save()
    assert spending(root).purse.today(NOON) == 5
