"""Those who follow the status by its changes know the same as those who ask for all of it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from node.status import facts
from node.status.editions import REMEMBERED_GONE, SECTIONS, Editions, Event
from tests.status_facts import as_json, model, node, offline, peer, status


class Follower:
    """What a page does with events."""

    def __init__(self) -> None:
        self.number = 0
        self.known: dict[str, Any] = {}
        self.peers: dict[str, Any] = {}

    def take(self, events: list[Event], number: int) -> None:
        for name, data in events:
            told = msgspec.json.decode(data)
            if name == "snapshot":
                self.known = {section: told[section] for section in SECTIONS}
                self.peers = {each["id"]: each for each in told["peers"]}
            elif name == "peers":
                self.peers |= {each["id"]: each for each in told["changed"]}
                for peer_id in told["gone"]:
                    self.peers.pop(peer_id, None)
            else:
                self.known[name] = told
        self.number = number

    def agrees(self, told: facts.Status) -> None:
        wanted = as_json(told)
        assert self.known == {section: wanted[section] for section in SECTIONS}
        assert self.peers == {each["id"]: each for each in wanted["peers"]}


def test_the_whole_is_the_status() -> None:
    editions = Editions()
    assert editions.take(status())
    assert editions.whole() == msgspec.json.encode(status())


def test_what_has_not_changed_is_not_told() -> None:
    editions = Editions()
    editions.take(status())
    number = editions.number
    assert not editions.take(status(at=1_900_000_000.0))  # its date alone
    assert editions.number == number and editions.since(number) == []
    assert b"1900000000" in editions.whole()
    editions.take(status(node=node(uptime_seconds=3601)))
    assert [name for name, _ in editions.since(number)] == ["node"]


def test_a_node_without_peers_has_nothing_to_tell_of_them() -> None:
    editions = Editions()
    editions.take(status(peers=[]))
    first = editions.number
    editions.take(status(peers=[], node=node(uptime_seconds=3601)))
    assert [name for name, _ in editions.since(first)] == ["node"]
    editions.take(status(peers=[], peers_left_out=3, node=node(uptime_seconds=3601)))
    (event,) = editions.since(first + 1)
    assert event == ("peers", b'{"changed":[],"gone":[],"left_out":3}')


def test_of_the_peers_only_those_that_changed_are_told() -> None:
    editions = Editions()
    names = [f"p{number}" for number in range(8)]
    editions.take(status(peers=[peer(name) for name in names]))
    number = editions.number
    changed = peer("p3", rtt_ms=99.0)
    editions.take(status(peers=[peer("p0"), peer("p1"), peer("p2"), changed, *map(peer, names[5:])]))
    ((name, data),) = editions.since(number)
    told = msgspec.json.decode(data)
    assert name == "peers"
    assert [each["id"] for each in told["changed"]] == [changed.id]
    assert told["gone"] == [peer("p4").id]


_names = st.sets(st.sampled_from("abcdefg"), max_size=7)
_step = st.tuples(_names, st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 3)), st.integers(0, 2))


@given(st.lists(st.tuples(_step, st.sets(st.integers(0, 2))), min_size=1, max_size=12))
def test_followers_of_any_pace_know_the_same(steps: list[tuple[Any, set[int]]]) -> None:
    editions, followers = Editions(), [Follower() for _ in range(3)]
    for (present, rtts, missing), awake in steps:
        peers = [peer(name, rtt_ms=float(rtts.get(name, 0))) for name in sorted(present)]
        told = status(peers=peers, models=[model(missing_cells=missing)])
        editions.take(told)
        for number in awake:
            follower = followers[number]
            follower.take(editions.since(follower.number), editions.number)
            follower.agrees(told)


def test_who_is_too_far_behind_gets_everything_anew() -> None:
    editions = Editions()
    editions.take(status(peers=[peer("stays"), peer("goes")]))
    behind = Follower()
    behind.take(editions.since(0), editions.number)
    editions.take(status(peers=[peer("stays")]))
    for number in range(REMEMBERED_GONE + 1):
        made_up = offline("x", id=f"x{number}")
        editions.take(status(peers=[peer("stays"), made_up]))
    assert [name for name, _ in editions.since(behind.number)] == ["snapshot"]
    behind.take(editions.since(behind.number), editions.number)
    assert set(behind.peers) == {peer("stays").id, f"x{REMEMBERED_GONE}"}


def test_who_comes_from_another_run_gets_everything_anew() -> None:
    editions = Editions()
    editions.take(status())
    assert [name for name, _ in editions.since(9_999)] == ["snapshot"]
