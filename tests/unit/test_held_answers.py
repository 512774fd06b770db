"""Finished answers of a batch: shown in order, held while they are checked, given up or taken back."""

from __future__ import annotations

import math

import pytest

from node.decode import held_answers
from node.decode.batch_report import BatchAnswer
from node.decode.convictions import Conviction, Convictions
from node.decode.held_answers import HeldAnswers


class Batch:
    """What somebody who looks on sees."""

    def __init__(self, hold: float = 0.0) -> None:
        self.convictions = Convictions()
        self.shown: list[int] = []
        self.taken_back: list[tuple[int, str]] = []
        self.held = HeldAnswers(
            self.convictions,
            hold,
            on_answer=lambda answer: self.shown.append(answer.prompt),
            on_spoiled=lambda number, conviction: self.taken_back.append((number, conviction.peer_id)),
        )

    def add(self, number: int, at: float, *peers: str, error: str = "") -> None:
        answer = BatchAnswer(number, "text", 3, [1, 2], at, "length", error=error)
        self.held.add(answer, dict.fromkeys(peers, at), at)

    def convict(self, peer: str, since: float = -math.inf) -> None:
        self.convictions.add(Conviction(peer, since, math.inf, "by this test"))


def test_they_are_shown_in_order() -> None:
    batch = Batch()
    batch.add(2, 1.0, "a")
    batch.held.show(5.0)
    assert batch.shown == [] and batch.held.count == 1
    batch.add(1, 2.0, "a")
    batch.add(4, 2.0, "a")
    batch.held.show(5.0)
    assert batch.shown == [1, 2] and batch.held.count == 3 and batch.held.peers() == {"a"}


def test_each_waits_for_its_audits() -> None:
    batch = Batch(hold=10.0)
    batch.add(1, 1.0, "a")
    batch.add(2, 2.0)  # which nobody computed for it
    batch.add(3, 3.0, "a")
    batch.held.show(10.9)
    assert batch.shown == []
    batch.held.show(11.0)
    assert batch.shown == [1, 2]
    batch.held.show(11.0, checked=True)
    assert batch.shown == [1, 2, 3]


def test_what_rests_on_who_was_found_out_is_given_up_or_taken_back() -> None:
    batch = Batch()
    batch.add(1, 1.0, "a", "b")
    batch.held.show(1.0)
    batch.add(2, 2.0, "b")
    batch.add(3, 3.0, "a")
    assert batch.held.spoiled() == []
    batch.convict("a")
    batch.held.show(3.0)
    assert batch.shown == [1, 2] and batch.held.left == 1
    ((answer, spoiling),) = batch.held.spoiled()
    assert (answer.prompt, spoiling.peer_id) == (3, "a")
    assert batch.taken_back == [(1, "a")] and batch.held.failed == {1}
    assert batch.held.spoiled() == [], "it is told once"
    batch.add(3, 4.0, "b")
    batch.convict("b", since=3.5)
    ((answer, _),) = batch.held.spoiled()
    assert answer.prompt == 3 and batch.taken_back == [(1, "a")], "what b did before was right"
    batch.add(3, 5.0, error="a gave false answers")
    batch.held.show(5.0)
    assert batch.shown == [1, 2, 3] and batch.held.failed == {1, 3}


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_answers, "MOST_SHOWN", 3)
    batch = Batch()
    for number in range(1, 6):
        batch.add(number, float(number), "a")
        batch.held.show(float(number))
    batch.convict("a")
    assert batch.held.spoiled() == []
    assert [number for number, _ in batch.taken_back] == [3, 4, 5]
