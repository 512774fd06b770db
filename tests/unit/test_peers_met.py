"""Who is online, heard of, offline; and for how long they are remembered."""

from __future__ import annotations

from node.status.peers_met import KEEP_SECONDS, MAX_OFFLINE, SEEN_STEP, PeersMet

NOW = 1_800_000_000.0


def test_a_killed_peer_is_offline_although_its_advert_lives() -> None:
    met = PeersMet()
    met.observe(NOW, {"a": NOW - 5}, lambda peer: "")
    assert met.state("a", NOW - 60, "") == ("online", "")
    met.observe(NOW + 1, {}, lambda peer: "no sign of life for 4 PINGs")
    assert met.state("a", NOW - 60, "") == ("offline", "no sign of life for 4 PINGs")
    assert met.last_seen("a", NOW - 60) == NOW


def test_it_is_heard_of_again_by_a_newer_advert_and_online_by_a_connection() -> None:
    met = PeersMet()
    met.observe(NOW, {"a": NOW}, lambda peer: "")
    met.observe(NOW + 1, {}, lambda peer: "gone")
    assert met.state("a", NOW + 2, "")[0] == "offline"  # ages are told to within seconds
    assert met.state("a", NOW + 10, "") == ("heard", "")
    assert met.last_seen("a", NOW + 10) == NOW + 10
    met.observe(NOW + 20, {"a": NOW + 19}, lambda peer: "")
    assert met.state("a", NOW + 10, "") == ("online", "")
    entry = met.get("a")
    assert entry is not None and (entry.since, entry.lost_at, entry.reason) == (NOW + 19, None, "")


def test_a_peer_that_was_never_connected() -> None:
    met = PeersMet()
    assert met.state("b", NOW, "") == ("heard", "")
    assert met.state("b", NOW, "dialing b: no answer within 5 s") == (
        "offline",
        "dialing b: no answer within 5 s",
    )
    assert met.state("c", None, "") == ("offline", "")
    assert met.last_seen("c", None) is None


def test_who_said_farewell_is_offline_at_once() -> None:
    met = PeersMet()
    met.observe(NOW, {"a": NOW}, lambda peer: "")
    met.observe(NOW + 1, {}, lambda peer: "the node is shutting down")
    assert met.state("a", None, "") == ("offline", "the node is shutting down")


def test_the_offline_are_forgotten_after_a_while_and_when_they_are_too_many() -> None:
    met = PeersMet()
    met.observe(NOW, {"a": NOW, "b": NOW}, lambda peer: "")
    met.observe(NOW + 1, {"b": NOW}, lambda peer: "gone")
    met.observe(NOW + 1 + KEEP_SECONDS, {"b": NOW}, lambda peer: "")
    assert sorted(met.ids()) == ["a", "b"]
    met.observe(NOW + 2 + KEEP_SECONDS, {"b": NOW}, lambda peer: "")
    assert met.ids() == ["b"]
    later = NOW + 3 + KEEP_SECONDS
    for number in range(2 * MAX_OFFLINE):  # identities cost nothing
        met.observe(later, {"b": NOW, f"x{number}": later}, lambda peer: "")
    met.observe(later, {"b": NOW}, lambda peer: "")
    assert len(met.ids()) == 1 + MAX_OFFLINE
    assert met.get("b") is not None and met.get("x0") is None
    assert met.get(f"x{2 * MAX_OFFLINE - 1}") is not None


def test_last_seen_of_the_connected_moves_in_steps() -> None:
    met = PeersMet()
    seen = set()
    for second in range(60):
        met.observe(NOW + second, {"a": NOW}, lambda peer: "")
        seen.add(met.last_seen("a", None))
    assert len(seen) == 60 / SEEN_STEP
