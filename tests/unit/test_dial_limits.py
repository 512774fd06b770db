"""What hearsay may make a node dial."""

from __future__ import annotations

import pytest

from routing.dial_limits import (
    UNANSWERED_BURST,
    UNANSWERED_PER_SECOND,
    DialLimits,
    networks_of,
    reachable_from,
)
from routing.rates import Bucket, Buckets


def test_unanswered_dials_to_a_host_are_counted_whoever_named_it() -> None:
    limits = DialLimits()
    assert sum(limits.may("203.0.113.7", 0.0) for _ in range(1000)) == UNANSWERED_BURST
    assert limits.may("203.0.113.8", 0.0), "others are not held up"
    assert sum(limits.may("203.0.113.7", 60.0) for _ in range(1000)) == 60 * UNANSWERED_PER_SECOND
    limits.answered("203.0.113.7")
    assert sum(limits.may("203.0.113.7", 60.0) for _ in range(1000)) == UNANSWERED_BURST


@pytest.mark.parametrize(
    ("own", "host", "allowed"),
    [
        ("192.168.1.7", "203.0.113.7", True),
        ("192.168.1.7", "2001:db8::7", True),
        ("192.168.1.7", "198.18.0.7", True),
        ("192.168.1.7", "192.168.50.1", True),
        ("192.168.1.7", "10.0.0.1", False),
        ("192.168.1.7", "172.17.0.2", False),
        ("192.168.1.7", "127.0.0.1", False),
        ("192.168.1.7", "::1", False),
        ("192.168.1.7", "::ffff:127.0.0.1", False),
        ("192.168.1.7", "fd00::1", False),
        ("192.168.1.7", "169.254.169.254", False),
        ("192.168.1.7", "fe80::1", False),
        ("192.168.1.7", "224.0.0.251", False),
        ("192.168.1.7", "255.255.255.255", False),
        ("192.168.1.7", "0.0.0.0", False),
        ("192.168.1.7", "::", False),
        ("192.168.1.7", "ff02::1", False),
        ("127.0.0.1", "127.0.0.2", True),
        ("127.0.0.1", "192.168.1.1", False),
        ("203.0.113.9", "192.168.1.1", False),
        ("fd00::9", "fd12::1", True),
        ("192.168.1.7", "relay.example.org", True),
        ("192.168.1.7", "router", False),
        ("192.168.1.7", "localhost", False),
        ("192.168.1.7", "printer.local", False),
        ("192.168.1.7", "db.internal.", False),
        ("192.168.1.7", "0x7f.1", False),
    ],
)
def test_private_addresses_only_where_this_node_is(own: str, host: str, allowed: bool) -> None:
    assert reachable_from(networks_of([own]), host) is allowed


def test_a_node_on_several_networks() -> None:
    networks = networks_of(["203.0.113.9", "10.1.2.3", "nonsense"])
    assert reachable_from(networks, "10.200.0.1") and not reachable_from(networks, "192.168.0.1")


def test_a_bucket_fills_up_to_its_burst() -> None:
    bucket = Bucket(3, 2.0, 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert bucket.allows(2.0) and bucket.allows(2.0), "a look counts nothing"
    assert sum(bucket.take(1000.0) for _ in range(9)) == 3


def test_buckets_cannot_grow() -> None:
    buckets = Buckets(1, 0.0, max_keys=3)
    assert buckets.take("a", 0.0)
    assert not buckets.take("a", 0.0)
    for key in "bcd":
        assert buckets.take(key, 0.0)
    assert len(buckets) == 3
    assert buckets.take("a", 0.0), "the one used longest ago was forgotten"


def test_by_network_all_its_addresses_count_together() -> None:
    limits = DialLimits(3, 0.1, by_network=True)
    tried = [limits.may(f"8.8.4.{last}", 0.0) for last in range(5)]
    assert tried == [True, True, True, False, False]
    assert limits.may("8.8.5.1", 0.0), "another network"
    assert [limits.may("2a00:1450:4001:80f::1", 0.0), limits.may("2a00:1450:4001:ffff::2", 0.0)] == [True] * 2
    assert limits.may("2a00:1450:4001::3", 0.0) and not limits.may("2a00:1450:4001::4", 0.0)
    assert all(limits.may(f"192.168.1.{last}", 0.0) for last in range(9)), (
        "of a private network each for itself"
    )
    assert not limits.may("8.8.4.9", 9.0) and limits.may("8.8.4.9", 11.0)
    limits.answered("8.8.4.77")
    assert limits.may("8.8.4.1", 11.0) and limits.may("8.8.4.2", 11.0)
