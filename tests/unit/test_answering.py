"""Who answers: what a node knows of the holders of cells, from probes and connections."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from market.answering import (
    ANSWER_HOLDS,
    FIRST_PROBES,
    MAX_PEERS,
    PROBE_SECONDS,
    QUICK_SECONDS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    SILENT_AFTER,
    SURE_ANSWERS,
    SUSPECTS,
    Answering,
    Answers,
)
from market.view import STRANGER

REAL = [f"real {number}" for number in range(SURE_ANSWERS)]


def world(now: float = 0.0) -> Answering:
    """Enough have answered."""
    known = Answering()
    for name in REAL:
        known.answered(name, "", now)
    return known


def fail(known: Answering, name: str, now: float, times: int = SILENT_AFTER) -> None:
    for _ in range(times):
        known.failed(name, now)


def weights(known: Answering, now: float, *names: str) -> list[float]:
    answers = known.answers(now)
    return [answers.weight(name) for name in names]


def test_an_answer_holds_for_an_hour_and_a_silence_as_long() -> None:
    known = world()
    fail(known, "phantom", 0.0)
    assert weights(known, 0.0, REAL[0], "phantom", "new") == [1.0, 0.0, STRANGER * 4 / 5]
    assert weights(known, ANSWER_HOLDS - 1, REAL[0], "phantom") == [1.0, 0.0]
    answers = known.answers(ANSWER_HOLDS)
    assert answers.weight(REAL[0]) == answers.weight("phantom") == answers.stranger > 0


def test_one_failure_takes_nothing_away_and_an_answer_gives_all_back() -> None:
    known = world()
    known.failed("new", 1.0)
    known.failed(REAL[0], 1.0)
    assert weights(known, 1.0, "new", REAL[0]) == [known.answers(1.0).stranger, 1.0]
    known.failed(REAL[0], 2.0)
    assert weights(known, 2.0, REAL[0]) == [0.0]
    known.answered(REAL[0], "", 3.0)
    known.failed(REAL[0], 4.0)
    assert weights(known, 4.0, REAL[0]) == [1.0], "failures are counted in a row"


def test_where_nothing_answers_failures_count_for_nothing() -> None:
    known = Answering()
    for number in range(50):
        fail(known, f"server {number}", 0.0)
    assert not known.answers(0.0).silent
    for number in range(SURE_ANSWERS - 1):
        known.answered(f"answers {number}", "", 0.0)
    assert not known.answers(0.0).silent
    known.answered("answers as well", "", 0.0)
    assert len(known.answers(0.0).silent) == 50


def test_in_a_small_swarm_a_tenth_is_enough() -> None:
    known = Answering()
    known.answered("the only one", "", 0.0)
    for number in range(9):
        fail(known, f"phantom {number}", 0.0)
    assert len(known.answers(0.0).silent) == 9
    fail(known, "one too many", 0.0)
    assert not known.answers(0.0).silent


def test_who_was_not_asked_yet_counts_as_strangers_did_lately() -> None:
    known = world()
    assert weights(known, 0.0, "new") == [STRANGER]
    for number in range(3 * FIRST_PROBES):  # identities that are made anew, and forgotten, all the time
        fail(known, f"phantom {number}", 0.0)
        known.keep(dict.fromkeys(REAL, 1))
    assert weights(known, 0.0, "new") == [STRANGER / (FIRST_PROBES + 1)]
    for name in REAL:  # who is known is no stranger, whatever it does
        fail(known, name, 0.0)
        known.answered(name, "", 0.0)
    assert weights(known, 0.0, "new") == [STRANGER / (FIRST_PROBES + 1)]
    for number in range(FIRST_PROBES):
        known.answered(f"server {number}", "", 0.0)
    assert weights(known, 0.0, "new") == [STRANGER]


def test_networks_are_remembered_with_the_answers() -> None:
    known = world()
    for number in range(10):
        known.answered(f"sybil {number}", "203.0.113.0/24", float(number))
    answers = known.answers(20.0)
    assert len(answers.answered) == 13 and len(set(answers.answered.values())) == 4
    assert [name for name in answers.counted if name.startswith("sybil")] == ["sybil 0"]
    assert answers.weight("sybil 0") == 1.0 and answers.weight("sybil 1") == STRANGER
    # when its answer is over another one of that network stands for it
    assert weights(known, ANSWER_HOLDS, "sybil 0", "sybil 1") == [STRANGER, 1.0]


def test_whose_advert_has_ended_is_forgotten() -> None:
    known = world()
    fail(known, "phantom", 0.0)
    known.keep(dict.fromkeys([*REAL[1:], "new"], 1))
    assert len(known) == 2
    assert known.answers(0.0) == Answers.of(dict.fromkeys(REAL[1:], ""), stranger=STRANGER * 4 / 5)


def test_who_is_taken_out_is_there_for_nobody() -> None:
    known = world()
    for name in ("liar", "next to it"):
        known.answered(name, "203.0.113.0/24", 0.0)
    honest = known.answers(0.0)
    answers = honest.without({"liar", "liar that was never asked"})
    assert honest.weight("liar") == 1.0 and honest.without(()) == honest
    assert answers.weight("liar") == answers.weight("liar that was never asked") == 0.0
    assert answers.weight("next to it") == 1.0, "of that network it is the one that counts now"
    assert set(answers.answered) == {*REAL, "next to it"} and answers.stranger == honest.stranger


def test_counts_of_holders() -> None:
    known = world()
    fail(known, "phantom", 0.0)
    assert known.answers(0.0).counts([REAL[0], "phantom", "new", "newer"]) == (1, 1, 2)


def order(known: Answering, holders: Sequence[str], now: float, most: int = 100) -> list[str]:
    """Who is asked, one after the other, while somebody is due; nobody answers."""
    rng, found = random.Random(1), list[str]()
    while len(found) < most and (name := known.next(holders, now, rng)) is not None:
        known.untold(name, now)
        found.append(name)
        now += 0.1
    return found


def test_never_asked_ones_first_then_who_was_asked_longest_ago() -> None:
    known = Answering()
    names = [f"server {number}" for number in range(20)]
    first = order(known, names, 0.0)
    assert sorted(first) == sorted(names) and first != names, "in no order that others could foresee"
    assert order(known, names, RETRY_SECONDS - 1) == []
    assert order(known, names, RETRY_SECONDS + 1) == first


def test_new_identities_without_end_do_not_keep_it_from_asking_again() -> None:
    known = world()
    rng, now = random.Random(1), REFRESH_SECONDS
    flood = [f"sybil {number}" for number in range(100)]
    asked = []
    for _ in range(2 * len(REAL)):
        name = known.next([*flood, *REAL], now, rng)
        assert name is not None
        known.answered(name, "", now)
        asked.append(name)
    assert set(REAL) < set(asked)


@pytest.mark.parametrize("times", [1, SILENT_AFTER, SILENT_AFTER + 3])
def test_when_who_failed_is_asked_again(times: int) -> None:
    known = Answering()
    fail(known, "server", 0.0, times)
    again = RETRY_SECONDS if times < SILENT_AFTER else REFRESH_SECONDS * 2 ** (times - SILENT_AFTER)
    rng = random.Random(1)
    assert known.next(["server"], again - 1, rng) is None
    assert known.next(["server"], again, rng) == "server"


def test_probes_are_quick_while_half_is_unknown_and_somebody_is_due() -> None:
    rng = random.Random(1)

    def pause(known: Answering, *holders: str) -> float:
        return round(sum(known.pause(holders, 0.0, rng) for _ in range(1_000)) / 1_000, 1)

    assert pause(world(), *REAL[:2], "new") == PROBE_SECONDS
    assert pause(world(), REAL[0], "new") == QUICK_SECONDS
    assert pause(world()) == PROBE_SECONDS
    known = Answering()
    known.failed("failed once", 0.0)
    assert pause(known, "failed once") == PROBE_SECONDS, "there is nobody to ask now"


def test_a_swarm_of_a_thousand_is_half_known_in_half_an_hour_and_stays_so() -> None:
    """Servers that all answer; the rate is what the constants say."""
    rng, known, now, probes = random.Random(1), Answering(), 0.0, 0
    names = [f"server {number}" for number in range(1_000)]
    known_at: list[tuple[float, int]] = []
    while now < 3 * ANSWER_HOLDS:
        name = known.next(names, now, rng)
        if name is not None:
            known.answered(name, "", now)
            probes += 1
        known_at.append((now, len(known.answers(now).answered)))
        now += known.pause(names, now, rng)
    assert min(count for when, count in known_at if when > 1_800) >= 480
    assert probes / now < 1 / 4, "a probe in four seconds, on average"


def test_memory_is_bounded() -> None:
    known = Answering()
    for number in range(MAX_PEERS + 100):
        known.failed(f"sybil {number}", 0.0)
    assert len(known) == MAX_PEERS


def test_whose_connection_was_lost_is_asked_at_once() -> None:
    known = world()
    known.lost(REAL[0], 100.0)
    assert weights(known, 100.0, REAL[0]) == [known.answers(100.0).stranger], "until it has answered anew"
    rng = random.Random(1)
    assert known.pause(REAL, 100.0, rng) < 2 * QUICK_SECONDS
    assert known.next(REAL, 100.0, rng) == REAL[0]
    back = world()
    back.lost(REAL[0], 100.0)
    back.answered(REAL[0], "", 101.0)
    assert weights(back, 101.0, REAL[0]) == [1.0]
    for name in ("a", "b", "c"):  # enough that this node is not blind
        known.answered(name, "", 100.0)
    known.failed(REAL[0], 101.0)
    assert weights(known, 101.0, REAL[0]) == [0.0]


@pytest.mark.parametrize("gone", [0, 6])
def test_where_many_vanish_at_once_all_are_asked_soon_and_for_one_only_a_few(gone: int) -> None:
    """Twenty servers, all asked some time ago; one is lost, and with it as many others."""
    names = [f"server {number}" for number in range(20)]
    known, rng, now = Answering(), random.Random(3), 900.0
    for number, name in enumerate(names):
        known.answered(name, "", float(number))
    dead = set(names[3 : 3 + gone]) | {names[19]}
    known.lost(names[19], now)
    asked: list[str] = []
    found = now
    while now < 1200.0:
        found = found if known.answers(now).silent == dead else now
        chosen = known.next(names, now, rng)
        if chosen is not None:
            asked.append(chosen)
            if chosen in dead:
                known.failed(chosen, now)
            else:
                known.answered(chosen, "", now)
        now += known.pause(names, now, rng)
    answers = known.answers(now)
    assert answers.silent == dead
    if gone:
        assert found <= 900.0 + 90.0, "not a minute each after their first failure"
        assert set(asked) == set(names)
    else:
        assert len(asked) == 1 + SUSPECTS


def test_who_never_answered_makes_nobody_suspect() -> None:
    known, rng = world(), random.Random(2)
    for number in range(50):
        fail(known, f"phantom {number}", 100.0)
    assert known.next(REAL, 200.0, rng) is None


@pytest.mark.parametrize("phantoms", [100, 400])
def test_claims_by_the_hundred_do_not_keep_the_honest_from_being_known(phantoms: int) -> None:
    """And they stay known: who is silent is asked again more and more seldom."""
    honest = [f"server {number}" for number in range(50)]
    false = [f"phantom {number}" for number in range(phantoms)]
    known, rng, now = world(), random.Random(5), 0.0
    counts = []
    for hour in (1.5, 3.0, 4.5):
        while now < hour * 3_600:
            known.answered(REAL[0], "", now)  # a neighbour
            chosen = known.next(honest + false, now, rng)
            if chosen in false:
                known.failed(chosen, now)
            elif chosen is not None:
                known.answered(chosen, "", now)
            now += known.pause(honest + false, now, rng)
        counts.append(sum(name in known.answers(now).answered for name in honest))
    assert min(counts) >= 45


@pytest.mark.parametrize("phantoms", [10, 20, 400])
def test_a_node_that_few_answer_does_not_believe_in_many(phantoms: int) -> None:
    """Two others answer, as at home: too few to call anybody silent, and claims weigh no more for that."""
    known = Answering()
    for name in REAL[:2]:
        known.answered(name, "", 0.0)
    for number in range(phantoms):
        fail(known, f"phantom {number}", 0.0)
    answers = known.answers(0.0)
    assert answers.weight("new") <= STRANGER * 4 / 13
    assert answers.weight("phantom 0") <= STRANGER * 4 / 13


def test_who_was_started_again_is_asked_anew() -> None:
    """A crash of half a minute may be two failures; it must not be half an hour of silence."""
    known, rng = world(), random.Random(4)
    names = [*REAL, "server"]
    known.answered("server", "", 0.0)
    known.keep(dict.fromkeys(names, 1))
    fail(known, "server", 10.0)
    known.keep(dict.fromkeys(names, 1))
    assert weights(known, 10.0, "server") == [0.0]
    known.keep(dict.fromkeys(REAL, 1) | {"server": None})
    assert weights(known, 10.0, "server") == [0.0], "it has no advert now: it may be the same process"
    known.keep(dict.fromkeys(REAL, 1) | {"server": 2})
    assert weights(known, 10.0, "server") == [known.answers(10.0).stranger]
    assert known.next(names, 11.0, rng) == "server"
