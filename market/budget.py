"""What answers may cost: each, and all of a day. Pure.

1. A day is one of UTC, as receipts' hours are. Its total is kept for each day apart: a clock that is set back
   finds what that day has cost already.
2. What is spent is known when an answer of a server has come. An answer that has reached its budget ends
   after the pass under way, and so do all when the day's is reached: what is spent beyond it is one pass.
3. A day that has reached its budget lets no answer begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from market.credits import credits_text
from routing.errors import LocalError

DAY_SECONDS = 86_400

KEPT_DAYS = 8
"""Days whose totals are remembered: today's, and those that a clock may be set back to."""

Reached = Literal["", "answer", "day"]


class UsedUp(LocalError):
    """The day's budget is spent.

    Attributes:
        retry_after: seconds until the next day begins.
    """

    def __init__(self, budget: int, retry_after: float) -> None:
        hours, minutes = divmod(int(retry_after // 60), 60)
        wait = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else "less than a minute"
        super().__init__(
            f"today's budget of {credits_text(budget)} is spent: it begins anew at 00:00 UTC, in {wait}; "
            f"market.budget_day in the node's config sets it"
        )
        self.retry_after = retry_after


class Purse:
    """What a node has spent, and whether that is enough. Amounts in micro-credits, times unix seconds.

    One thread pays, all may look.

    Args:
        answer, day: the budgets; None: there is none.
        spent: what earlier days, and this one until now, have cost, by day since 1970.
    """

    def __init__(
        self, answer: int | None = None, day: int | None = None, spent: Mapping[int, int] | None = None
    ) -> None:
        self.answer = answer
        self.day = day
        self._spent = dict(spent or {})
        self._changed = False

    def pay(self, amount: int, now: float) -> None:
        """Something has been spent."""
        if not amount:
            return
        today = int(now // DAY_SECONDS)
        spent = {**self._spent, today: self._spent.get(today, 0) + amount}
        # Another one, not this one changed: it may be looked at on another thread just now.
        nearest = sorted(spent, key=lambda day: abs(day - today))
        self._spent = {day: spent[day] for day in nearest[:KEPT_DAYS]}
        self._changed = True

    def today(self, now: float) -> int:
        """What today has cost."""
        return self._spent.get(int(now // DAY_SECONDS), 0)

    def reached(self, cost: int, now: float) -> Reached:
        """Which budget is spent.

        Args:
            cost: of the answer in question.
        """
        if self.answer is not None and cost and cost >= self.answer:
            return "answer"
        return "day" if self.day is not None and self.today(now) >= self.day else ""

    def check(self, now: float) -> None:
        """Whether an answer may begin.

        Raises:
            UsedUp: the day's budget is spent.
        """
        if self.day is not None and self.today(now) >= self.day:
            raise UsedUp(self.day, DAY_SECONDS - now % DAY_SECONDS)

    def why(self, reached: Reached) -> str:
        """One line for people who wonder why a text ends."""
        if reached == "answer":
            budget, key = f"the answer's budget of {credits_text(self.answer or 0)}", "budget_answer"
        elif reached == "day":
            budget, key = f"today's budget of {credits_text(self.day or 0)}", "budget_day"
        else:
            return ""
        return f"{budget} is spent, the text ends here (market.{key})"

    def unsaved(self) -> dict[int, int] | None:
        """All days, if one has changed since they were last taken by this; else None. From any thread."""
        if not self._changed:
            return None
        self._changed = False
        return dict(self._spent)

    def not_saved(self) -> None:
        """They could not be kept: `unsaved` gives them again."""
        self._changed = True
