"""The route policy as a table: every kind of node against every other."""

from __future__ import annotations

import pytest

from routing.routes import Attempt, Kind, Route, Standing, Way, ways

NODES = {
    "public": Standing("public", "none", "none", udp=True),
    "full-cone": Standing("public", "independent", "none", udp=True),
    "restricted": Standing("private", "independent", "address", udp=True),
    "cone": Standing("private", "independent", "port", udp=True),
    "symmetric": Standing("private", "dependent", "port", udp=True),
    "firewall": Standing("private", "none", "port", udp=True),
    "blocked": Standing("private", "unknown", "unknown", udp=False),
    "unknown": Standing(),
}

D, C, T, B = Way.DIAL, Way.CALL_BACK, Way.DIAL_TCP, Way.CALL_BACK_TCP
P, R = Way.PUNCH, Way.RELAY

# rows: this node; columns: the peer, in the order of NODES
TABLE = {
    "public":     [[D],    [D],    [C, R], [C, R], [C, R], [C, R], [B, R], [D, C, R]],
    "full-cone":  [[D],    [D],    [C, R], [C, R], [C, R], [C, R], [B, R], [D, C, R]],
    "restricted": [[D, R], [D, R], [P, R], [P, R], [P, R], [P, R], [R],    [D, P, R]],
    "cone":       [[D, R], [D, R], [P, R], [P, R], [R],    [P, R], [R],    [D, P, R]],
    "symmetric":  [[D, R], [D, R], [P, R], [R],    [R],    [R],    [R],    [D, P, R]],
    "firewall":   [[D, R], [D, R], [P, R], [P, R], [R],    [P, R], [R],    [D, P, R]],
    "blocked":    [[D, T, R], [D, T, R], [R], [R], [R],   [R],    [R],    [D, T, R]],
    "unknown":    [[D, T, R], [D, T, R], [P, R], [P, R], [P, R], [P, R], [R], [D, T, P, R]],
}  # fmt: skip


def punchable(own: Standing, peer: Standing) -> tuple[bool, str]:
    """As relay.reachability has it, from the table in design/transport.md."""
    for one, other in ((own, peer), (peer, own)):
        if one.mapping == "dependent" and other.filtering == "port":
            return False, "a NAT maps by destination and the other side filters by port"
    return True, "both NATs let themselves be punched"


def tried(own: str, peer: str, *, same_network: bool = False, same_machine: bool = False) -> list[Attempt]:
    return ways(
        NODES[own],
        NODES[peer],
        same_network=same_network,
        same_machine=same_machine,
        punchable=punchable,
    )


@pytest.mark.parametrize("own", NODES)
@pytest.mark.parametrize("peer", NODES)
def test_the_table(own: str, peer: str) -> None:
    expected = TABLE[own][list(NODES).index(peer)]
    attempts = tried(own, peer)
    assert [each.way for each in attempts] == expected
    assert all(each.reason and "\n" not in each.reason for each in attempts)


@pytest.mark.parametrize("own", NODES)
@pytest.mark.parametrize("peer", NODES)
def test_best_first_and_the_relay_last(own: str, peer: str) -> None:
    ranks = [each.way.value for each in tried(own, peer)]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(ranks)


def test_two_public_nodes_are_never_relayed() -> None:
    for own in ("public", "full-cone"):
        for peer in ("public", "full-cone"):
            assert all(each.way is not Way.RELAY for each in tried(own, peer))


@pytest.mark.parametrize("peer", NODES)
def test_the_same_network_is_dialed_first(peer: str) -> None:
    first = tried("cone", peer, same_network=True)[0]
    assert first == Attempt(Way.DIAL, "both are on the same network")
    first = tried("cone", peer, same_network=True, same_machine=True)[0]
    assert first == Attempt(Way.DIAL, "both are on this machine")


def test_reasons_say_whose_fault_the_relay_is() -> None:
    assert "UDP is blocked here and at the peer" in tried("blocked", "blocked")[-1].reason
    assert "UDP is blocked at the peer" in tried("cone", "blocked")[-1].reason
    assert "maps by destination" in tried("symmetric", "cone")[-1].reason
    assert tried("cone", "cone")[-1].reason == "until the NATs are punched"


def test_only_direct_over_udp_is_as_good_as_it_gets() -> None:
    assert Route(Kind.DIRECT, "").best
    assert not Route(Kind.DIRECT, "", transport="tcp").best
    assert not Route(Kind.PUNCHED, "").best
    relayed = Route(Kind.RELAYED, "", transport="tcp", via="12D3")
    assert relayed.path == "relayed/tcp/12D3" != Route(Kind.RELAYED, "", transport="tcp", via="Q").path
